// The norm that clipping needs of all gradients; the updates themselves are made from formulas.
//
// Layout: none. Traffic per element: reads 1.
#pragma once

#include "number.cuh"

// The larger of two, NaN if one is: combines norms.
__device__ inline double gt_larger(double a, double b) {
  return a > b || a != a ? a : b;
}
