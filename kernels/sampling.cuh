// Draws from one key each: the algorithms of gtensor/ops/sampling, in float64, with the same bits.
//
// Word n of a key is that of SplitMix64 started there (Steele, Lea, Flood, 2014). A thread makes one
// element; it reads the parameters and the key and writes the value: no other traffic.
#pragma once

#include "number.cuh"

struct gt_bits_of_key {
  unsigned long long state;

  // The next word, as a number in (0, 1).
  __device__ double uniform() {
    state += 0x9E3779B97F4A7C15ULL;
    unsigned long long z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    return (static_cast<double>(z >> 12) + 0.5) * 0x1p-52;
  }

  // A standard normal value (Box and Muller, 1958).
  __device__ double normal() {
    const double radius = sqrt(-2 * log(uniform()));
    return radius * cos(6.283185307179586 * uniform());
  }
};

__device__ inline gt_bits_of_key gt_bits(long long key) {
  return {static_cast<unsigned long long>(key)};
}

// -- gamma (Marsaglia and Tsang, 2000) ------------------------------------------------------------

__device__ inline double gt_gamma_draw(long long key, double concentration, bool logarithm) {
  if (concentration == 0) return logarithm ? -gt_infinity<double>() : 0.0;
  if (concentration == gt_infinity<double>()) return concentration;
  if (!(concentration > 0)) return gt_nan<double>();
  gt_bits_of_key bits = gt_bits(key);
  const bool small = concentration < 1;
  const double u = bits.uniform();
  const double share = small ? log(u) / concentration : 0.0;
  const double d = concentration + small - 1.0 / 3;
  double scaled;
  for (;;) {
    const double x = bits.normal(), t = x / (3 * sqrt(d));
    scaled = log1p(t);
    if (log(bits.uniform()) < x * x / 2 + 3 * d * (scaled - t * (1 + t * (1 + t / 3)))) break;
  }
  if (logarithm) return 3 * scaled + (log(d) + share);
  return d * exp(3 * scaled + share);
}

// -- counts (Hormann, 1993) -----------------------------------------------------------------------

// log(mean**k exp(-mean) / k!), without cancellation for large means (Loader, 2000).
__device__ inline double gt_log_poisson(double k, double mean) {
  if (k < 10) {
    double factorial = 1;
    for (int i = 2; i <= k; ++i) factorial *= i;
    return k * log(mean) - mean - log(factorial);
  }
  const double inverse = 1 / k, square = inverse * inverse;
  const double rest = inverse * (1.0 / 12 - square * (1.0 / 360 - square * (1.0 / 1260 - square * (
      1.0 / 1680 - square / 1188))));
  const double away = (mean - k) * inverse;
  return k * (log1p(away) - away) - rest + log(inverse / 6.283185307179586) / 2;
}

__device__ inline double gt_poisson_draw(long long key, double mean) {
  if (!(mean >= 0)) return gt_nan<double>();
  if (mean == gt_infinity<double>()) return mean;
  gt_bits_of_key bits = gt_bits(key);
  if (mean < 10) {  // by inversion
    double share = exp(-mean), u = bits.uniform() - share, k = 0;
    while (u > 0 && share > 0) {
      k += 1;
      share *= mean / k;
      u -= share;
    }
    return k;
  }
  const double b = 0.931 + 2.53 * sqrt(mean), a = -0.059 + 0.02483 * b;
  for (;;) {
    const double u = bits.uniform() - 0.5, v = bits.uniform(), us = 0.5 - fabs(u);
    const double k = floor((2 * a / us + b) * u + mean + 0.43);
    if (us >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2)) return k;
    if (k < 0 || (us < 0.013 && v > us)) continue;
    const double scale = v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b);
    if (log(scale) <= gt_log_poisson(k, mean)) return k;
  }
}

// For p of at most 1/2.
__device__ inline double gt_binomial_below_half(gt_bits_of_key bits, double n, double p) {
  if (n * p < 10) {  // by inversion
    const double odds = p / (1 - p);
    double share = exp(n * log1p(-p)), u = bits.uniform() - share, k = 0;
    while (u > 0 && share > 0) {
      k += 1;
      share *= (n - (k - 1)) / k * odds;
      u -= share;
    }
    return k;
  }
  const double mean = n * p, rest = n * (1 - p), deviation = sqrt(mean * (1 - p));
  const double b = 1.15 + 2.53 * deviation, a = -0.0873 + 0.0248 * b + 0.01 * p;
  const double mode = floor((n + 1) * p);
  const double at_mode = gt_log_poisson(mode, mean) + gt_log_poisson(n - mode, rest);
  for (;;) {
    const double u = bits.uniform() - 0.5, v = bits.uniform(), us = 0.5 - fabs(u);
    const double k = floor((2 * a / us + b) * u + mean + 0.5);
    if (us >= 0.07 && v <= 0.92 - 4.2 / b) return k;
    if (!(k >= 0 && k <= n)) continue;
    const double scale = v * (2.83 + 5.1 / b) * deviation / (a / (us * us) + b);
    if (log(scale) <= gt_log_poisson(k, mean) + gt_log_poisson(n - k, rest) - at_mode) return k;
  }
}

__device__ inline double gt_binomial_draw(long long key, double n, double p) {
  const bool whole = n >= 0 && n < gt_infinity<double>() && n == floor(n);
  if (!(whole && p >= 0 && p <= 1)) return gt_nan<double>();
  return p <= 0.5 ? gt_binomial_below_half(gt_bits(key), n, p)
                  : n - gt_binomial_below_half(gt_bits(key), n, 1 - p);
}

// -- the normal distribution between bounds (Robert, 1995) ----------------------------------------

// Of an interval whose middle is not below 0.
__device__ inline double gt_truncated_above(gt_bits_of_key bits, double low, double high) {
  if (low == high) return low;
  const double below = low < 0 ? low : 0.0, sum = low + high;
  if ((high - low) * (sum > 0 ? sum : 0.0) / 2 + below * below / 2 <= 1) {
    const double top = low > 0 ? low : 0.0;  // the point of the interval that is next to 0
    for (;;) {
      const double x = low + (high - low) * bits.uniform();
      if (log(bits.uniform()) <= (top - x) * (top + x) / 2) return x;
    }
  }
  if (low <= 0.5) {
    for (;;) {
      const double x = bits.normal();
      if (x >= low && x <= high) return x;
    }
  }
  const double rate = low / 2 + hypot(low / 2, 1.0), share = -expm1(rate * (low - high));
  for (;;) {
    const double x = low - log1p(-share * bits.uniform()) / rate;
    if (log(bits.uniform()) <= -(x - rate) * (x - rate) / 2 && x <= high) return x;
  }
}

__device__ inline double gt_truncated_draw(long long key, double low, double high) {
  const double infinity = gt_infinity<double>();
  if (!(low <= high && low < infinity && high > -infinity)) return gt_nan<double>();
  return low >= 0 || (high > 0 && -low <= high) ? gt_truncated_above(gt_bits(key), low, high)
                                                : -gt_truncated_above(gt_bits(key), -high, -low);
}
