// Activations in kernels: what may be stored of their outputs, and how to apply one to many values.
//
// The functions themselves (gt_relu, gt_relu_grad, ..., gt_activate) are made from the formulas of
// the ops: gtensor/ops/activations/device_functions.py writes the header that is included here.
// Layout: none, one element at a time. Traffic: that of the caller.
// Values at kinks, NaN and infinity are PyTorch's: NaN passes through, a kink takes the left slope.
#pragma once

#include "activation_functions.cuh"
#include "number.cuh"

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
