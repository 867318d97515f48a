// The few device functions that the kernels use beyond those of C++ and of the half headers.
#pragma once

using std::max;
using std::min;

#define GT_HOST_BITS(name, From, To)         \
  inline To name(From value) {               \
    To bits;                                 \
    static_assert(sizeof bits == sizeof value, ""); \
    memcpy(&bits, &value, sizeof bits);      \
    return bits;                             \
  }

GT_HOST_BITS(__longlong_as_double, long long, double)
GT_HOST_BITS(__double_as_longlong, double, long long)
GT_HOST_BITS(__int_as_float, int, float)
GT_HOST_BITS(__float_as_int, float, int)
GT_HOST_BITS(__uint_as_float, unsigned, float)
GT_HOST_BITS(__float_as_uint, float, unsigned)

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }

// Hints to the caches: loads and stores like all others.
#define GT_HOST_LOAD(name)                                  \
  template <typename T>                                     \
  T name(const T *address) {                                \
    return *address;                                        \
  }
#define GT_HOST_STORE(name)                                 \
  template <typename T>                                     \
  void name(T *address, std::common_type_t<T> value) {      \
    *address = value;                                       \
  }

GT_HOST_LOAD(__ldg)
GT_HOST_LOAD(__ldca)
GT_HOST_LOAD(__ldcg)
GT_HOST_LOAD(__ldcs)
GT_HOST_LOAD(__ldlu)
GT_HOST_LOAD(__ldcv)
GT_HOST_STORE(__stwb)
GT_HOST_STORE(__stcg)
GT_HOST_STORE(__stcs)
GT_HOST_STORE(__stwt)
