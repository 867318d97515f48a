// One step of SGD and of AdamW for one element, in place, by PyTorch's formulas.
//
// Layout: none. Traffic per element: sgd reads 2, writes 1; with momentum reads 3, writes 2; adamw
// reads 4, writes 3. P is the parameter's type, S the type of its state, G that of the gradient;
// the step computes in gt_float<P>. Hyperparameters arrive as double; what is derived from them is
// derived in double.
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

// correction1 = 1 - beta1^t and correction2 = 1 - beta2^t for the step number t = 1, 2, ...
template <typename P, typename S, typename G>
__device__ inline void gt_adamw(P &parameter, S &first_moment, S &second_moment, G gradient,
                                double rate, double beta1, double beta2, double eps,
                                double weight_decay, double correction1, double correction2) {
  typedef gt_float<P> F;
  const F g = gt_up(gradient);
  const F p = gt_up(parameter) * F(1.0 - rate * weight_decay);
  const F m = F(gt_up(first_moment)) + F(1.0 - beta1) * (g - F(gt_up(first_moment)));
  const F v = F(beta2) * F(gt_up(second_moment)) + F(1.0 - beta2) * g * g;
  first_moment = static_cast<S>(gt_float<S>(m));
  second_moment = static_cast<S>(gt_float<S>(v));
  const F scale = sqrt(v) / F(sqrt(correction2)) + F(eps);
  parameter = static_cast<P>(p - F(rate / correction1) * (m / scale));
}
