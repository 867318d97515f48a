// What dropout needs beside an activation, for elementwise kernels.
//
// Layout: none. Traffic: that of the caller.
#pragma once

#include "activation.cuh"
#include "philox.cuh"

// Whether dropout sets element i to 0; masks repeat after `size` elements.
__device__ inline bool gt_drops(unsigned long long i, unsigned long long seed,
                                unsigned long long size, unsigned long long threshold) {
  return gt_bits(seed, i < size ? i : i % size) < threshold;
}
