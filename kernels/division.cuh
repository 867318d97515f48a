// Floor division and its remainder, as C's fmod gives them: CuPy rounds x1 / x2 before it takes the
// floor, so that 1 // 0.1 is 10, a remainder may lie outside the divisor, and that by infinity is NaN.
//
// Layout: none. Traffic: that of the caller. Zeros, infinities and NaN give what NumPy gives.
#pragma once

#include "number.cuh"

// The largest whole number up to x1 / x2.
template <typename T>
__device__ inline gt_float<T> gt_floor_divide(T x1, T x2) {
  typedef gt_float<T> F;
  const F a = gt_up(x1), b = gt_up(x2);
  if (b == F(0)) return a / b;
  const F rest = fmod(a, b);
  const F quotient = (a - rest) / b - F(rest != F(0) && (rest < F(0)) != (b < F(0)));
  if (quotient == F(0)) return copysign(F(0), a / b);
  const F whole = floor(quotient);  // the division may have been rounded down to below a whole number
  return whole + F(quotient - whole > F(0.5));
}

// x1 - x2 * floor(x1 / x2), of the sign of x2.
template <typename T>
__device__ inline gt_float<T> gt_remainder(T x1, T x2) {
  typedef gt_float<T> F;
  const F b = gt_up(x2);
  const F rest = fmod(gt_up(x1), b);
  if (rest == F(0)) return copysign(F(0), b);
  return (rest < F(0)) != (b < F(0)) ? rest + b : rest;
}
