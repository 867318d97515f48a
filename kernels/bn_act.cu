// Batch norm + activation: z = act((x - mean) / sqrt(var + eps) * weight + bias), in place or not,
// and its backward from z alone where the activation can be inverted, else from x.
//
// Layout: x, z, g, dx contiguous (n, c, s); mean, var, sum_* (c), weight, bias (c) or NULL in
// gt_float<T>; var is biased. `_last` kernels are for channels last: s is 1, n counts all
// positions, and in the place of s stands `tile` (see bn_act.cuh). weight is positive where
// anything is made from z; with absolute = 1 it is |weight| + eps.
// Traffic per element: statistics read 1; forward reads 1, writes 1; reduce reads 2; backward reads
// 2, writes 1; input reads 1, writes 1. `_on_chip`, for channels that fit into shared memory:
// forward with statistics reads 1, writes 1; backward with the sums reads 2, writes 1.
// Statistics: one pass over x. The mean and the squared deviations from it are taken of the few
// values that a thread has loaded, and combined by Chan's formula (Chan, Golub, LeVeque 1979). A
// mean carries what its rounding left: one that is far larger than the deviation does no harm.
// In place: z may be x; dx may be g, z or x; hence no __restrict__.
#include "bn_act.cuh"

// mean and var of every channel. partials: 4 numbers for each channel and blockIdx.y; tickets: a
// zero for each blockIdx.x; both NULL where gridDim.y is 1. Without tickets it writes partials
// only.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_statistics(const T *x, gt_float<T> *mean, gt_float<T> *var,
                      gt_moments<gt_float<T>> *partials, unsigned *tickets, gt_index n, gt_index c,
                      gt_index s) {
  typedef gt_float<T> F;
  __shared__ gt_moments<F> shared[GT_BLOCK / 32];
  gt_moments<F> *const cells = shared;
  gt_by_width<T>(s, gt_address(x), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_forwards(), n, c, s);
    gt_statistics(walk, x, mean, var, partials, tickets, c, cells);
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_statistics_last(const T *x, gt_float<T> *mean, gt_float<T> *var,
                           gt_moments<gt_float<T>> *partials, unsigned *tickets, gt_index n,
                           gt_index c, gt_index tile) {
  typedef gt_float<T> F;
  __shared__ gt_moments<F> shared[gt_width<T> * GT_BLOCK];
  gt_moments<F> *const cells = shared;
  gt_by_width<T>(c, gt_address(x), [&](auto width) {
    const gt_channels_last<decltype(width)::value> walk(gt_forwards(), n, c, tile);
    gt_statistics(walk, x, mean, var, partials, tickets, c, cells);
  });
}

// z, stored inside the open range of the activation if clamp. partials, or NULL: what `parts`
// blocks of bn_act_statistics found; mean and var are then written. Running averages (c) or NULL:
// see gt_running.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_forward(const T *x, gt_float<T> *mean, gt_float<T> *var,
                   const gt_float<T> *weight, const gt_float<T> *bias, T *z, gt_index n, gt_index c,
                   gt_index s, double eps, gt_index activation, double parameter, gt_index absolute,
                   gt_index clamp, const gt_moments<gt_float<T>> *partials, gt_index parts,
                   gt_float<T> *running_mean, gt_float<T> *running_var, long long *batches,
                   double momentum, double unbiased) {
  typedef gt_float<T> F;
  __shared__ gt_moments<F> shared[GT_BLOCK / 32];
  gt_moments<F> *const cells = shared;
  const gt_running<F> running = {running_mean, running_var, batches, momentum, unbiased};
  const gt_range<F> range =
      clamp ? gt_activation_range<T>(activation, F(parameter)) : gt_everything<F>();
  gt_by_width<T>(s, gt_address(x) | gt_address(z), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_backwards(), n, c, s);
    const gt_channel_statistics<decltype(walk), F> own(walk, mean, var, partials, parts, running, c,
                                                       cells);
    const gt_normals<decltype(walk), F> normals(walk, own, weight, bias, c, eps, absolute);
    gt_forward(walk, x, normals.of, z, activation, F(parameter), range);
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_forward_last(const T *x, gt_float<T> *mean, gt_float<T> *var,
                        const gt_float<T> *weight, const gt_float<T> *bias, T *z, gt_index n,
                        gt_index c, gt_index tile, double eps, gt_index activation,
                        double parameter, gt_index absolute, gt_index clamp,
                        const gt_moments<gt_float<T>> *partials, gt_index parts,
                        gt_float<T> *running_mean, gt_float<T> *running_var, long long *batches,
                        double momentum, double unbiased) {
  typedef gt_float<T> F;
  __shared__ gt_moments<F> shared[gt_width<T> * GT_BLOCK];
  gt_moments<F> *const cells = shared;
  const gt_running<F> running = {running_mean, running_var, batches, momentum, unbiased};
  const gt_range<F> range =
      clamp ? gt_activation_range<T>(activation, F(parameter)) : gt_everything<F>();
  gt_by_width<T>(c, gt_address(x) | gt_address(z), [&](auto width) {
    const gt_channels_last<decltype(width)::value> walk(gt_backwards(), n, c, tile);
    const gt_channel_statistics<decltype(walk), F> own(walk, mean, var, partials, parts, running, c,
                                                       cells);
    const gt_normals<decltype(walk), F> normals(walk, own, weight, bias, c, eps, absolute);
    gt_forward(walk, x, normals.of, z, activation, F(parameter), range);
  });
}

// sum_dy is the gradient of bias, sum_dy_xhat, of dy * xhat, that of weight. partials: 2 numbers
// for each channel and blockIdx.y; tickets as in bn_act_statistics.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_reduce(const T *g, const T *z, const gt_float<T> *mean, const gt_float<T> *var,
                  const gt_float<T> *weight, const gt_float<T> *bias, gt_float<T> *sum_dy,
                  gt_float<T> *sum_dy_xhat, gt_sums<gt_float<T>> *partials, unsigned *tickets,
                  gt_index n, gt_index c, gt_index s, double eps, gt_index activation,
                  double parameter, gt_index absolute) {
  typedef gt_float<T> F;
  __shared__ gt_sums<F> shared[GT_BLOCK / 32];
  gt_sums<F> *const cells = shared;
  gt_by_width<T>(s, gt_address(g) | gt_address(z), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_forwards(), n, c, s);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps, absolute);
    gt_reduce(gt_terms_of_z(), walk, g, z, normals.of, sum_dy, sum_dy_xhat, partials, tickets, c,
              activation, F(parameter), cells);
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_reduce_last(const T *g, const T *z, const gt_float<T> *mean, const gt_float<T> *var,
                       const gt_float<T> *weight, const gt_float<T> *bias, gt_float<T> *sum_dy,
                       gt_float<T> *sum_dy_xhat, gt_sums<gt_float<T>> *partials, unsigned *tickets,
                       gt_index n, gt_index c, gt_index tile, double eps, gt_index activation,
                       double parameter, gt_index absolute) {
  typedef gt_float<T> F;
  __shared__ gt_sums<F> shared[gt_width<T> * GT_BLOCK];
  gt_sums<F> *const cells = shared;
  gt_by_width<T>(c, gt_address(g) | gt_address(z), [&](auto width) {
    const gt_channels_last<decltype(width)::value> walk(gt_forwards(), n, c, tile);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps, absolute);
    gt_reduce(gt_terms_of_z(), walk, g, z, normals.of, sum_dy, sum_dy_xhat, partials, tickets, c,
              activation, F(parameter), cells);
  });
}

// dx = weight / deviation * (dy - sum_dy / values - xhat * sum_dy_xhat / values), where a channel
// has so many values; without what is subtracted where values is 0 or sum_dy NULL (statistics that
// do not depend on x). partials, or NULL: what `parts` blocks of bn_act_reduce found without
// tickets; the sums are then written.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_backward(const T *g, const T *z, const gt_float<T> *mean, const gt_float<T> *var,
                    const gt_float<T> *weight, const gt_float<T> *bias, gt_float<T> *sum_dy,
                    gt_float<T> *sum_dy_xhat, T *dx, gt_index n, gt_index c, gt_index s,
                    double eps, gt_index activation, double parameter, gt_index absolute,
                    double values, const gt_sums<gt_float<T>> *partials, gt_index parts) {
  typedef gt_float<T> F;
  __shared__ gt_sums<F> shared[GT_BLOCK / 32];
  gt_sums<F> *const cells = shared;
  gt_by_width<T>(s, gt_address(g) | gt_address(z) | gt_address(dx), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_backwards(), n, c, s);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps, absolute);
    gt_backward(gt_terms_of_z(), walk, g, z, normals.of, sum_dy, sum_dy_xhat, values, dx, c,
                activation, F(parameter), partials, parts, cells);
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_backward_last(const T *g, const T *z, const gt_float<T> *mean, const gt_float<T> *var,
                         const gt_float<T> *weight, const gt_float<T> *bias,
                         gt_float<T> *sum_dy, gt_float<T> *sum_dy_xhat, T *dx,
                         gt_index n, gt_index c, gt_index tile, double eps, gt_index activation,
                         double parameter, gt_index absolute, double values,
                         const gt_sums<gt_float<T>> *partials, gt_index parts) {
  typedef gt_float<T> F;
  __shared__ gt_sums<F> shared[gt_width<T> * GT_BLOCK];
  gt_sums<F> *const cells = shared;
  gt_by_width<T>(c, gt_address(g) | gt_address(z) | gt_address(dx), [&](auto width) {
    const gt_channels_last<decltype(width)::value> walk(gt_backwards(), n, c, tile);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps, absolute);
    gt_backward(gt_terms_of_z(), walk, g, z, normals.of, sum_dy, sum_dy_xhat, values, dx, c,
                activation, F(parameter), partials, parts, cells);
  });
}

// x, rebuilt from z.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_input(const T *z, const gt_float<T> *mean, const gt_float<T> *var,
                 const gt_float<T> *weight, const gt_float<T> *bias, T *x, gt_index n, gt_index c,
                 gt_index s, double eps, gt_index activation, double parameter, gt_index absolute) {
  typedef gt_float<T> F;
  gt_by_width<T>(s, gt_address(x) | gt_address(z), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_forwards(), n, c, s);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps, absolute);
    gt_input(walk, z, normals.of, x, activation, F(parameter));
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    bn_act_input_last(const T *z, const gt_float<T> *mean, const gt_float<T> *var,
                      const gt_float<T> *weight, const gt_float<T> *bias, T *x, gt_index n,
                      gt_index c, gt_index tile, double eps, gt_index activation,
                      double parameter, gt_index absolute) {
  typedef gt_float<T> F;
  gt_by_width<T>(c, gt_address(x) | gt_address(z), [&](auto width) {
    const gt_channels_last<decltype(width)::value> walk(gt_forwards(), n, c, tile);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps, absolute);
    gt_input(walk, z, normals.of, x, activation, F(parameter));
  });
}

// Statistics and forward. Dynamic shared memory: n * s elements of T.
template <typename T>
__global__ void __launch_bounds__(GT_CHIP_BLOCK, 1)  // at most 128 registers
    bn_act_forward_on_chip(const T *x, gt_float<T> *mean, gt_float<T> *var,
                           const gt_float<T> *weight, const gt_float<T> *bias, T *z, gt_index n,
                           gt_index c, gt_index s, double eps, gt_index activation,
                           double parameter, gt_index absolute, gt_index clamp,
                           gt_float<T> *running_mean, gt_float<T> *running_var,
                           long long *batches, double momentum, double unbiased) {
  typedef gt_float<T> F;
  extern __shared__ __align__(16) unsigned char slice[];
  __shared__ gt_moments<F> shared[GT_CHIP_BLOCK / 32];
  gt_moments<F> *const cells = shared;
  const gt_running<F> running = {running_mean, running_var, batches, momentum, unbiased};
  T *const kept = reinterpret_cast<T *>(slice);
  const gt_range<F> range =
      clamp ? gt_activation_range<T>(activation, F(parameter)) : gt_everything<F>();
  gt_by_width<T>(s, gt_address(x) | gt_address(z), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_forwards(), n, c, s);
    gt_forward_on_chip(walk, x, mean, var, weight, bias, z, eps, absolute != 0, activation,
                       F(parameter), range, running, kept, cells);
  });
}

// Sums and dx; with absolute = 1 sum_dy_xhat is the gradient of the weight itself, in bn_act_reduce
// that of |weight| + eps. Dynamic shared memory: 2 * n * s elements of T.
template <typename T>
__global__ void __launch_bounds__(GT_CHIP_BLOCK, 1)  // at most 128 registers
    bn_act_backward_on_chip(const T *g, const T *z, const gt_float<T> *mean, const gt_float<T> *var,
                            const gt_float<T> *weight, const gt_float<T> *bias, gt_float<T> *sum_dy,
                            gt_float<T> *sum_dy_xhat, T *dx, gt_index n, gt_index c, gt_index s,
                            double eps, gt_index activation, double parameter, gt_index absolute,
                            gt_index training) {
  typedef gt_float<T> F;
  extern __shared__ __align__(16) unsigned char slice[];
  __shared__ gt_sums<F> shared[GT_CHIP_BLOCK / 32];
  gt_sums<F> *const cells = shared;
  T *const kept = reinterpret_cast<T *>(slice);
  gt_by_width<T>(s, gt_address(g) | gt_address(z) | gt_address(dx), [&](auto width) {
    const gt_channels_first<decltype(width)::value> walk(gt_forwards(), n, c, s);
    const gt_normals<decltype(walk), F> normals(walk, mean, var, weight, bias, c, eps, absolute);
    gt_backward_on_chip(gt_terms_of_z(), walk, g, z, normals.of, sum_dy, sum_dy_xhat, dx, n, s,
                        activation, F(parameter), training != 0, kept, cells);
  });
}

// Launch: grid (c, parts), channels last (ceil(c / tile), parts), on chip (c). Blocks are
// one-dimensional, of whole warps, at most GT_BLOCK threads, GT_CHIP_BLOCK on chip; channels last a
// power of two that is at least tile.
