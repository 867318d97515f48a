// The number next to x1 towards x2, in integers: floating-point instructions would take subnormal
// numbers for 0, as CuPy compiles with -ftz=true.
//
// Layout: none. Traffic: that of the caller.
#pragma once

// In the order of the numbers.
__device__ inline unsigned gt_ordered(unsigned bits) {
  return bits >> 31 ? ~bits : bits | 1u << 31;
}

__device__ inline float gt_next_after(float x1, float x2) {
  const unsigned sign = 1u << 31, a = __float_as_uint(x1), b = __float_as_uint(x2);
  if (isnan(x1) || isnan(x2)) return x1 + x2;
  if (a == b || !((a | b) & ~sign)) return x2;
  if (!(a & ~sign)) return __uint_as_float((b & sign) | 1u);
  const bool up = gt_ordered(a) < gt_ordered(b), away = up == !(a & sign);
  return __uint_as_float(away ? a + 1 : a - 1);
}
