// Batch norm + activation, out of place: z = act((x - mean) / sqrt(var + eps) * weight + bias).
//
// The naive rung: a block to a channel, a thread to an element, easy to check by eye. The library
// launches bn_act.cu; these kernels are the reference that it is measured against
// (profiling/ladder_bn_act.py).
//
// Layout: x contiguous (N, C, S), S the product of the spatial axes; weight and bias (C) or NULL,
// mean, var and the sums (C), all in gt_float<T>. var is biased and taken in a second pass, so a
// mean far larger than the deviation does no harm.
// Traffic per element: statistics read 2; forward reads 1, writes 1; backward sums read 2; backward
// dx reads 2, writes 1.
// The activation is a code of gt_activation (activation.cuh) with one parameter; its derivative is
// taken at the pre-activation, which is recomputed from x.
// In place: z may be x where x is not needed again; dx may be g or x; hence no __restrict__.
#include "activation.cuh"
#include "half.cuh"
#include "reduce.cuh"

// mean[c] and var[c] over images and positions, a block to a channel.
template <typename T>
__global__ void batch_norm_statistics(const T *x, gt_float<T> *mean, gt_float<T> *var, gt_index n,
                                      gt_index c, gt_index s) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  const gt_index count = n * s;
  for (gt_index channel = blockIdx.x; channel < c; channel += gridDim.x) {
    F sum = 0;
    for (gt_index i = threadIdx.x; i < count; i += blockDim.x)
      sum += gt_up(x[(i / s * c + channel) * s + i % s]);
    const F average = gt_block_reduce(sum, cells, gt_sum()) / F(count);
    F squares = 0;
    F rest = 0;  // the sum of what the rounding of the average left: corrects a huge mean
    for (gt_index i = threadIdx.x; i < count; i += blockDim.x) {
      const F centred = gt_up(x[(i / s * c + channel) * s + i % s]) - average;
      squares += centred * centred;
      rest += centred;
    }
    squares = gt_block_reduce(squares, cells, gt_sum());
    rest = gt_block_reduce(rest, cells, gt_sum());
    if (threadIdx.x == 0) {
      const F correction = rest / F(count);
      mean[channel] = average + correction;
      var[channel] = squares / F(count) - correction * correction;
    }
  }
}

template <typename T>
__global__ void batch_norm_forward(const T *x, const gt_float<T> *mean, const gt_float<T> *var,
                                   const gt_float<T> *weight, const gt_float<T> *bias, T *z,
                                   gt_index n, gt_index c, gt_index s, double eps,
                                   gt_index activation, double parameter) {
  typedef gt_float<T> F;
  const gt_index elements = n * c * s;
  for (gt_index at = gt_thread(); at < elements; at += gt_threads()) {
    const gt_index channel = at / s % c;
    F y = (gt_up(x[at]) - mean[channel]) / sqrt(var[channel] + F(eps));
    if (weight) y *= weight[channel];
    if (bias) y += bias[channel];
    z[at] = gt_down<T>(gt_activate(activation, y, F(parameter)));
  }
}

// xhat and dy = g * act'(y) of one element.
template <typename T>
__device__ inline void gt_batch_norm_terms(T x, T g, gt_float<T> mean, gt_float<T> rstd,
                                           gt_float<T> weight, gt_float<T> bias,
                                           gt_index activation, gt_float<T> parameter,
                                           gt_float<T> *xhat, gt_float<T> *dy) {
  *xhat = (gt_up(x) - mean) * rstd;
  *dy = gt_activate_grad(activation, gt_up(g), *xhat * weight + bias, parameter);
}

// sum_dy[c] = sum of dy (the gradient of bias), sum_dy_xhat[c] = sum of dy * xhat (that of weight).
template <typename T>
__global__ void batch_norm_backward_reduce(const T *g, const T *x, const gt_float<T> *mean,
                                           const gt_float<T> *var, const gt_float<T> *weight,
                                           const gt_float<T> *bias, gt_float<T> *sum_dy,
                                           gt_float<T> *sum_dy_xhat, gt_index n, gt_index c,
                                           gt_index s, double eps, gt_index activation,
                                           double parameter) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK];
  const gt_index count = n * s;
  for (gt_index channel = blockIdx.x; channel < c; channel += gridDim.x) {
    const F rstd = F(1) / sqrt(var[channel] + F(eps));
    const F scale = weight ? weight[channel] : F(1);
    const F shift = bias ? bias[channel] : F(0);
    F sum = 0;
    F dot = 0;
    for (gt_index i = threadIdx.x; i < count; i += blockDim.x) {
      const gt_index at = (i / s * c + channel) * s + i % s;
      F xhat, dy;
      gt_batch_norm_terms(x[at], g[at], mean[channel], rstd, scale, shift, activation, F(parameter),
                          &xhat, &dy);
      sum += dy;
      dot += dy * xhat;
    }
    sum = gt_block_reduce(sum, cells, gt_sum());
    dot = gt_block_reduce(dot, cells, gt_sum());
    if (threadIdx.x == 0) {
      sum_dy[channel] = sum;
      sum_dy_xhat[channel] = dot;
    }
  }
}

// dx = weight * rstd * (dy - sum_dy / count - xhat * sum_dy_xhat / count), with count = n * s; with
// training = 0 (fixed statistics) dx = weight * rstd * dy and the sums are not read.
template <typename T>
__global__ void batch_norm_backward(const T *g, const T *x, const gt_float<T> *mean,
                                    const gt_float<T> *var, const gt_float<T> *weight,
                                    const gt_float<T> *bias, const gt_float<T> *sum_dy,
                                    const gt_float<T> *sum_dy_xhat,
                                    T *dx, gt_index n, gt_index c, gt_index s, double eps,
                                    gt_index activation, double parameter, gt_index training) {
  typedef gt_float<T> F;
  const F count = F(n * s);
  const gt_index elements = n * c * s;
  for (gt_index at = gt_thread(); at < elements; at += gt_threads()) {
    const gt_index channel = at / s % c;
    const F rstd = F(1) / sqrt(var[channel] + F(eps));
    const F scale = weight ? weight[channel] : F(1);
    const F shift = bias ? bias[channel] : F(0);
    F xhat, dy;
    gt_batch_norm_terms(x[at], g[at], mean[channel], rstd, scale, shift, activation, F(parameter),
                        &xhat, &dy);
    if (training) dy -= sum_dy[channel] / count + xhat * (sum_dy_xhat[channel] / count);
    dx[at] = gt_down<T>(scale * rstd * dy);
  }
}

// Launch: statistics and backward_reduce grid (C), block (<= GT_BLOCK); forward and backward a
// thread to an element. No dynamic shared memory.
