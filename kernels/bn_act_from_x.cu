// The backward of batch norm + activation from x: for all activations, also those that cannot be
// inverted. Statistics and forward are those of bn_act.cu.
//
// Layout and launch: as in bn_act.cu.
// Traffic per element: reduce reads 2; backward reads 2, writes 1.
// In place: dx may be g or x; hence no __restrict__.
#include "bn_act.cuh"

// sum_dy is the gradient of bias, sum_dy_xhat, of dy * xhat, that of weight. partials: 2 numbers
// for each channel and blockIdx.y; tickets as in bn_act_statistics (bn_act.cu).
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_reduce_from_x(const T *g, const T *x, const gt_float<T> *mean, const gt_float<T> *var,
                         const gt_float<T> *weight, const gt_float<T> *bias, gt_float<T> *sum_dy,
                         gt_float<T> *sum_dy_xhat, gt_sums<gt_float<T>> *partials,
                         unsigned *tickets, gt_index n, gt_index c, gt_index s, double eps,
                         gt_index activation, double parameter) {
  typedef gt_float<T> F;
  __shared__ gt_sums<F> shared[GT_BLOCK / 32];
  gt_sums<F> *const cells = shared;
  gt_by_width<T>(s, gt_address(g) | gt_address(x), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_forwards(), n, c, s);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps);
    gt_reduce(gt_terms_of_x(), walk, g, x, normals.of, sum_dy, sum_dy_xhat, partials, tickets, c,
              activation, F(parameter), cells);
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_reduce_from_x_last(const T *g, const T *x, const gt_float<T> *mean,
                              const gt_float<T> *var, const gt_float<T> *weight,
                              const gt_float<T> *bias, gt_float<T> *sum_dy,
                              gt_float<T> *sum_dy_xhat, gt_sums<gt_float<T>> *partials,
                              unsigned *tickets, gt_index n, gt_index c, gt_index tile, double eps,
                              gt_index activation, double parameter) {
  typedef gt_float<T> F;
  __shared__ gt_sums<F> shared[gt_width<T> * GT_BLOCK];
  gt_sums<F> *const cells = shared;
  gt_by_width<T>(c, gt_address(g) | gt_address(x), [&](auto width) {
    const gt_channels_last<decltype(width)::value> walk(gt_forwards(), n, c, tile);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps);
    gt_reduce(gt_terms_of_x(), walk, g, x, normals.of, sum_dy, sum_dy_xhat, partials, tickets, c,
              activation, F(parameter), cells);
  });
}

// dx = weight / deviation * (dy - sum_dy / values - xhat * sum_dy_xhat / values), where a channel
// has so many values; without what is subtracted where values is 0 or sum_dy NULL (statistics that
// do not depend on x). partials, or NULL: what `parts` blocks of bn_act_reduce_from_x found without
// tickets; the sums are then written.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_backward_from_x(const T *g, const T *x, const gt_float<T> *mean, const gt_float<T> *var,
                           const gt_float<T> *weight, const gt_float<T> *bias,
                           gt_float<T> *sum_dy, gt_float<T> *sum_dy_xhat, T *dx,
                           gt_index n, gt_index c, gt_index s, double eps, gt_index activation,
                           double parameter, double values,
                           const gt_sums<gt_float<T>> *partials, gt_index parts) {
  typedef gt_float<T> F;
  __shared__ gt_sums<F> shared[GT_BLOCK / 32];
  gt_sums<F> *const cells = shared;
  gt_by_width<T>(s, gt_address(g) | gt_address(x) | gt_address(dx), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_backwards(), n, c, s);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps);
    gt_backward(gt_terms_of_x(), walk, g, x, normals.of, sum_dy, sum_dy_xhat, values, dx, c,
                activation, F(parameter), partials, parts, cells);
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_backward_from_x_last(const T *g, const T *x, const gt_float<T> *mean,
                                const gt_float<T> *var, const gt_float<T> *weight,
                                const gt_float<T> *bias, gt_float<T> *sum_dy,
                                gt_float<T> *sum_dy_xhat, T *dx, gt_index n, gt_index c,
                                gt_index tile, double eps, gt_index activation, double parameter,
                                double values,
                                const gt_sums<gt_float<T>> *partials, gt_index parts) {
  typedef gt_float<T> F;
  __shared__ gt_sums<F> shared[gt_width<T> * GT_BLOCK];
  gt_sums<F> *const cells = shared;
  gt_by_width<T>(c, gt_address(g) | gt_address(x) | gt_address(dx), [&](auto width) {
    const gt_channels_last<decltype(width)::value> walk(gt_backwards(), n, c, tile);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps);
    gt_backward(gt_terms_of_x(), walk, g, x, normals.of, sum_dy, sum_dy_xhat, values, dx, c,
                activation, F(parameter), partials, parts, cells);
  });
}
