// Cross entropy from logits with integer targets, fused: no (rows, classes) temporary.
//
// Layout: logits contiguous (rows, classes), targets int64 (rows), a block to a row, or, where one
// block takes all rows, a warp.
// Traffic per logit: forward reads 2; backward reads 1, writes 1.
// Losses, their gradients, maxima, sums and the count are in gt_float<T>. Rows whose target is ignore_index have
// loss 0 and gradient 0. A target outside 0..classes-1 reads nothing outside the row: it makes loss
// and gradient NaN.
// In place: dlogits may be logits; hence no __restrict__.
#include "half.cuh"
#include "reduce.cuh"

// logsumexp(row) - logits[target], from the row's largest logit and the sum of the exponentials
// beside it; one logarithm of both would be rounded as a large logit is.
template <typename T, typename F>
__device__ inline F gt_row_loss(const T *x, gt_index target, F maximum, F sum, gt_index classes,
                                gt_index ignore_index) {
  if (target == ignore_index) return 0;
  if (target < 0 || target >= classes) return gt_nan<F>();
  return log(sum) - (gt_up(x[target]) - maximum);
}

// out = the sum of the row losses (mean = 0), or that sum over the count of rows that are not
// ignored (mean = 1); count = that count. All rows ignored and mean: 0 / 0 = NaN, as in PyTorch.
// Every thread of the block must call it.
template <typename T, typename F>
__device__ inline void gt_reduce_losses(const F *loss, const long long *targets, T *out, F *count,
                                        gt_index rows, gt_index ignore_index, gt_index mean,
                                        F *cells) {
  F sum = 0;
  F counted = 0;
  for (gt_index row = threadIdx.x; row < rows; row += blockDim.x) {
    sum += loss[row];
    counted += targets[row] == ignore_index ? 0 : 1;
  }
  sum = gt_block_reduce(sum, cells, gt_sum());
  counted = gt_block_reduce(counted, cells, gt_sum());
  if (threadIdx.x == 0) {
    *out = gt_down<T>(mean ? sum / counted : sum);
    *count = counted;
  }
}

// loss[row], and what backward needs: largest[row] and total[row].
template <typename T>
__global__ void cross_entropy_forward(const T *logits, const long long *targets, gt_float<T> *loss,
                                      gt_float<T> *largest, gt_float<T> *total, gt_index rows,
                                      gt_index classes, gt_index ignore_index) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  for (gt_index row = blockIdx.x; row < rows; row += gridDim.x) {
    const T *x = logits + row * classes;
    F maximum = -gt_infinity<F>();
    for (gt_index column = threadIdx.x; column < classes; column += blockDim.x)
      maximum = gt_max()(maximum, gt_up(x[column]));
    maximum = gt_block_reduce(maximum, cells, gt_max());
    F sum = 0;
    for (gt_index column = threadIdx.x; column < classes; column += blockDim.x)
      sum += exp(gt_up(x[column]) - maximum);
    sum = gt_block_reduce(sum, cells, gt_sum());
    if (threadIdx.x == 0) {
      largest[row] = maximum;
      total[row] = sum;
      loss[row] = gt_row_loss(x, targets[row], maximum, sum, classes, ignore_index);
    }
  }
}

template <typename T>
__global__ void cross_entropy_reduce(const gt_float<T> *loss, const long long *targets, T *out,
                                     gt_float<T> *count, gt_index rows, gt_index ignore_index,
                                     gt_index mean) {
  __shared__ gt_float<T> cells[GT_BLOCK];
  gt_reduce_losses(loss, targets, out, count, rows, ignore_index, mean, cells);
}

// Both, for few rows.
template <typename T>
__global__ void cross_entropy_few_rows(const T *logits, const long long *targets, gt_float<T> *loss,
                                       gt_float<T> *largest, gt_float<T> *total, T *out,
                                       gt_float<T> *count, gt_index rows, gt_index classes,
                                       gt_index ignore_index, gt_index mean) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  const gt_index lane = threadIdx.x % 32;
  for (gt_index row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
    const T *x = logits + row * classes;
    F maximum = -gt_infinity<F>();
    for (gt_index column = lane; column < classes; column += 32)
      maximum = gt_max()(maximum, gt_up(x[column]));
    maximum = gt_warp_reduce(maximum, gt_max());
    F sum = 0;
    for (gt_index column = lane; column < classes; column += 32)
      sum += exp(gt_up(x[column]) - maximum);
    sum = gt_warp_reduce(sum, gt_sum());
    if (lane == 0) {
      largest[row] = maximum;
      total[row] = sum;
      loss[row] = gt_row_loss(x, targets[row], maximum, sum, classes, ignore_index);
    }
  }
  __syncthreads();  // the losses are read by other threads
  gt_reduce_losses(loss, targets, out, count, rows, ignore_index, mean, cells);
}

// dlogits = (softmax(logits) - onehot(target)) * g[row * g_stride] / (count ? *count : 1).
// g_stride is 1 for row gradients and 0 for a scalar; count is NULL unless the forward took the
// mean.
template <typename T>
__global__ void cross_entropy_backward(const T *logits, const long long *targets,
                                       const gt_float<T> *largest, const gt_float<T> *total,
                                       const gt_float<T> *g, const gt_float<T> *count, T *dlogits,
                                       gt_index rows, gt_index classes, gt_index ignore_index,
                                       gt_index g_stride) {
  typedef gt_float<T> F;
  const gt_index elements = rows * classes;
  for (gt_index at = gt_thread(); at < elements; at += gt_threads()) {
    const gt_index row = at / classes;
    const gt_index target = targets[row];
    F value = 0;
    if (target != ignore_index) {
      const bool outside = target < 0 || target >= classes;
      const F scale = g[row * g_stride] / (count ? *count : F(1));
      const F onehot = at - row * classes == target ? 1 : 0;
      const F p = exp(gt_up(logits[at]) - largest[row]) / total[row];
      value = outside ? gt_nan<F>() : (p - onehot) * scale;
    }
    dlogits[at] = gt_down<T>(value);
  }
}

// Launch: forward grid (rows), block (<= GT_BLOCK); reduce grid (1), block (<= GT_BLOCK); few_rows
// grid (1), block (whole warps, <= GT_BLOCK); backward a thread to an element. No dynamic shared memory.
