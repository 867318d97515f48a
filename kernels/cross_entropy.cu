// Cross entropy from logits with integer targets, fused: no (rows, classes) temporary.
//
// Layout: logits contiguous (rows, classes), targets int64 (rows), weight (classes) or NULL; rows as
// in rows.cuh. Traffic per logit: forward reads 1; backward reads 1, writes 1.
// The loss of a row is (1 - smoothing) * weight[target] * -log p[target] + smoothing / classes *
// sum(weight * -log p), where a weight is 1 without `weight`.
// Losses, their mean and gradients, maxima, sums, weights and the count are in gt_float<T>: halves
// are read as they are. Rows whose target is ignore_index have loss 0 and gradient 0. A target
// outside 0..classes-1 reads nothing outside the row: it makes loss and gradient NaN.
// In place: dlogits may be logits; hence no __restrict__.
#include "half.cuh"
#include "rows.cuh"

// The classes that targets name, and how much each of them weighs.
template <typename F>
struct gt_classes {
  const long long *targets;
  const F *weight;  // or NULL
  F smoothing;
  gt_index number, ignore_index;

  __device__ bool outside(gt_index target) const { return target < 0 || target >= number; }

  __device__ F weight_of(gt_index target) const { return weight ? weight[target] : F(1); }

  // What the row adds to the divisor of a mean.
  __device__ F counted(gt_index row) const {
    const gt_index target = targets[row];
    if (target == ignore_index || (weight && outside(target))) return 0;
    return weight_of(target);
  }
};

// The sum of a row's logits times the weights of their classes, relative to the largest so far, and
// the sum of the weights.
template <typename F>
struct gt_weighted_sum {
  F sum, mass, base;

  __device__ gt_weighted_sum() : sum(0), mass(0), base(0) {}

  // `weight`: that of the pack's first class, or NULL.
  template <typename T, int W>
  __device__ void add(const gt_pack<T, W> &pack, F largest, const F *weight) {
    move(largest == -gt_infinity<F>() ? F(0) : largest);
    for (int w = 0; w < W; ++w) {
      const F heavy = weight ? weight[w] : F(1);
      sum += heavy * (gt_up(pack.values[w]) - base);
      mass += heavy;
    }
  }

  // Those of a whole row, relative to its largest logit.
  __device__ void combine(F largest, F *cells) {
    move(largest);
    sum = gt_row_reduce(sum, cells, gt_sum());
    mass = gt_row_reduce(mass, cells, gt_sum());
  }

 private:
  __device__ void move(F to) {
    sum += mass * (base - to);
    base = to;
  }
};

// The loss of a row from its largest logit and the sum of the exponentials beside it; one logarithm
// of both would be rounded as a large logit is.
template <typename T, typename F>
__device__ inline F gt_row_loss(const T *x, gt_index target, F maximum, F sum,
                                const gt_weighted_sum<F> &all, const gt_classes<F> &classes) {
  if (target == classes.ignore_index) return 0;
  if (classes.outside(target)) return gt_nan<F>();
  const F log_sum = log(sum);
  F loss = log_sum - (gt_up(x[target]) - maximum);
  if (classes.weight) loss *= classes.weight[target];
  if (classes.smoothing != F(0))
    loss = (F(1) - classes.smoothing) * loss +
           classes.smoothing / F(classes.number) * (all.mass * log_sum - all.sum);
  return loss;
}

// out = the sum of the row losses (mean = 0), or that sum over the weights of the rows that are not
// ignored (mean = 1); count = the sum of these weights. If that is 0 the mean is NaN, as in PyTorch.
// Each row of threads adds up all of them. Every thread of the block must call it.
template <typename F>
__device__ inline void gt_reduce_losses(const F *loss, const gt_classes<F> &classes, F *out,
                                        F *count, gt_index rows, gt_index mean, F *cells) {
  F sum = 0;
  F counted = 0;
#pragma unroll 4
  for (gt_index row = threadIdx.x; row < rows; row += blockDim.x) {
    sum += loss[row];
    counted += classes.counted(row);
  }
  sum = gt_row_reduce(sum, cells, gt_sum());
  counted = gt_row_reduce(counted, cells, gt_sum());
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    *out = !mean ? sum : counted == F(0) ? gt_nan<F>() : sum / counted;
    *count = counted;
  }
}

// loss[row], and what backward needs, largest[row] and total[row], of the rows that this block's
// threads take; W logits at once.
template <int W, typename T, typename F>
__device__ inline void gt_row_losses(const T *logits, const gt_classes<F> &classes, F *loss,
                                     F *largest, F *total, gt_index rows, F *cells) {
  const bool smooth = classes.smoothing != F(0);
  for (gt_index first = static_cast<gt_index>(blockIdx.x) * blockDim.y; first < rows;
       first += static_cast<gt_index>(gridDim.x) * blockDim.y) {
    const gt_index row = first + threadIdx.y;
    const T *const arrays[1] = {logits + row * classes.number};
    gt_row<T, W, 1> own(arrays, classes.number, row < rows);
    gt_exponentials<F> found;
    gt_weighted_sum<F> all;
    own.each([&](gt_index column, const auto &packs) {
      found.add(packs[0]);
      if (smooth)
        all.add(packs[0], found.largest, classes.weight ? classes.weight + column : nullptr);
    });
    found.combine(cells);
    if (smooth) all.combine(found.largest, cells);
    if (threadIdx.x == 0 && row < rows) {
      largest[row] = found.largest;
      total[row] = found.total;
      loss[row] = gt_row_loss(arrays[0], classes.targets[row], found.largest, found.total, all,
                              classes);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    cross_entropy_forward(const T *logits, const long long *targets, const gt_float<T> *weight,
                          gt_float<T> *loss, gt_float<T> *largest, gt_float<T> *total,
                          gt_index rows, gt_index classes, gt_index ignore_index,
                          double smoothing) {
  typedef gt_float<T> F;
  __shared__ F shared_cells[GT_BLOCK / 32];
  F *const cells = shared_cells;
  const gt_classes<F> known = {targets, weight, F(smoothing), classes, ignore_index};
  gt_by_width<T>(classes, gt_address(logits), [&](auto width) {
    gt_row_losses<decltype(width)::value>(logits, known, loss, largest, total, rows, cells);
  });
}

template <typename T>
__global__ void cross_entropy_reduce(const gt_float<T> *loss, const long long *targets,
                                     const gt_float<T> *weight, gt_float<T> *out,
                                     gt_float<T> *count, gt_index rows, gt_index classes,
                                     gt_index ignore_index, gt_index mean) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK / 32];
  const gt_classes<F> known = {targets, weight, F(0), classes, ignore_index};
  gt_reduce_losses(loss, known, out, count, rows, mean, cells);
}

// Both, for few rows: one block, a row to a warp.
template <typename T>
__global__ void cross_entropy_few_rows(const T *logits, const long long *targets,
                                       const gt_float<T> *weight, gt_float<T> *loss,
                                       gt_float<T> *largest, gt_float<T> *total, gt_float<T> *out,
                                       gt_float<T> *count, gt_index rows, gt_index classes,
                                       gt_index ignore_index, gt_index mean, double smoothing) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK / 32];
  const gt_classes<F> known = {targets, weight, F(smoothing), classes, ignore_index};
  gt_row_losses<1>(logits, known, loss, largest, total, rows, cells);
  __syncthreads();  // the losses are read by other threads
  gt_reduce_losses(loss, known, out, count, rows, mean, cells);
}

// dlogits = (softmax(logits) * sum(q) - q) * g[row * g_stride] / (count ? *count : 1), where
// q = weight * smoothing / classes, at the target + weight * (1 - smoothing).
// g_stride is 1 for row gradients and 0 for a scalar; count is NULL unless the forward took the
// mean. mass: the sum of the weights; NULL without `weight` or smoothing.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    cross_entropy_backward(const T *logits, const long long *targets, const gt_float<T> *weight,
                           const gt_float<T> *mass, const gt_float<T> *largest,
                           const gt_float<T> *total, const gt_float<T> *g, const gt_float<T> *count,
                           T *dlogits, gt_index rows, gt_index classes, gt_index ignore_index,
                           gt_index g_stride, double smoothing) {
  typedef gt_float<T> F;
  const gt_classes<F> known = {targets, weight, F(smoothing), classes, ignore_index};
  const F each = known.smoothing / F(classes);
  const F spread = mass ? each * *mass : known.smoothing;
  gt_by_width<T>(classes, gt_address(logits) | gt_address(dlogits), [&](auto width) {
    constexpr int W = decltype(width)::value;
    const auto write = [&](auto smoothed) {
      for (gt_index row = static_cast<gt_index>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
           row += static_cast<gt_index>(gridDim.x) * blockDim.y) {
        const gt_index target = targets[row];
        const bool ignored = target == ignore_index, outside = known.outside(target);
        F scale = outside ? gt_nan<F>() : g[row * g_stride];
        if (count) scale /= *count == F(0) ? gt_nan<F>() : *count;
        const F chosen = (F(1) - known.smoothing) * (outside ? F(1) : known.weight_of(target));
        const F most = largest[row], inverse = (chosen + spread) / total[row];
        const T *const arrays[1] = {logits + row * classes};
        gt_row<T, W, 1> own(arrays, classes, true);
        own.each([&](gt_index column, const auto &packs) {
          const gt_index ahead = target - column;
          const int hit = ahead >= 0 && ahead < W ? static_cast<int>(ahead) : -1;
          gt_pack<T, W> result;
          for (int w = 0; w < W; ++w) {
            F excess = exp(gt_up(packs[0].values[w]) - most) * inverse;
            if constexpr (decltype(smoothed)::value)
              excess -= weight ? each * weight[column + w] : each;
            excess -= w == hit ? chosen : F(0);
            result.values[w] = gt_down<T>(ignored ? F(0) : excess * scale);
          }
          gt_store(dlogits + row * classes + column, result);
        });
      }
    };
    if (known.smoothing != F(0))
      write(gt_constant<1>());
    else
      write(gt_constant<0>());
  });
}

// Launch: forward and backward grid (any number of blocks), block (threads, rows) as in rows.cuh,
// <= GT_BLOCK together; reduce grid (1), block (whole warps, <= GT_BLOCK); few_rows grid (1), block
// (32, rows), <= GT_BLOCK together. No dynamic shared memory.
