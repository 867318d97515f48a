// Softmax and log-softmax over the last axis, forward and backward.
//
// Layout: contiguous (rows, columns), a block to a row, rows of any length.
// Traffic per element: forward reads 3, writes 1; backward reads 4, writes 1 (log: 3,
// 1). The ladder's next rungs keep a row on chip and read it once.
// Sums are accumulated in gt_float<T>: float for half types.
// A row of -infinity only, or with +infinity or NaN, becomes NaN as in PyTorch.
// In place: y may be x, and dx may be g or y; hence no __restrict__.
#include "half.cuh"
#include "reduce.cuh"

// The row's maximum and the sum of exp(x - maximum).
template <typename T>
__device__ inline void gt_row_softmax(const T *x, gt_index columns, gt_float<T> *cells,
                                      gt_float<T> *maximum, gt_float<T> *sum) {
  typedef gt_float<T> F;
  F largest = -gt_infinity<F>();
  for (gt_index column = threadIdx.x; column < columns; column += blockDim.x)
    largest = gt_max()(largest, gt_up(x[column]));
  *maximum = gt_block_reduce(largest, cells, gt_max());
  F total = 0;
  for (gt_index column = threadIdx.x; column < columns; column += blockDim.x)
    total += exp(gt_up(x[column]) - *maximum);
  *sum = gt_block_reduce(total, cells, gt_sum());
}

template <typename T>
__global__ void softmax_forward(const T *x, T *y, gt_index rows, gt_index columns) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  for (gt_index row = blockIdx.x; row < rows; row += gridDim.x) {
    F maximum, sum;
    gt_row_softmax(x + row * columns, columns, cells, &maximum, &sum);
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      const gt_index at = row * columns + column;
      y[at] = gt_down<T>(exp(gt_up(x[at]) - maximum) / sum);
    }
  }
}

template <typename T>
__global__ void log_softmax_forward(const T *x, T *y, gt_index rows, gt_index columns) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  for (gt_index row = blockIdx.x; row < rows; row += gridDim.x) {
    F maximum, sum;
    gt_row_softmax(x + row * columns, columns, cells, &maximum, &sum);
    const F log_sum = log(sum);
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      const gt_index at = row * columns + column;
      y[at] = gt_down<T>((gt_up(x[at]) - maximum) - log_sum);
    }
  }
}

// dx = y * (g - sum(g * y)), from the output y. y has `shared` rows, for the first rows of g, for as
// many behind them, and so on.
template <typename T>
__global__ void softmax_backward(const T *g, const T *y, T *dx, gt_index rows, gt_index columns,
                                 gt_index shared) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  for (gt_index row = blockIdx.x; row < rows; row += gridDim.x) {
    const T *own = y + row % shared * columns;
    F dot = 0;
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      dot += gt_up(g[row * columns + column]) * gt_up(own[column]);
    }
    dot = gt_block_reduce(dot, cells, gt_sum());
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      const gt_index at = row * columns + column;
      dx[at] = gt_down<T>(gt_up(own[column]) * (gt_up(g[at]) - dot));
    }
  }
}

// dx = g - exp(y) * sum(g), from the output y; `shared` as above.
template <typename T>
__global__ void log_softmax_backward(const T *g, const T *y, T *dx, gt_index rows,
                                     gt_index columns, gt_index shared) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  for (gt_index row = blockIdx.x; row < rows; row += gridDim.x) {
    const T *own = y + row % shared * columns;
    F sum = 0;
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x)
      sum += gt_up(g[row * columns + column]);
    sum = gt_block_reduce(sum, cells, gt_sum());
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      const gt_index at = row * columns + column;
      dx[at] = gt_down<T>(gt_up(g[at]) - exp(gt_up(own[column])) * sum);
    }
  }
}

// Launch: grid (rows), block (<= GT_BLOCK); grids smaller than rows loop. No dynamic shared memory.
