// Attention context: the sampled rows of two arrays, centred, and the sum of a product.
//
// Layout: x, y (..., width) of any strides, of which gt_rows names up to GT_ROWS rows; rows (2,
// count, width) and lengths (2, width) contiguous. For the sum: x, y (count,) contiguous, parts one
// double for each block. Traffic: of rows, reads 1 and writes 1 per sampled element (again from the
// cache); of the sum, reads 2 per element.
#include "half.cuh"
#include "reduce.cuh"

#define GT_ROWS 32  // `_MOST_ROWS` in gtensor/ops/attention/context.py repeats it

// Of each array the offsets of its rows, in elements.
struct gt_rows {
  gt_index of[2][GT_ROWS];
};

// rows = the named rows minus their mean, in which what is not finite counts as 0; lengths = the
// length of each column. A thread for each column (x) of each array (y), whose columns are a step
// apart. The mean is summed up in
// double: the mean of float may be far larger than the deviations.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK)
context_rows(const T *x, const T *y, gt_float<T> *rows, gt_float<T> *lengths, gt_rows where,
             gt_index step_x, gt_index step_y, gt_index count, gt_index width) {
  typedef gt_float<T> F;
  const gt_index column = blockIdx.x * static_cast<gt_index>(GT_BLOCK) + threadIdx.x;
  if (column >= width) return;
  const int which = blockIdx.y;
  const T *from = which ? y + column * step_y : x + column * step_x;
  F *to = rows + which * count * width + column;
  double total = 0;
  for (gt_index row = 0; row < count; ++row) {
    F value = gt_up(from[where.of[which][row]]);
    if (value - value != F(0)) value = F(0);
    to[row * width] = value;
    total += static_cast<double>(value);
  }
  const double mean = total / static_cast<double>(count);
  F squares = 0;
  for (gt_index row = 0; row < count; ++row) {
    const F value = static_cast<F>(static_cast<double>(to[row * width]) - mean);
    to[row * width] = value;
    squares += value * value;
  }
  lengths[which * width + column] = sqrt(squares);
}

// parts[block] = the sum of x * y over the elements of a block; each sum is in double and has a
// fixed order.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK)
context_dot(const T *x, const T *y, double *parts, gt_index count) {
  __shared__ double cells[GT_BLOCK];
  double total = 0;
  const gt_index stride = static_cast<gt_index>(gridDim.x) * GT_BLOCK;
  for (gt_index i = blockIdx.x * static_cast<gt_index>(GT_BLOCK) + threadIdx.x; i < count;
       i += stride)
    total += static_cast<double>(gt_up(x[i])) * static_cast<double>(gt_up(y[i]));
  total = gt_block_reduce(total, cells, gt_sum());
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// out = the sum of the parts; T is the type of out.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK)
context_dot_of_parts(const double *parts, T *out, gt_index count) {
  __shared__ double cells[GT_BLOCK];
  double total = 0;
  for (gt_index i = threadIdx.x; i < count; i += GT_BLOCK) total += parts[i];
  total = gt_block_reduce(total, cells, gt_sum());
  if (threadIdx.x == 0) *out = gt_down<T>(static_cast<gt_float<T>>(total));
}

// Launch: rows (ceil(width / GT_BLOCK), 2) blocks of GT_BLOCK threads; the sum any number of
// blocks, then one. No dynamic shared memory.
