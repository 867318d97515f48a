// Layer norm over the last axis: y = (x - mean) * rstd * weight + bias; RMS norm where mean is NULL:
// nothing is subtracted, and the variance is the mean of the squares.
//
// Layout: contiguous (rows, columns), a block to a row; weight and bias (columns), of x's dtype, or
// NULL. mean and rstd (rows) are in gt_float<T>. The variance is biased and taken in a second pass
// over the row.
// Traffic per element: forward reads 3, writes 1; backward dx reads 4, writes 1; backward_weight
// reads 2.
// In place: y may be x; dx may be g or x; hence no __restrict__. The weight gradients read g and x,
// so launch them before a dx that overwrites one.
#include "half.cuh"
#include "reduce.cuh"

template <typename T>
__global__ void layer_norm_forward(const T *x, const T *weight, const T *bias, T *y,
                                   gt_float<T> *mean, gt_float<T> *rstd, gt_index rows,
                                   gt_index columns, double eps) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  for (gt_index row = blockIdx.x; row < rows; row += gridDim.x) {
    F average = 0;
    if (mean) {
      F sum = 0;
      for (gt_index column = threadIdx.x; column < columns; column += blockDim.x)
        sum += gt_up(x[row * columns + column]);
      average = gt_block_reduce(sum, cells, gt_sum()) / F(columns);
    }
    F squares = 0;
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      const F centred = gt_up(x[row * columns + column]) - average;
      squares += centred * centred;
    }
    const F variance = gt_block_reduce(squares, cells, gt_sum()) / F(columns);
    const F inverse = F(1) / sqrt(variance + F(eps));
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      const gt_index at = row * columns + column;
      F value = (gt_up(x[at]) - average) * inverse;
      if (weight) value *= gt_up(weight[column]);
      if (bias) value += gt_up(bias[column]);
      y[at] = gt_down<T>(value);
    }
    if (threadIdx.x == 0) {
      if (mean) mean[row] = average;
      rstd[row] = inverse;
    }
  }
}

// dx = rstd * (h - mean(h) - xhat * mean(h * xhat))
// with h = g * weight and xhat = (x - mean) * rstd; without mean(h) where mean is NULL. x, mean and
// rstd have `shared` rows, for the first rows of g, for as many behind them, and so on.
template <typename T>
__global__ void layer_norm_backward(const T *g, const T *x, const T *weight,
                                    const gt_float<T> *mean, const gt_float<T> *rstd, T *dx,
                                    gt_index rows, gt_index columns, gt_index shared) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  for (gt_index row = blockIdx.x; row < rows; row += gridDim.x) {
    const gt_index own = row % shared;
    const F average = mean ? mean[own] : F(0);
    const F inverse = rstd[own];
    F sum = 0;
    F dot = 0;
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      const gt_index at = row * columns + column;
      const F h = weight ? gt_up(g[at]) * gt_up(weight[column]) : gt_up(g[at]);
      sum += h;
      dot += h * ((gt_up(x[own * columns + column]) - average) * inverse);
    }
    sum = mean ? gt_block_reduce(sum, cells, gt_sum()) / F(columns) : F(0);
    dot = gt_block_reduce(dot, cells, gt_sum()) / F(columns);
    for (gt_index column = threadIdx.x; column < columns; column += blockDim.x) {
      const gt_index at = row * columns + column;
      const F h = weight ? gt_up(g[at]) * gt_up(weight[column]) : gt_up(g[at]);
      const F xhat = (gt_up(x[own * columns + column]) - average) * inverse;
      dx[at] = gt_down<T>(inverse * (h - sum - xhat * dot));
    }
  }
}

// dweight = sum over rows of g * xhat, dbias = sum over rows of g; either may be NULL. With
// accumulate = 1 they are added to what is there. Each block takes 32 columns, its blockDim.y
// threads share the rows.
template <typename T>
__global__ void layer_norm_backward_weight(const T *g, const T *x, const gt_float<T> *mean,
                                           const gt_float<T> *rstd, T *dweight, T *dbias,
                                           gt_index rows, gt_index columns, gt_index accumulate) {
  typedef gt_float<T> F;
  __shared__ F weight_cells[8][33];  // 33: neighbouring rows start in different banks
  __shared__ F bias_cells[8][33];
  for (gt_index first = static_cast<gt_index>(blockIdx.x) * 32; first < columns;
       first += static_cast<gt_index>(gridDim.x) * 32) {
    const gt_index column = first + threadIdx.x;
    F weight_sum = 0;
    F bias_sum = 0;
    if (column < columns) {
      for (gt_index row = threadIdx.y; row < rows; row += blockDim.y) {
        const gt_index at = row * columns + column;
        const F value = gt_up(g[at]);
        weight_sum += value * ((gt_up(x[at]) - (mean ? mean[row] : F(0))) * rstd[row]);
        bias_sum += value;
      }
    }
    weight_cells[threadIdx.y][threadIdx.x] = weight_sum;
    bias_cells[threadIdx.y][threadIdx.x] = bias_sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
      for (unsigned lane = 1; lane < blockDim.y; ++lane) {
        weight_sum += weight_cells[lane][threadIdx.x];
        bias_sum += bias_cells[lane][threadIdx.x];
      }
      if (dweight)
        dweight[column] = gt_down<T>(accumulate ? gt_up(dweight[column]) + weight_sum : weight_sum);
      if (dbias)
        dbias[column] = gt_down<T>(accumulate ? gt_up(dbias[column]) + bias_sum : bias_sum);
    }
    __syncthreads();  // the next columns overwrite the cells
  }
}

// Launch: forward and backward grid (rows), block (<= GT_BLOCK); backward_weight grid (columns /
// 32), block (32, <= 8). No dynamic shared memory.
