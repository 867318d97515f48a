// The derivative of the logarithm l of a gamma draw by its concentration a, at a fixed value of the
// distribution function: gtensor/ops/sampling/gamma.py has the formulas. Two numbers are read for
// each element and one is written; everything is computed in double.
#pragma once

#include "number.cuh"

// Places in 0 to 1 and weights of Gauss and Legendre's rules.
__constant__ double gt_places_of_16[16] = {
    0.005299532504175031, 0.0277124884633837, 0.06718439880608412, 0.1222977958224985,
    0.19106187779867811, 0.2709916111713863, 0.35919822461037054, 0.4524937450811813,
    0.5475062549188188, 0.6408017753896295, 0.7290083888286136, 0.8089381222013219,
    0.8777022041775016, 0.9328156011939159, 0.9722875115366163, 0.994700467495825};
__constant__ double gt_weights_of_16[16] = {
    0.013576229705877088, 0.031126761969323728, 0.0475792558412463, 0.062314485627767036,
    0.07479799440828835, 0.08457825969750132, 0.09130170752246182, 0.09472530522753432,
    0.09472530522753432, 0.09130170752246182, 0.08457825969750132, 0.07479799440828835,
    0.062314485627767036, 0.0475792558412463, 0.031126761969323728, 0.013576229705877088};
__constant__ double gt_places_of_32[32] = {
    0.001368069075259215, 0.007194244227365809, 0.017618872206246805, 0.03254696203113017,
    0.051839422116973954, 0.07531619313371501, 0.10275810201602881, 0.13390894062985514,
    0.16847786653489238, 0.20614212137961885, 0.24655004553388532, 0.28932436193468236,
    0.33406569885893617, 0.38035631887393145, 0.42776401920860174, 0.4758461671561308,
    0.5241538328438692, 0.5722359807913983, 0.6196436811260685, 0.6659343011410639,
    0.7106756380653176, 0.7534499544661146, 0.7938578786203812, 0.8315221334651076,
    0.8660910593701449, 0.8972418979839711, 0.924683806866285, 0.948160577883026,
    0.9674530379688698, 0.9823811277937532, 0.9928057557726342, 0.9986319309247408};
__constant__ double gt_weights_of_32[32] = {
    0.003509305004735253, 0.008137197365452872, 0.012696032654631012, 0.017136931456510882,
    0.021417949011113418, 0.025499029631188046, 0.029342046739267783, 0.03291111138818084,
    0.03617289705442417, 0.039096947893535114, 0.041655962113473353, 0.04382604650220189,
    0.04558693934788189, 0.046922199540402255, 0.047819360039637354, 0.04827004425736383,
    0.04827004425736383, 0.047819360039637354, 0.046922199540402255, 0.04558693934788189,
    0.04382604650220189, 0.041655962113473353, 0.039096947893535114, 0.03617289705442417,
    0.03291111138818084, 0.029342046739267783, 0.025499029631188046, 0.021417949011113418,
    0.017136931456510882, 0.012696032654631012, 0.008137197365452872, 0.003509305004735253};

// Of positive numbers.
__device__ inline double gt_digamma_of_positive(double a) {
  double back = 0;
  for (int k = 0; k < 10; ++k) back += 1 / (a + k);
  const double y = 1 / (a + 10), s = y * y;
  return -log(y) - back - y / 2 - s * (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s * (
      1.0 / 240 - s / 132))));
}

template <bool whole>
__device__ inline double gt_gamma_slope(double a, double l) {
  if (!(a > 0 && a < gt_infinity<double>())) return gt_nan<double>();
  const double x = exp(l), score = l - gt_digamma_of_positive(a);
  if (!(x < gt_infinity<double>())) return gt_nan<double>();
  if (x <= 4) {
    double term = 1, total = 1, harmonic = 0, rest = 0;
    for (int n = 1; n < 36; ++n) {
      term *= x / (a + n);
      harmonic += 1 / (a + n);
      total += term;
      rest += term * harmonic;
    }
    return (rest - total * (score - 1 / a)) / a;
  }
  const double left = whole ? 40 : 20;
  const double* places = whole ? gt_places_of_32 : gt_places_of_16;
  const double* weights = whole ? gt_weights_of_32 : gt_weights_of_16;
  double end, sum = 0;
  if (x <= a) {
    end = (left + sqrt(left * left + 8 * a * left)) / (2 * a);
    for (int n = 0; n < 3; ++n)
      end -= (a * end + x * expm1(-end) - left) / (a - x * exp(-end));
    for (int n = 0; n < (whole ? 32 : 16); ++n) {
      const double u = end * places[n];
      sum += weights[n] * exp(-(a * u + x * expm1(-u))) * (u - score);
    }
    return sum * end;
  }
  const double wide = log1p(2 * left / x);
  end = fmin(sqrt(2 * left / x), wide > 1.3 ? wide : 1.3);
  for (int n = 0; n < 3; ++n)
    end -= (x * expm1(end) - a * end - left) / (x * exp(end) - a);
  for (int n = 0; n < (whole ? 32 : 16); ++n) {
    const double u = end * places[n];
    sum += weights[n] * exp(a * u - x * expm1(u)) * (u + score);
  }
  return sum * end;
}
