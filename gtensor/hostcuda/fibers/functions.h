// Math functions that CUDA has and C has not, CUDA's overloads of min and max, and the fast
// approximations, which are exact here.
#pragma once

#include <cmath>

#include "intrinsics.h"

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float rcbrtf(float x) { return 1 / cbrtf(x); }
inline double rcbrt(double x) { return 1 / cbrt(x); }
inline double rhypot(double x, double y) { return 1 / hypot(x, y); }
inline double norm3d(double a, double b, double c) { return std::hypot(a, b, c); }
inline double norm4d(double a, double b, double c, double d) {
  return hypot(std::hypot(a, b, c), d);
}

// Of x * pi, exact at multiples of a half.
inline double sinpi(double x) {
  const double rest = remainder(x, 2);  // in [-1, 1]
  if (rest == 0 || fabs(rest) == 1) return copysign(0.0, x);
  return fabs(rest) <= 0.25   ? sin(M_PI * rest)
         : fabs(rest) <= 0.75 ? copysign(cos(M_PI * (fabs(rest) - 0.5)), rest)
                              : copysign(sin(M_PI * (1 - fabs(rest))), rest);
}
inline double cospi(double x) {
  const double rest = fabs(remainder(x, 2));
  if (rest == 0.5) return 0;
  return rest <= 0.25   ? cos(M_PI * rest)
         : rest <= 0.75 ? sin(M_PI * (0.5 - rest))
                        : -cos(M_PI * (1 - rest));
}

// y with erfc(y) = q, 0 < q < 2: a guess, then Newton's steps in extended precision.
inline double erfcinv(double q) {
  if (!(q > 0 && q < 2)) return q == 0 ? INFINITY : q == 2 ? -INFINITY : NAN;
  const bool small = q < 1;
  const long double wanted = small ? q : 2 - static_cast<long double>(q);
  const long double t = sqrtl(-2 * logl(wanted / 2));
  long double y = (t - (2.30753L + t * 0.27061L) / (1 + t * (0.99229L + t * 0.04481L))) / sqrtl(2);
  for (int step = 0; step < 4; ++step) {
    const long double error = erfcl(y) - wanted;
    const long double slope = expl(-y * y) * 1.12837916709551257389615890312154517L;
    y += error / (slope - y * error);
  }
  return static_cast<double>(small ? y : -y);
}
inline double erfinv(double x) {
  if (!(fabs(x) < 1)) return fabs(x) == 1 ? copysign(INFINITY, x) : NAN;
  if (fabs(x) > 0.5) return x > 0 ? erfcinv(1 - x) : -erfcinv(1 + x);
  long double y = x * 0.886226925452758013649083741670572591L;
  for (int step = 0; step < 5; ++step) {
    const long double error = erfl(y) - x;
    const long double slope = expl(-y * y) * 1.12837916709551257389615890312154517L;
    y -= error / (slope + y * error);
  }
  return static_cast<double>(y);
}
inline double normcdf(double x) { return erfc(-x * M_SQRT1_2) / 2; }
inline double normcdfinv(double p) { return -M_SQRT2 * erfcinv(2 * p); }

// exp(x * x) * erfc(x)
inline double erfcx(double x) {
  if (x < 25) return static_cast<double>(expl(static_cast<long double>(x) * x) * erfcl(x));
  const double square = x * x;
  return (1 + (-0.5 + (0.75 - 1.875 / square) / square) / square) / (x * 1.7724538509055160273);
}

namespace hostcuda {

// The power series: all terms have one sign, so nothing cancels.
inline double bessel_i(int order, double x) {
  long double term = order ? x / 2.0L : 1, sum = term;
  for (int k = 1; fabsl(term) > fabsl(sum) * 1e-20L; ++k)
    sum += term *= static_cast<long double>(x) * x / 4 / k / (k + order);
  return static_cast<double>(sum);
}

}  // namespace hostcuda

inline double cyl_bessel_i0(double x) { return hostcuda::bessel_i(0, x); }
inline double cyl_bessel_i1(double x) { return hostcuda::bessel_i(1, x); }

inline void sincospi(double x, double *sine, double *cosine) {
  *sine = sinpi(x);
  *cosine = cospi(x);
}

// Single precision by double: correctly rounded but for rare ties.
#define HOSTCUDA_SINGLE(single, twice) \
  inline float single(float x) { return static_cast<float>(twice(static_cast<double>(x))); }

HOSTCUDA_SINGLE(sinpif, sinpi)
HOSTCUDA_SINGLE(cospif, cospi)
HOSTCUDA_SINGLE(erfinvf, erfinv)
HOSTCUDA_SINGLE(erfcinvf, erfcinv)
HOSTCUDA_SINGLE(erfcxf, erfcx)
HOSTCUDA_SINGLE(normcdff, normcdf)
HOSTCUDA_SINGLE(normcdfinvf, normcdfinv)
HOSTCUDA_SINGLE(cyl_bessel_i0f, cyl_bessel_i0)
HOSTCUDA_SINGLE(cyl_bessel_i1f, cyl_bessel_i1)

// C++ linkage lets CUDA's functions take floats, too.
HOSTCUDA_SINGLE(rsqrt, rsqrt)
HOSTCUDA_SINGLE(rcbrt, rcbrt)
HOSTCUDA_SINGLE(sinpi, sinpi)
HOSTCUDA_SINGLE(cospi, cospi)
HOSTCUDA_SINGLE(erfinv, erfinv)
HOSTCUDA_SINGLE(erfcinv, erfcinv)
HOSTCUDA_SINGLE(erfcx, erfcx)
HOSTCUDA_SINGLE(normcdf, normcdf)
HOSTCUDA_SINGLE(normcdfinv, normcdfinv)
HOSTCUDA_SINGLE(cyl_bessel_i0, cyl_bessel_i0)
HOSTCUDA_SINGLE(cyl_bessel_i1, cyl_bessel_i1)
inline float exp10(float x) { return exp10f(x); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline void __sincosf(float x, float *sine, float *cosine) { sincosf(x, sine, cosine); }

// As C++ promotes the two types; of floating numbers, one that is no NaN wins. PTX ISA, "min", "max":
// -0 is less than +0.
#define HOSTCUDA_NEGATIVE(x) __builtin_signbit(static_cast<double>(x))
#define HOSTCUDA_EXTREME(T, U)                                                                  \
  inline std::common_type_t<T, U> min(T a, U b) {                                               \
    const std::common_type_t<T, U> x = a, y = b;                                                \
    return x < y || y != y || (x == y && HOSTCUDA_NEGATIVE(x)) ? x : y;                         \
  }                                                                                             \
  inline std::common_type_t<T, U> max(T a, U b) {                                               \
    const std::common_type_t<T, U> x = a, y = b;                                                \
    return x > y || y != y || (x == y && !HOSTCUDA_NEGATIVE(x)) ? x : y;                        \
  }
#define HOSTCUDA_EXTREMES(T, U) HOSTCUDA_EXTREME(T, T) HOSTCUDA_EXTREME(T, U) HOSTCUDA_EXTREME(U, T) \
  HOSTCUDA_EXTREME(U, U)

HOSTCUDA_EXTREMES(int, unsigned)
HOSTCUDA_EXTREMES(long, unsigned long)
HOSTCUDA_EXTREMES(long long, unsigned long long)
HOSTCUDA_EXTREMES(float, double)

inline unsigned umin(unsigned a, unsigned b) { return min(a, b); }
inline unsigned umax(unsigned a, unsigned b) { return max(a, b); }
inline long long llmin(long long a, long long b) { return min(a, b); }
inline long long llmax(long long a, long long b) { return max(a, b); }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }
