// CUDA's intrinsics: bits, conversions, rounding, loads and stores. Approximations (__expf) are the
// functions that they approximate; a directed rounding (__fadd_rd) is not there, unless it says so
// here.
#pragma once

#define HOSTCUDA_BITS(name, From, To)               \
  inline To name(From value) {                      \
    To bits;                                        \
    static_assert(sizeof bits == sizeof value, ""); \
    memcpy(&bits, &value, sizeof bits);             \
    return bits;                                    \
  }

HOSTCUDA_BITS(__longlong_as_double, long long, double)
HOSTCUDA_BITS(__double_as_longlong, double, long long)
HOSTCUDA_BITS(__int_as_float, int, float)
HOSTCUDA_BITS(__float_as_int, float, int)
HOSTCUDA_BITS(__uint_as_float, unsigned, float)
HOSTCUDA_BITS(__float_as_uint, float, unsigned)

inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(static_cast<long long>(
      static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32 |
      static_cast<unsigned>(low)));
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
inline int __clzll(long long bits) { return bits ? __builtin_clzll(bits) : 64; }

inline unsigned long long __brevll(unsigned long long bits) {
  unsigned long long result = 0;
  for (int at = 0; at < 64; ++at) result |= (bits >> at & 1) << (63 - at);
  return result;
}
inline unsigned __brev(unsigned bits) { return static_cast<unsigned>(__brevll(bits) >> 32); }

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
  unsigned result = 0;
  for (int at = 0; at < 4; ++at)
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * at & 7) & 0xff) << 8 * at;
  return result;
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (by & 31)) >>
                               32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}

inline int __mulhi(int a, int b) {
  return static_cast<int>(static_cast<long long>(a) * b >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }

inline int __dp4a(int a, int b, int sum) {
  for (int at = 0; at < 32; at += 8)
    sum += static_cast<signed char>(a >> at) * static_cast<signed char>(b >> at);
  return sum;
}

// Rounded to the nearest: what the host does.
#define HOSTCUDA_ARITHMETIC(T, prefix, fused, root)                      \
  inline T prefix##add_rn(T a, T b) { return a + b; }                    \
  inline T prefix##sub_rn(T a, T b) { return a - b; }                    \
  inline T prefix##mul_rn(T a, T b) { return a * b; }                    \
  inline T prefix##div_rn(T a, T b) { return a / b; }                    \
  inline T prefix##rcp_rn(T a) { return 1 / a; }                         \
  inline T prefix##sqrt_rn(T a) { return root(a); }                      \
  inline T fused##_rn(T a, T b, T c) { return fma(a, b, c); }

HOSTCUDA_ARITHMETIC(float, __f, __fmaf, sqrtf)
HOSTCUDA_ARITHMETIC(double, __d, __fma, sqrt)

inline float __frsqrt_rn(float x) { return static_cast<float>(1 / sqrt(static_cast<double>(x))); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

namespace hostcuda {

// As cvt does it: what lies outside the type becomes its nearest value, NaN becomes 0 (the largest
// negative number where To has 64 bits and is made from a double).
template <typename To, typename From>
To saturated(From x) {
  if (x != x)
    return sizeof(To) == 8 && sizeof(From) == 8 ? static_cast<To>(0x8000000000000000ull) : To(0);
  const From low = static_cast<From>(std::is_signed<To>::value ? -ldexp(1.0, 8 * sizeof(To) - 1) : 0);
  const From high = static_cast<From>(ldexp(1.0, 8 * sizeof(To) - std::is_signed<To>::value));
  const To most = static_cast<To>(std::is_signed<To>::value
                                      ? ~0ull >> (65 - 8 * sizeof(To)) : ~0ull);
  if (x >= high) return most;
  return x <= low ? static_cast<To>(std::is_signed<To>::value ? ~most : 0) : static_cast<To>(x);
}

}  // namespace hostcuda

#define HOSTCUDA_CONVERSION(from, From, to, To)                                                  \
  inline To __##from##2##to##_rn(From x) { return hostcuda::saturated<To>(rint(x)); }            \
  inline To __##from##2##to##_rz(From x) { return hostcuda::saturated<To>(trunc(x)); }           \
  inline To __##from##2##to##_ru(From x) { return hostcuda::saturated<To>(ceil(x)); }            \
  inline To __##from##2##to##_rd(From x) { return hostcuda::saturated<To>(floor(x)); }
#define HOSTCUDA_CONVERSIONS(from, From)                          \
  HOSTCUDA_CONVERSION(from, From, int, int)                       \
  HOSTCUDA_CONVERSION(from, From, uint, unsigned)                 \
  HOSTCUDA_CONVERSION(from, From, ll, long long)                  \
  HOSTCUDA_CONVERSION(from, From, ull, unsigned long long)

HOSTCUDA_CONVERSIONS(float, float)
HOSTCUDA_CONVERSIONS(double, double)

inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }

// Hints to the caches: loads and stores like all others.
#define HOSTCUDA_LOAD(name)             \
  template <typename T>                 \
  T name(const T *address) {            \
    return *address;                    \
  }
#define HOSTCUDA_STORE(name)                              \
  template <typename T>                                   \
  void name(T *address, std::common_type_t<T> value) {    \
    *address = value;                                     \
  }

HOSTCUDA_LOAD(__ldg)
HOSTCUDA_LOAD(__ldca)
HOSTCUDA_LOAD(__ldcg)
HOSTCUDA_LOAD(__ldcs)
HOSTCUDA_LOAD(__ldlu)
HOSTCUDA_LOAD(__ldcv)
HOSTCUDA_STORE(__stwb)
HOSTCUDA_STORE(__stcg)
HOSTCUDA_STORE(__stcs)
HOSTCUDA_STORE(__stwt)

inline long long clock64() { return static_cast<long long>(__builtin_ia32_rdtsc()); }
inline unsigned long long __globaltimer() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap() { hostcuda::fail(HOSTCUDA_LAUNCH_FAILURE, "__trap"); }
