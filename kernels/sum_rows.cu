// Sums of a matrix over its rows: the gradients of biases, and every sum over leading axes.
//
// Layout: x contiguous (rows, columns), out (columns). A block belongs to `width` columns
// (blockIdx.x) and one part of the rows (blockIdx.y); neighbouring threads to neighbouring columns.
// Traffic per element: reads 1.
// blockIdx.z is one of several such matrices, one after the other: a sum over an axis between.
// Sums are in gt_float<T>. A thread adds GT_CHAIN terms one after the other, and those sums with
// their rounding errors, so that the error does not grow with the number of rows. The parts of a
// column are added in their order by the last block that ends, so that results repeat bit for bit.
#include "half.cuh"
#include "reduce.cuh"

#define GT_CHAIN 16

// The sum of `value` over the threads of a column, to those of the first row. Every thread must
// call it.
template <typename F>
__device__ inline F gt_column_sum(F value, F *cells, int width) {
  cells[threadIdx.x] = value;
  __syncthreads();
  for (int half = blockDim.x / 2; half >= width; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) cells[threadIdx.x] += cells[threadIdx.x + half];
    __syncthreads();
  }
  const F result = cells[threadIdx.x];
  __syncthreads();  // the next sum overwrites the cells
  return result;
}

// partials (gridDim.z, gridDim.y, columns) and tickets, a zero for each blockIdx.x and z; both NULL
// where gridDim.y is 1.
template <typename T>
__global__ void sum_rows(const T *x, T *out, gt_float<T> *partials, unsigned *tickets,
                         gt_index rows, gt_index columns, gt_index width) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  const int across = static_cast<int>(width);
  const gt_index column = blockIdx.x * width + threadIdx.x % across;
  const gt_index lane = threadIdx.x / across, lanes = blockDim.x / across;
  const gt_index step = gridDim.y * lanes;
  x += blockIdx.z * rows * columns;
  out += blockIdx.z * columns;
  gt_total<F> total;
  if (column < columns)
    for (gt_index row = blockIdx.y * lanes + lane; row < rows;) {
      F few = 0;
      for (int i = 0; i < GT_CHAIN && row < rows; i++, row += step)
        few += gt_up(x[row * columns + column]);
      total.add(few);
    }
  F sum = gt_column_sum(total.result(), cells, across);
  if (gridDim.y > 1) {
    partials += blockIdx.z * gridDim.y * columns;
    if (lane == 0 && column < columns) partials[blockIdx.y * columns + column] = sum;
    if (!gt_last_block(tickets + blockIdx.z * gridDim.x + blockIdx.x, gridDim.y)) return;
    gt_total<F> parts;
    if (column < columns)
      for (gt_index part = lane; part < gridDim.y; part += lanes)
        parts.add(partials[part * columns + column]);
    sum = gt_column_sum(parts.result(), cells, across);
  }
  if (lane == 0 && column < columns) out[column] = gt_down<T>(sum);
}

// Launch: grid (ceil(columns / width), parts, matrices); blocks are one-dimensional, a power of two
// of threads, at most GT_BLOCK; width a power of two, at most that. No dynamic shared memory.
