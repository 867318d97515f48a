// One step of an optimizer for one element, in place: SGD, Adam (also AdamW and AMSGrad) by
// PyTorch's formulas, Lion (Chen et al. 2023); then the moving average of weights, and clipping.
//
// Layout: none. Traffic per element: sgd reads 2, writes 1; with momentum reads 3, writes 2; adam
// reads 4, writes 3; amsgrad reads 5, writes 4; lion reads 3, writes 2; average reads 2, writes 1;
// scale and clip read 1, write 1. P is the parameter's type, S the type of its state, G that of
// the gradient; the step computes in gt_float<P>. Hyperparameters arrive as double; what is
// derived from them is derived in double.
#pragma once

#include "number.cuh"

template <typename P, typename G>
__device__ inline void gt_sgd(P &parameter, G gradient, double rate, double weight_decay) {
  typedef gt_float<P> F;
  const F p = gt_up(parameter);
  parameter = static_cast<P>(p - F(rate) * (F(gt_up(gradient)) + F(weight_decay) * p));
}

// first: the step that makes the momentum, which then is the gradient itself, undamped.
template <typename P, typename S, typename G>
__device__ inline void gt_sgd_momentum(P &parameter, S &momentum, G gradient, double rate,
                                       double weight_decay, double keep, double dampening,
                                       bool nesterov, bool first) {
  typedef gt_float<P> F;
  const F p = gt_up(parameter);
  const F g = F(gt_up(gradient)) + F(weight_decay) * p;
  const F m = first ? g : F(keep) * F(gt_up(momentum)) + F(1.0 - dampening) * g;
  momentum = static_cast<S>(gt_float<S>(m));
  parameter = static_cast<P>(p - F(rate) * (nesterov ? g + F(keep) * m : m));
}

// The running means of the gradient (m) and of its square (v). v is at most `most`, the largest
// number of its state, and a finite gradient counts as at most `limit`, whose share of v is as
// large: as infinity v would be one for ever, and the parameter would stand still. A v that was
// infinite or NaN before stays so.
template <typename F, typename S>
__device__ inline void gt_adam_moments(S &first_moment, S &second_moment, F g, double beta1,
                                       double beta2, double most, double limit, F &m, F &v) {
  const F before = gt_up(second_moment);
  const bool finite = g - g == F(0) && before - before == F(0);
  if (finite) g = g > F(limit) ? F(limit) : g < -F(limit) ? -F(limit) : g;
  m = F(gt_up(first_moment)) + F(1.0 - beta1) * (g - F(gt_up(first_moment)));
  v = F(beta2) * before + F(1.0 - beta2) * g * g;
  if (finite && v > F(most)) v = F(most);
  first_moment = static_cast<S>(gt_float<S>(m));
  second_moment = static_cast<S>(gt_float<S>(v));
}

// correction1 = 1 - beta1^t and correction2 = 1 - beta2^t for the step number t = 1, 2, ...;
// shrink is AdamW's weight decay.
template <typename P>
__device__ inline void gt_adam_move(P &parameter, gt_float<P> m, gt_float<P> v, double rate,
                                    double eps, double shrink, double correction1,
                                    double correction2) {
  typedef gt_float<P> F;
  const F p = gt_up(parameter) * F(1.0 - rate * shrink);
  const F scale = sqrt(v) / F(sqrt(correction2)) + F(eps);
  parameter = static_cast<P>(p - F(rate / correction1) * (m / scale));
}

template <typename P, typename S, typename G>
__device__ inline void gt_adam(P &parameter, S &first_moment, S &second_moment, G gradient,
                               double rate, double beta1, double beta2, double eps, double shrink,
                               double correction1, double correction2, double most,
                               double limit) {
  gt_float<P> m, v;
  gt_adam_moments(first_moment, second_moment, gt_float<P>(gt_up(gradient)), beta1, beta2, most,
                  limit, m, v);
  gt_adam_move(parameter, m, v, rate, eps, shrink, correction1, correction2);
}

// Adam that divides by the largest v so far.
template <typename P, typename S, typename G>
__device__ inline void gt_amsgrad(P &parameter, S &first_moment, S &second_moment,
                                  S &largest_second_moment, G gradient, double rate, double beta1,
                                  double beta2, double eps, double shrink, double correction1,
                                  double correction2, double most, double limit) {
  typedef gt_float<P> F;
  F m, v;
  gt_adam_moments(first_moment, second_moment, F(gt_up(gradient)), beta1, beta2, most, limit, m,
                  v);
  const F before = gt_up(largest_second_moment);
  const F largest = v > before || v != v ? v : before;
  largest_second_moment = static_cast<S>(gt_float<S>(largest));
  gt_adam_move(parameter, m, largest, rate, eps, shrink, correction1, correction2);
}

template <typename P, typename S, typename G>
__device__ inline void gt_lion(P &parameter, S &momentum, G gradient, double rate, double beta1,
                               double beta2, double weight_decay) {
  typedef gt_float<P> F;
  const F g = gt_up(gradient);
  const F m = gt_up(momentum);
  const F c = F(beta1) * m + F(1.0 - beta1) * g;
  const F direction = c > F(0) ? F(1) : c < F(0) ? F(-1) : c;  // NaN stays NaN
  parameter = static_cast<P>(gt_up(parameter) * F(1.0 - rate * weight_decay) - F(rate) * direction);
  momentum = static_cast<S>(gt_float<S>(F(beta2) * m + F(1.0 - beta2) * g));
}

template <typename S, typename T>
__device__ inline void gt_average(S &average, T x, double weight) {
  typedef gt_float<S> F;
  const F a = gt_up(average);
  average = static_cast<S>(a + F(weight) * (F(gt_up(x)) - a));
}

template <typename T>
__device__ inline void gt_scale(T &gradient, double factor) {
  gradient = static_cast<T>(gt_up(gradient) * gt_float<T>(factor));
}

template <typename T>
__device__ inline void gt_clip(T &gradient, double limit) {
  const gt_float<T> g = gt_up(gradient);
  const gt_float<T> most = gt_float<T>(limit);
  gradient = static_cast<T>(g > most ? most : g < -most ? -most : g);  // NaN stays NaN
}

// The larger of two, NaN if one is: combines norms.
__device__ inline double gt_larger(double a, double b) {
  return a > b || a != a ? a : b;
}
