// Activations and their gradients, each once: for elementwise one-liners and for raw kernels.
//
// Layout: none, one element at a time. Traffic: that of the caller.
// Functions take storage type T and return gt_float<T> (number.cuh): half types compute in float.
// Parameters (slope, alpha, beta) convert to the compute type, so a double is welcome.
// Conventions:
//   gt_<name>(x)                      the activation
//   gt_<name>_grad(g, x)              g times the derivative, from the INPUT x
//   gt_<name>_grad_from_output(g, y)  the same from the OUTPUT y, where it fixes the derivative
//   gt_<name>_inverse(y)              the input x from the output y, for y inside the open range
// Values at kinks, NaN and infinity are PyTorch's: NaN passes through, a kink takes the left slope.
#pragma once

#include "number.cuh"

// -------------------------------------------------------------------------------------------- relu
template <typename T>
__device__ inline gt_float<T> gt_relu(T x) {
  const gt_float<T> v = gt_up(x);
  return v <= 0 ? gt_float<T>(0) : v;  // this way around NaN stays NaN
}

template <typename T>
__device__ inline gt_float<T> gt_relu_grad(T g, T x) {
  return gt_up(x) <= 0 ? gt_float<T>(0) : gt_up(g);
}

template <typename T>
__device__ inline gt_float<T> gt_relu_grad_from_output(T g, T y) {
  return gt_relu_grad(g, y);  // the output is positive where the input is
}

// -------------------------------------------------------------------------------------- leaky relu
template <typename T>
__device__ inline gt_float<T> gt_leaky_relu(T x, gt_float<T> slope) {
  const gt_float<T> v = gt_up(x);
  return v > 0 ? v : v * slope;
}

template <typename T>
__device__ inline gt_float<T> gt_leaky_relu_grad(T g, T x, gt_float<T> slope) {
  return gt_up(x) > 0 ? gt_up(g) : gt_up(g) * slope;
}

// Wants slope > 0: only then has the output the sign of the input.
template <typename T>
__device__ inline gt_float<T> gt_leaky_relu_grad_from_output(T g, T y, gt_float<T> slope) {
  return gt_leaky_relu_grad(g, y, slope);
}

// Wants slope > 0. The reciprocal is the same for every element: one division outside the loop.
template <typename T>
__device__ inline gt_float<T> gt_leaky_relu_inverse(T y, gt_float<T> slope) {
  const gt_float<T> v = gt_up(y);
  return v > 0 ? v : v * (gt_float<T>(1) / slope);
}

// --------------------------------------------------------------------------------------------- elu
template <typename T>
__device__ inline gt_float<T> gt_elu(T x, gt_float<T> alpha) {
  const gt_float<T> v = gt_up(x);
  return v <= 0 ? alpha * expm1(v) : v;
}

template <typename T>
__device__ inline gt_float<T> gt_elu_grad(T g, T x, gt_float<T> alpha) {
  const gt_float<T> v = gt_up(x);
  return v <= 0 ? gt_up(g) * (alpha * exp(v)) : gt_up(g);
}

// Wants alpha > 0.
template <typename T>
__device__ inline gt_float<T> gt_elu_grad_from_output(T g, T y, gt_float<T> alpha) {
  const gt_float<T> v = gt_up(y);
  return v <= 0 ? gt_up(g) * (v + alpha) : gt_up(g);
}

// Wants alpha > 0 and y > -alpha. A quotient: times a reciprocal could be -1 already.
template <typename T>
__device__ inline gt_float<T> gt_elu_inverse(T y, gt_float<T> alpha) {
  const gt_float<T> v = gt_up(y);
  return v <= 0 ? log1p(v / alpha) : v;
}

// -------------------------------------------------------------------------------------------- gelu
// x * Phi(x) with the exact normal distribution function Phi.
template <typename T>
__device__ inline gt_float<T> gt_gelu(T x) {
  typedef gt_float<T> F;
  const F v = gt_up(x);
  return v * F(0.5) * (F(1) + erf(v * F(0.70710678118654752440)));  // 1 / sqrt(2)
}

template <typename T>
__device__ inline gt_float<T> gt_gelu_grad(T g, T x) {
  typedef gt_float<T> F;
  const F v = gt_up(x);
  const F cdf = F(0.5) * (F(1) + erf(v * F(0.70710678118654752440)));
  const F pdf = exp(F(-0.5) * v * v) * F(0.39894228040143267794);  // 1 / sqrt(2 pi)
  return gt_up(g) * (cdf + v * pdf);
}

// The tanh approximation: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
template <typename T>
__device__ inline gt_float<T> gt_gelu_tanh(T x) {
  typedef gt_float<T> F;
  const F v = gt_up(x);
  const F inner = F(0.79788456080286535588) * (v + F(0.044715) * v * v * v);  // sqrt(2 / pi)
  return F(0.5) * v * (F(1) + tanh(inner));
}

template <typename T>
__device__ inline gt_float<T> gt_gelu_tanh_grad(T g, T x) {
  typedef gt_float<T> F;
  const F v = gt_up(x);
  const F inner = F(0.79788456080286535588) * (v + F(0.044715) * v * v * v);
  const F t = tanh(inner);
  const F slope = F(0.79788456080286535588) * (F(1) + F(3 * 0.044715) * v * v);
  return gt_up(g) * (F(0.5) * (F(1) + t) + F(0.5) * v * (F(1) - t * t) * slope);
}

// ----------------------------------------------------------------------------------------- sigmoid
template <typename T>
__device__ inline gt_float<T> gt_sigmoid(T x) {
  typedef gt_float<T> F;
  return F(1) / (F(1) + exp(-gt_up(x)));  // exp may overflow to infinity, which gives 0
}

template <typename T>
__device__ inline gt_float<T> gt_sigmoid_grad_from_output(T g, T y) {
  typedef gt_float<T> F;
  const F v = gt_up(y);
  return gt_up(g) * (F(1) - v) * v;
}

template <typename T>
__device__ inline gt_float<T> gt_sigmoid_grad(T g, T x) {
  return gt_sigmoid_grad_from_output(gt_up(g), gt_sigmoid(x));
}

// Wants 0 < y < 1. From 1/2 on 1 - y is exact, so the logarithm loses nothing to it.
template <typename T>
__device__ inline gt_float<T> gt_sigmoid_inverse(T y) {
  const gt_float<T> v = gt_up(y);
  return log(v / (gt_float<T>(1) - v));
}

// ---------------------------------------------------------------------------------------- softplus
// log(1 + exp(beta x)) / beta, and x itself where beta x > threshold.
template <typename T>
__device__ inline gt_float<T> gt_softplus(T x, gt_float<T> beta, gt_float<T> threshold) {
  typedef gt_float<T> F;
  const F v = gt_up(x);
  const F z = v * beta;
  if (z > threshold) return v;
  return ((z > 0 ? z : F(0)) + log1p(exp(z > 0 ? -z : z))) / beta;  // exp of what cannot overflow
}

template <typename T>
__device__ inline gt_float<T> gt_softplus_grad(T g, T x, gt_float<T> beta, gt_float<T> threshold) {
  const gt_float<T> z = gt_up(x) * beta;
  return z > threshold ? gt_up(g) : gt_up(g) * gt_sigmoid(z);
}

// Where x is just below the threshold y is above it: there it is off by up to exp(-threshold).
template <typename T>
__device__ inline gt_float<T> gt_softplus_grad_from_output(T g, T y, gt_float<T> beta,
                                                           gt_float<T> threshold) {
  typedef gt_float<T> F;
  const F z = gt_up(y) * beta;  // sigmoid(beta x) = 1 - exp(-beta y)
  return z > threshold ? gt_up(g) : gt_up(g) * F(-1) * expm1(-z);
}

// Wants beta > 0 and y > 0. Just above the threshold it is off by up to exp(-threshold) / beta.
template <typename T>
__device__ inline gt_float<T> gt_softplus_inverse(T y, gt_float<T> beta, gt_float<T> threshold) {
  const gt_float<T> v = gt_up(y);
  const gt_float<T> z = v * beta;
  return z > threshold ? v : log(expm1(z)) / beta;
}

// -------------------------------------------------------------------------------------------- tanh
template <typename T>
__device__ inline gt_float<T> gt_tanh(T x) {
  return tanh(gt_up(x));
}

template <typename T>
__device__ inline gt_float<T> gt_tanh_grad_from_output(T g, T y) {
  typedef gt_float<T> F;
  const F v = gt_up(y);
  return gt_up(g) * (F(1) - v * v);
}

template <typename T>
__device__ inline gt_float<T> gt_tanh_grad(T g, T x) {
  return gt_tanh_grad_from_output(gt_up(g), gt_tanh(x));
}

// Wants -1 < y < 1.
template <typename T>
__device__ inline gt_float<T> gt_tanh_inverse(T y) {
  return atanh(gt_up(y));
}

// -------------------------------------------------------------------------------------------- silu
template <typename T>
__device__ inline gt_float<T> gt_silu(T x) {
  typedef gt_float<T> F;
  const F v = gt_up(x);
  return v / (F(1) + exp(-v));
}

template <typename T>
__device__ inline gt_float<T> gt_silu_grad(T g, T x) {
  typedef gt_float<T> F;
  const F v = gt_up(x);
  const F s = gt_sigmoid(v);
  return gt_up(g) * (s * (F(1) + v * (F(1) - s)));
}

// ------------------------------------------------------------------- an activation named by number
// For fused kernels. The branch is the same for all threads of a launch. `kernels.ACTIVATIONS` in
// gtensor/backend/kernels.py repeats these codes; a test compares the two.
enum gt_activation {
  GT_IDENTITY = 0,
  GT_RELU = 1,
  GT_LEAKY_RELU = 2,  // parameter: slope
  GT_ELU = 3,         // parameter: alpha
  GT_GELU = 4,
  GT_GELU_TANH = 5,
  GT_SIGMOID = 6,
  GT_SOFTPLUS = 7,  // parameter: beta; the threshold is PyTorch's default, 20
  GT_TANH = 8,
  GT_SILU = 9,
};

template <typename F>
__device__ inline F gt_activate(gt_index activation, F x, F parameter) {
  switch (activation) {
    case GT_RELU: return gt_relu(x);
    case GT_LEAKY_RELU: return gt_leaky_relu(x, parameter);
    case GT_ELU: return gt_elu(x, parameter);
    case GT_GELU: return gt_gelu(x);
    case GT_GELU_TANH: return gt_gelu_tanh(x);
    case GT_SIGMOID: return gt_sigmoid(x);
    case GT_SOFTPLUS: return gt_softplus(x, parameter, F(20));
    case GT_TANH: return gt_tanh(x);
    case GT_SILU: return gt_silu(x);
    default: return x;
  }
}

template <typename F>
__device__ inline F gt_activate_grad(gt_index activation, F g, F x, F parameter) {
  switch (activation) {
    case GT_RELU: return gt_relu_grad(g, x);
    case GT_LEAKY_RELU: return gt_leaky_relu_grad(g, x, parameter);
    case GT_ELU: return gt_elu_grad(g, x, parameter);
    case GT_GELU: return gt_gelu_grad(g, x);
    case GT_GELU_TANH: return gt_gelu_tanh_grad(g, x);
    case GT_SIGMOID: return gt_sigmoid_grad(g, x);
    case GT_SOFTPLUS: return gt_softplus_grad(g, x, parameter, F(20));
    case GT_TANH: return gt_tanh_grad(g, x);
    case GT_SILU: return gt_silu_grad(g, x);
    default: return g;
  }
}

// From here on for the activations that can be inverted: identity, leaky_relu, elu, sigmoid,
// softplus, tanh. The others count as identity.
template <typename F>
__device__ inline F gt_activate_inverse(gt_index activation, F y, F parameter) {
  switch (activation) {
    case GT_LEAKY_RELU: return gt_leaky_relu_inverse(y, parameter);
    case GT_ELU: return gt_elu_inverse(y, parameter);
    case GT_SIGMOID: return gt_sigmoid_inverse(y);
    case GT_SOFTPLUS: return gt_softplus_inverse(y, parameter, F(20));
    case GT_TANH: return gt_tanh_inverse(y);
    default: return y;
  }
}

template <typename F>
__device__ inline F gt_activate_grad_from_output(gt_index activation, F g, F y, F parameter) {
  switch (activation) {
    case GT_LEAKY_RELU: return gt_leaky_relu_grad_from_output(g, y, parameter);
    case GT_ELU: return gt_elu_grad_from_output(g, y, parameter);
    case GT_SIGMOID: return gt_sigmoid_grad_from_output(g, y);
    case GT_SOFTPLUS: return gt_softplus_grad_from_output(g, y, parameter, F(20));
    case GT_TANH: return gt_tanh_grad_from_output(g, y);
    default: return g;
  }
}

// What may be stored of an output: both ends belong to it.
template <typename F>
struct gt_range {
  F low, high;
};

template <typename F>
__device__ inline gt_range<F> gt_everything() {
  return {-gt_infinity<F>(), gt_infinity<F>()};
}

// The value of storage type T next to `value` on the side of 0; 0 stays.
template <typename T>
__device__ inline gt_float<T> gt_toward_zero(gt_float<T> value) {
  T stored = gt_down<T>(value);
  unsigned long long bits = 0;
  memcpy(&bits, &stored, sizeof stored);
  if (gt_up(stored) != 0) --bits;
  memcpy(static_cast<void *>(&stored), &bits, sizeof stored);
  return gt_up(stored);
}

// The smallest normal number of T: the exponent of 1 is odd in every format, so its lowest bit is
// the exponent 1.
template <typename T>
__device__ inline gt_float<T> gt_smallest() {
  T stored = gt_down<T>(gt_float<T>(1));
  unsigned long long bits = 0;
  memcpy(&bits, &stored, sizeof stored);
  bits &= ~bits + 1;
  memcpy(static_cast<void *>(&stored), &bits, sizeof stored);
  return gt_up(stored);
}

// Where the inverse and the derivative are finite: one step of T inside the open range of the
// activation, at 0 the smallest normal number (kernels flush smaller ones).
template <typename T>
__device__ inline gt_range<gt_float<T>> gt_activation_range(gt_index activation,
                                                            gt_float<T> parameter) {
  typedef gt_float<T> F;
  gt_range<F> range = gt_everything<F>();
  if (activation == GT_ELU) range.low = gt_toward_zero<T>(-parameter);
  if (activation == GT_TANH) range.low = gt_toward_zero<T>(F(-1));
  if (activation == GT_SIGMOID || activation == GT_SOFTPLUS) range.low = gt_smallest<T>();
  if (activation == GT_SOFTPLUS && range.low * parameter < gt_smallest<F>())
    range.low = gt_smallest<F>() / parameter;  // beta z is normal, too
  if (activation == GT_SIGMOID || activation == GT_TANH) range.high = gt_toward_zero<T>(F(1));
  return range;
}

// NaN passes.
template <typename F>
__device__ inline F gt_inside(F value, gt_range<F> range) {
  return value < range.low ? range.low : value > range.high ? range.high : value;
}

// Calls apply(activation, values[i]) for all i. For the cheap activations the code is a constant in
// there and the loop is unrolled. The text of the others is long: it stands once, in a loop that
// turns the array around, because registers have no index.
template <int N, typename V, typename Apply>
__device__ inline void gt_apply(gt_index activation, V (&values)[N], Apply apply) {
  if (activation == GT_IDENTITY) {
    for (int i = 0; i < N; ++i) apply(GT_IDENTITY, values[i]);
  } else if (activation == GT_RELU) {
    for (int i = 0; i < N; ++i) apply(GT_RELU, values[i]);
  } else if (activation == GT_LEAKY_RELU) {
    for (int i = 0; i < N; ++i) apply(GT_LEAKY_RELU, values[i]);
  } else {
#pragma unroll 1
    for (int turn = 0; turn < N; ++turn) {
      V value = values[0];
      apply(activation, value);
      for (int i = 1; i < N; ++i) values[i - 1] = values[i];
      values[N - 1] = value;
    }
  }
}
