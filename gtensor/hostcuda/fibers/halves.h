// What cuda_fp16.h and cuda_bf16.h give device code only: functions of halves, by way of float.
#pragma once

#define HOSTCUDA_HALF_FUNCTION(Half, Pair, name, expression)              \
  inline Half h##name(Half value) {                                       \
    const float x = static_cast<float>(value);                            \
    return static_cast<Half>(expression);                                 \
  }                                                                       \
  inline Pair h2##name(Pair value) {                                      \
    Pair result;                                                          \
    result.x = h##name(static_cast<Half>(value.x));                       \
    result.y = h##name(static_cast<Half>(value.y));                       \
    return result;                                                        \
  }

// A fused multiply-add: the product of two halves is exact in double, and so is the sum rounded
// once to double; rounding that to the half is CUDA's single rounding but for ties of ties.
#define HOSTCUDA_HALF(Half, Pair)                                                            \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, sin, sinf(x))                                           \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, cos, cosf(x))                                           \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, exp, expf(x))                                           \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, exp2, exp2f(x))                                         \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, exp10, exp10f(x))                                       \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, log, logf(x))                                           \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, log2, log2f(x))                                         \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, log10, log10f(x))                                       \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, tanh, tanhf(x))                                         \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, rcp, 1 / x)                                             \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, sqrt, sqrtf(x))                                         \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, rsqrt, 1 / sqrtf(x))                                    \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, ceil, ceilf(x))                                         \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, floor, floorf(x))                                       \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, rint, rintf(x))                                         \
  HOSTCUDA_HALF_FUNCTION(Half, Pair, trunc, truncf(x))                                       \
  inline Half __hfma(Half a, Half b, Half c) {                                               \
    return static_cast<Half>(static_cast<double>(static_cast<float>(a)) *                    \
                                 static_cast<float>(b) +                                     \
                             static_cast<float>(c));                                         \
  }                                                                                          \
  inline Pair __hfma2(Pair a, Pair b, Pair c) {                                              \
    Pair result;                                                                             \
    result.x = __hfma(static_cast<Half>(a.x), static_cast<Half>(b.x), static_cast<Half>(c.x)); \
    result.y = __hfma(static_cast<Half>(a.y), static_cast<Half>(b.y), static_cast<Half>(c.y)); \
    return result;                                                                           \
  }

HOSTCUDA_HALF(__half, __half2)
HOSTCUDA_HALF(__nv_bfloat16, __nv_bfloat162)

#define HOSTCUDA_FROM_HALF(half, Half, to, To)                                              \
  inline To __##half##2##to##_rn(Half x) { return __float2##to##_rn(static_cast<float>(x)); } \
  inline To __##half##2##to##_ru(Half x) { return __float2##to##_ru(static_cast<float>(x)); } \
  inline To __##half##2##to##_rd(Half x) { return __float2##to##_rd(static_cast<float>(x)); }
#define HOSTCUDA_FROM_HALVES(to, To)                     \
  HOSTCUDA_FROM_HALF(half, __half, to, To)               \
  HOSTCUDA_FROM_HALF(bfloat16, __nv_bfloat16, to, To)

HOSTCUDA_FROM_HALVES(int, int)
HOSTCUDA_FROM_HALVES(uint, unsigned)
HOSTCUDA_FROM_HALVES(ll, long long)
HOSTCUDA_FROM_HALVES(ull, unsigned long long)
