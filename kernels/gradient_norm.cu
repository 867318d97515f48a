// The norm of all gradients from the sums that the blocks of a launch have left, and the factor that
// clips to it. One block, so that the order of the sums is fixed.
//
// Layout: parts (count,) double; norm and factor are single numbers. Traffic per part: reads 1.
#include "half.cuh"
#include "reduce.cuh"

// order is above 0, or infinite. A norm of NaN gives a factor of NaN.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK)
gradient_norm(const double *parts, gt_index count, double order, double most, gt_float<T> *norm,
              double *factor) {
  typedef gt_float<T> F;
  __shared__ double cells[GT_BLOCK];
  const bool largest = order == gt_infinity<double>();
  double total = 0;
  for (gt_index i = threadIdx.x; i < count; i += GT_BLOCK)
    total = largest ? gt_max()(total, parts[i]) : total + parts[i];
  total = largest ? gt_block_reduce(total, cells, gt_max())
                  : gt_block_reduce(total, cells, gt_sum());
  if (threadIdx.x != 0) return;
  const F root = F(largest ? total : order == 2 ? sqrt(total) : pow(total, 1 / order));
  const F share = F(most) / (root + F(1e-6));  // 1e-6 is PyTorch's guard against a norm of 0
  *norm = root;
  *factor = share > F(1) ? F(1) : share;
}
