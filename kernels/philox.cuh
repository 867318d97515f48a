// Random bits that follow from a seed and an element's index: those of NumPy's philox4x64-10.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include "number.cuh"

// The bits of elements 8 * eighth .. + 7 of an array, 32 for each, two in a word; the lower 32 bits
// are those of the first one. ops/activations/dropout.py says which counters those are.
__device__ inline void gt_philox(unsigned long long (&words)[4], unsigned long long seed,
                                 unsigned long long eighth) {
  unsigned long long c0 = eighth % 8192 + 1, c1 = eighth / 8192, c2 = 0, c3 = 0;
  unsigned long long k0 = seed, k1 = 0;
  for (int turn = 0; turn < 10; ++turn) {
    const unsigned long long m0 = 0xD2E7470EE14C6C93ULL, m1 = 0xCA5A826395121157ULL;
    const unsigned long long high0 = __umul64hi(m0, c0), low0 = m0 * c0;
    const unsigned long long high1 = __umul64hi(m1, c2), low1 = m1 * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B97F4A7C15ULL;
    k1 += 0xBB67AE8584CAA73BULL;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// The 32 bits of element e.
__device__ inline unsigned long long gt_bits(unsigned long long seed, unsigned long long e) {
  unsigned long long words[4];
  gt_philox(words, seed, e / 8);
  const int lane = e % 8 / 2;
  const unsigned long long word =
      lane == 0 ? words[0] : lane == 1 ? words[1] : lane == 2 ? words[2] : words[3];
  return e % 2 ? word >> 32 : word & 0xFFFFFFFFULL;
}
