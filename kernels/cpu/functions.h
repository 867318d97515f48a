// Functions of one element without branches, which compilers turn into vector loops.
//
// NaN gives NaN, infinities and signed zeros what C's functions give. Errors are at most 2 units in
// the last place (tests/ops/define/test_formula_c.py).

#ifndef GTENSOR_FUNCTIONS_H
#define GTENSOR_FUNCTIONS_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernel.h"

// a * b + c, in one rounding where processors have it. In the text of formulas nothing is contracted:
// there a * b - a * b is 0.
#if defined(KINDS) || defined(__FP_FAST_FMA)
#define madd_float __builtin_fmaf
#define madd_double __builtin_fma
#else
#define madd_float(a, b, c) ((a) * (b) + (c))
#define madd_double madd_float
#endif

INLINE float float_of_bits(int32_t bits) { float x; memcpy(&x, &bits, sizeof x); return x; }
INLINE int32_t bits_of_float(float x) { int32_t bits; memcpy(&bits, &x, sizeof x); return bits; }
INLINE double double_of_bits(int64_t bits) { double x; memcpy(&x, &bits, sizeof x); return x; }
INLINE int64_t bits_of_double(double x) { int64_t bits; memcpy(&bits, &x, sizeof x); return bits; }

// condition ? a : b by bits: of branches compilers make no vector loop where arms are long.
INLINE float select_float(bool condition, float a, float b) {
    const int32_t all = -(int32_t)condition;
    return float_of_bits((bits_of_float(a) & all) | (bits_of_float(b) & ~all));
}
INLINE double select_double(bool condition, double a, double b) {
    const int64_t all = -(int64_t)condition;
    return double_of_bits((bits_of_double(a) & all) | (bits_of_double(b) & ~all));
}

// As NumPy's: NaN where one of the two is.
INLINE float maximum_float(float a, float b) { return select_float((a > b) | (a != a), a, b); }
INLINE float minimum_float(float a, float b) { return select_float((a < b) | (a != a), a, b); }
INLINE double maximum_double(double a, double b) { return select_double((a > b) | (a != a), a, b); }
INLINE double minimum_double(double a, double b) { return select_double((a < b) | (a != a), a, b); }

// exp(x) = 2^n exp(r) with n the integer next to x / ln 2, which adding 1.5 * 2^23 leaves in the
// lowest bits, and |r| <= ln 2 / 2. ln 2 is subtracted in two parts, of which n times the first is
// exact (W. J. Cody and W. Waite, "Software manual for the elementary functions", 1980). 2^n is
// multiplied in two halves, so that subnormal results and infinity come out.
#define EXP_OF_REST_float                                                        \
    const float shifted = madd_float(x, 1.442695041f, 12582912.0f);              \
    const float n = shifted - 12582912.0f;                                       \
    const float r = madd_float(n, 2.12194440e-4f, madd_float(n, -0.693359375f, x)); \
    float p = 1.9875691500e-4f;                                                  \
    p = madd_float(p, r, 1.3981999507e-3f);                                      \
    p = madd_float(p, r, 8.3334519073e-3f);                                      \
    p = madd_float(p, r, 4.1665795894e-2f);                                      \
    p = madd_float(p, r, 1.6666665459e-1f);                                      \
    p = madd_float(p, r, 5.0000001201e-1f);                                      \
    p = madd_float(p, r * r, r) + 1.0f;

INLINE float exp_float(float x) {
    x = select_float(x > 89.0f, 89.0f, x);
    x = select_float(x < -105.0f, -105.0f, x);
    EXP_OF_REST_float
    const int32_t power = bits_of_float(shifted) - 0x4B400000;
    const int32_t half = power >> 1;
    return p * float_of_bits((half + 127) << 23) * float_of_bits((power - half + 127) << 23);
}

// exp(x), at least exp(-86): for sums that such small values do not change.
INLINE float exp_raised_float(float x) {
    x = select_float(x > 89.0f, 89.0f, x);
    x = select_float(x < -86.0f, -86.0f, x);
    EXP_OF_REST_float
    return (p + p) * float_of_bits((bits_of_float(shifted) << 23) + (126 << 23));
}

#define EXP_OF_REST_double                                                       \
    const double shifted = madd_double(x, 1.4426950408889634, 6755399441055744.0); \
    const double n = shifted - 6755399441055744.0;                               \
    const double r = madd_double(n, -1.90821492927058770002e-10,                 \
                                 madd_double(n, -6.93147180369123816490e-01, x)); \
    double p = 1.0 / 6227020800.0;                                               \
    p = madd_double(p, r, 1.0 / 479001600.0);                                    \
    p = madd_double(p, r, 1.0 / 39916800.0);                                     \
    p = madd_double(p, r, 1.0 / 3628800.0);                                      \
    p = madd_double(p, r, 1.0 / 362880.0);                                       \
    p = madd_double(p, r, 1.0 / 40320.0);                                        \
    p = madd_double(p, r, 1.0 / 5040.0);                                         \
    p = madd_double(p, r, 1.0 / 720.0);                                          \
    p = madd_double(p, r, 1.0 / 120.0);                                          \
    p = madd_double(p, r, 1.0 / 24.0);                                           \
    p = madd_double(p, r, 1.0 / 6.0);                                            \
    p = madd_double(p, r, 0.5);                                                  \
    p = madd_double(p, r * r, r) + 1.0;

INLINE double exp_double(double x) {
    x = select_double(x > 710.0, 710.0, x);
    x = select_double(x < -746.0, -746.0, x);
    EXP_OF_REST_double
    const int64_t power = bits_of_double(shifted) - 0x4338000000000000;
    const int64_t half = power >> 1;
    return p * double_of_bits((half + 1023) << 52) * double_of_bits((power - half + 1023) << 52);
}

// exp(x), at least exp(-700).
INLINE double exp_raised_double(double x) {
    x = select_double(x > 710.0, 710.0, x);
    x = select_double(x < -700.0, -700.0, x);
    EXP_OF_REST_double
    return (p + p) * double_of_bits((bits_of_double(shifted) << 52) + (1022LL << 52));
}

// tanh(x) is x + x^3 P(x^2) for small |x|, and (1 - e) / (1 + e) with e = exp(-2 |x|) for others
// (S. L. Moshier, "Methods and programs for mathematical functions", 1989).
INLINE float tanh_float(float x) {
    const float size = fabsf(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = madd_float(p, z, 2.06390887954e-2f);
    p = madd_float(p, z, -5.37397155531e-2f);
    p = madd_float(p, z, 1.33314422036e-1f);
    p = madd_float(p, z, -3.33332819422e-1f);
    const float small = p * z * size + size;
    const float e = exp_float(-2.0f * size);
    return copysignf(select_float(size < 0.625f, small, (1.0f - e) / (1.0f + e)), x);
}

INLINE double tanh_double(double x) {
    const double size = fabs(x), z = x * x;
    const double p = (-9.64399179425052238628e-1 * z + -9.92877231001918586564e1) * z
                     + -1.61468768441708447952e3;
    const double q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z
                     + 4.84406305325125486048e3;
    const double small = z * (p / q) * size + size;
    const double e = exp_double(-2.0 * size);
    return copysign(select_double(size < 0.625, small, (1.0 - e) / (1.0 + e)), x);
}

// log(x) = n ln 2 + log(m) with m from sqrt(1/2) to sqrt(2), and log(m) = s P(s^2) - ... with
// s = f / (2 + f), f = m - 1 (fdlibm's e_log.c). A subnormal x is multiplied by a power of 2 first.
INLINE float log_float(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const float scaled = select_float(tiny, x * 33554432.0f, x);
    const int32_t bits = bits_of_float(scaled) - 0x3F3504F3;
    const float n = (float)(bits >> 23) - select_float(tiny, 25.0f, 0.0f);
    const float f = float_of_bits((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    const float s = f / (2.0f + f), z = s * s, half = 0.5f * f * f;
    float p = 0.24279078841f;
    p = madd_float(p, z, 0.28498786688f);
    p = madd_float(p, z, 0.40000972152f);
    p = madd_float(p, z, 0.66666662693f);
    const float found = n * 0.693359375f - (half - (s * (half + z * p) + n * -2.12194440e-4f) - f);
    const float ends = select_float(x < 0, NAN, select_float(x == 0, -INFINITY, x));
    return select_float((x > 0) & (x < INFINITY), found, ends);  // NaN and infinity are themselves
}

INLINE double log_double(double x) {
    const bool tiny = x < 2.2250738585072014e-308;
    const double scaled = select_double(tiny, x * 18014398509481984.0, x);
    const int64_t bits = bits_of_double(scaled) - 0x3FE6A09E667F3BCD;
    // The exponent as a double, by its low bits, moved up to shift no sign: before AVX-512 no vector
    // turns 64 bits into a double, or shifts them with their sign.
    const int64_t power = (int64_t)((uint64_t)(bits + 0x4000000000000000) >> 52);
    const double n = double_of_bits(power + 0x4330000000000000) - 4503599627371520.0
                     - select_double(tiny, 54.0, 0.0);
    const double f = double_of_bits((bits & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD) - 1.0;
    const double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    double p = 1.479819860511658591e-01;
    p = madd_double(p, z, 1.531383769920937332e-01);
    p = madd_double(p, z, 1.818357216161805012e-01);
    p = madd_double(p, z, 2.222219843214978396e-01);
    p = madd_double(p, z, 2.857142874366239149e-01);
    p = madd_double(p, z, 3.999999999940941908e-01);
    p = madd_double(p, z, 6.666666666666735130e-01);
    const double found = n * 6.93147180369123816490e-01
                         - (half - (s * (half + z * p) + n * 1.90821492927058770002e-10) - f);
    const double ends = select_double(x < 0, NAN, select_double(x == 0, -INFINITY, x));
    return select_double((x > 0) & (x < INFINITY), found, ends);
}

// log(1 + x), corrected by what the sum u = 1 + x lost.
INLINE float log1p_float(float x) {
    const float u = 1.0f + x;
    const float found = log_float(u) - ((u - 1.0f) - x) / u;
    return select_float(x == 0, x, select_float((u > 0) & (u < INFINITY), found, log_float(u)));
}

INLINE double log1p_double(double x) {
    const double u = 1.0 + x;
    const double found = log_double(u) - ((u - 1.0) - x) / u;
    return select_double(x == 0, x, select_double((u > 0) & (u < INFINITY), found, log_double(u)));
}

#endif
