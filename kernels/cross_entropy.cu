// Cross entropy from logits with integer targets, fused: no (rows, classes) temporary.
//
// Layout: logits contiguous (rows, classes), targets int64 (rows); rows as in rows.cuh.
// Traffic per logit: forward reads 1; backward reads 1, writes 1.
// Losses, their mean and gradients, maxima, sums and the count are in gt_float<T>: halves are read
// as they are. Rows whose target is ignore_index have loss 0 and gradient 0. A target outside
// 0..classes-1 reads nothing outside the row: it makes loss and gradient NaN.
// In place: dlogits may be logits; hence no __restrict__.
#include "half.cuh"
#include "rows.cuh"

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
// Each row of threads adds up all of them. Every thread of the block must call it.
template <typename F>
__device__ inline void gt_reduce_losses(const F *loss, const long long *targets, F *out, F *count,
                                        gt_index rows, gt_index ignore_index, gt_index mean,
                                        F *cells) {
  F sum = 0;
  F counted = 0;
#pragma unroll 4
  for (gt_index row = threadIdx.x; row < rows; row += blockDim.x) {
    sum += loss[row];
    counted += targets[row] == ignore_index ? 0 : 1;
  }
  sum = gt_row_reduce(sum, cells, gt_sum());
  counted = gt_row_reduce(counted, cells, gt_sum());
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    *out = mean ? sum / counted : sum;
    *count = counted;
  }
}

// loss[row], and what backward needs, largest[row] and total[row], of the rows that this block's
// threads take; W logits at once.
template <int W, typename T, typename F>
__device__ inline void gt_row_losses(const T *logits, const long long *targets, F *loss, F *largest,
                                     F *total, gt_index rows, gt_index classes,
                                     gt_index ignore_index, F *cells) {
  for (gt_index first = static_cast<gt_index>(blockIdx.x) * blockDim.y; first < rows;
       first += static_cast<gt_index>(gridDim.x) * blockDim.y) {
    const gt_index row = first + threadIdx.y;
    const T *const arrays[1] = {logits + row * classes};
    gt_row<T, W, 1> own(arrays, classes, row < rows);
    gt_exponentials<F> found;
    own.each([&](gt_index, const auto &packs) { found.add(packs[0]); });
    found.combine(cells);
    if (threadIdx.x == 0 && row < rows) {
      largest[row] = found.largest;
      total[row] = found.total;
      loss[row] = gt_row_loss(arrays[0], targets[row], found.largest, found.total, classes,
                              ignore_index);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    cross_entropy_forward(const T *logits, const long long *targets, gt_float<T> *loss,
                          gt_float<T> *largest, gt_float<T> *total, gt_index rows, gt_index classes,
                          gt_index ignore_index) {
  __shared__ gt_float<T> shared_cells[GT_BLOCK / 32];
  gt_float<T> *const cells = shared_cells;
  gt_by_width<T>(classes, gt_address(logits), [&](auto width) {
    gt_row_losses<decltype(width)::value>(logits, targets, loss, largest, total, rows, classes,
                                          ignore_index, cells);
  });
}

template <typename T>
__global__ void cross_entropy_reduce(const gt_float<T> *loss, const long long *targets,
                                     gt_float<T> *out, gt_float<T> *count, gt_index rows,
                                     gt_index ignore_index, gt_index mean) {
  __shared__ gt_float<T> cells[GT_BLOCK / 32];
  gt_reduce_losses(loss, targets, out, count, rows, ignore_index, mean, cells);
}

// Both, for few rows: one block, a row to a warp.
template <typename T>
__global__ void cross_entropy_few_rows(const T *logits, const long long *targets, gt_float<T> *loss,
                                       gt_float<T> *largest, gt_float<T> *total, gt_float<T> *out,
                                       gt_float<T> *count, gt_index rows, gt_index classes,
                                       gt_index ignore_index, gt_index mean) {
  __shared__ gt_float<T> cells[GT_BLOCK / 32];
  gt_row_losses<1>(logits, targets, loss, largest, total, rows, classes, ignore_index, cells);
  __syncthreads();  // the losses are read by other threads
  gt_reduce_losses(loss, targets, out, count, rows, ignore_index, mean, cells);
}

// dlogits = (softmax(logits) - onehot(target)) * g[row * g_stride] / (count ? *count : 1).
// g_stride is 1 for row gradients and 0 for a scalar; count is NULL unless the forward took the
// mean.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    cross_entropy_backward(const T *logits, const long long *targets, const gt_float<T> *largest,
                           const gt_float<T> *total, const gt_float<T> *g, const gt_float<T> *count,
                           T *dlogits, gt_index rows, gt_index classes, gt_index ignore_index,
                           gt_index g_stride) {
  typedef gt_float<T> F;
  gt_by_width<T>(classes, gt_address(logits) | gt_address(dlogits), [&](auto width) {
    constexpr int W = decltype(width)::value;
    for (gt_index row = static_cast<gt_index>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
         row += static_cast<gt_index>(gridDim.x) * blockDim.y) {
      const gt_index target = targets[row];
      const bool ignored = target == ignore_index, outside = target < 0 || target >= classes;
      const F scale = outside ? gt_nan<F>() : g[row * g_stride] / (count ? *count : F(1));
      const F most = largest[row], inverse = F(1) / total[row];
      const T *const arrays[1] = {logits + row * classes};
      gt_row<T, W, 1> own(arrays, classes, true);
      own.each([&](gt_index column, const auto &packs) {
        const gt_index ahead = target - column;
        const int hit = ahead >= 0 && ahead < W ? static_cast<int>(ahead) : -1;
        gt_pack<T, W> result;
        for (int w = 0; w < W; ++w) {
          const F p = exp(gt_up(packs[0].values[w]) - most) * inverse;
          result.values[w] = gt_down<T>(ignored ? F(0) : (p - F(w == hit)) * scale);
        }
        gt_store(dlogits + row * classes + column, result);
      });
    }
  });
}

// Launch: forward and backward grid (any number of blocks), block (threads, rows) as in rows.cuh,
// <= GT_BLOCK together; reduce grid (1), block (whole warps, <= GT_BLOCK); few_rows grid (1), block
// (32, rows), <= GT_BLOCK together. No dynamic shared memory.
