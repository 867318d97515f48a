// Reductions over a block through shared memory.
//
// Layout: `cells` is a shared array with room for every thread of the block (GT_BLOCK elements);
// blocks are one-dimensional, of any size up to GT_BLOCK. Traffic: shared memory only.
// No warp shuffles on this rung: the memory-bound kernels that call it spend their time on the
// rows, and a plain tree runs unchanged under the host shim of the tests, which knows barriers but
// not warps.
#pragma once

#include "number.cuh"

#define GT_BLOCK 256  // `kernels.BLOCK` in gtensor/backend/kernels.py repeats it

struct gt_sum {
  template <typename F>
  __device__ F operator()(F a, F b) const {
    return a + b;
  }
};

// The larger of two; NaN wins.
struct gt_max {
  template <typename F>
  __device__ F operator()(F a, F b) const {
    return (a > b || a != a) ? a : b;
  }
};

// Combines `value` of all threads; every thread gets the result, so every thread must call it.
template <typename F, typename Combine>
__device__ inline F gt_block_reduce(F value, F *cells, Combine combine) {
  const int thread = threadIdx.x;
  cells[thread] = value;
  __syncthreads();
  for (int width = blockDim.x; width > 1;) {
    const int half = (width + 1) / 2;
    if (thread + half < width) cells[thread] = combine(cells[thread], cells[thread + half]);
    __syncthreads();
    width = half;
  }
  const F result = cells[0];
  __syncthreads();  // the next reduction overwrites the cells
  return result;
}
