// Shifts of integers by any number of places. C++ leaves those by the width or more, and by less than
// 0, undefined; here no bit stays, as in NumPy: the result is 0, or -1 of a negative x to the right.
//
// Layout: none. Traffic: that of the caller. T is an integer type.
#pragma once

#include "number.cuh"

// The places as a number without a sign: negative ones are larger than any width.
template <typename T>
__device__ inline unsigned long long gt_places(T places) {
  return static_cast<unsigned long long>(static_cast<gt_index>(places));
}

template <typename T>
__device__ inline T gt_shift_left(T x, T places) {
  if (gt_places(places) >= 8 * sizeof(T)) return T(0);
  return static_cast<T>(gt_places(x) << gt_places(places));
}

template <typename T>
__device__ inline T gt_shift_right(T x, T places) {
  const bool negative = x < T(0);
  if (gt_places(places) >= 8 * sizeof(T)) return negative ? T(-1) : T(0);
  if (negative) return static_cast<T>(static_cast<gt_index>(x) >> gt_places(places));
  return static_cast<T>(gt_places(x) >> gt_places(places));
}
