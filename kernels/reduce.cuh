// Reductions over a block, and over the blocks of a launch. Their order is fixed, so that results
// are equal over repeats.
//
// gt_block_reduce is a plain tree in shared memory, for blocks of any size up to GT_BLOCK: `cells`
// is a shared array of GT_BLOCK elements. gt_warps_reduce shuffles within warps first and needs two
// barriers: `cells` has one element for each warp; blocks are one-dimensional, of whole warps.
// Traffic: shared memory only.
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

// A sum beside which its rounding errors are added up.
template <typename F>
struct gt_total {
  F sum, rest;
  __device__ gt_total() : sum(0), rest(0) {}
  __device__ void add(F value) {
    const F next = sum + value, grown = next - sum;
    rest += (sum - (next - grown)) + (value - grown);
    sum = next;
  }
  // rest is NaN where the sum is infinite.
  __device__ F result() const { return rest == rest ? sum + rest : sum; }
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

// The value of the lane `distance` further on. Overloads for structures call it for each member.
template <typename F>
__device__ inline F gt_shuffle_down(F value, int distance) {
  return __shfl_down_sync(0xffffffffu, value, distance);
}

// Combines `value` of all lanes of a warp; every lane gets the result.
template <typename V, typename Combine>
__device__ inline V gt_warp_reduce(V value, Combine combine) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = combine(value, gt_shuffle_down(value, distance));
  return __shfl_sync(0xffffffffu, value, 0);
}

// As gt_block_reduce, for any V that has a gt_shuffle_down. The result is made by every thread from
// the results of the warps.
template <typename V, typename Combine>
__device__ inline V gt_warps_reduce(V value, V *cells, Combine combine) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = combine(value, gt_shuffle_down(value, distance));
  if (threadIdx.x % 32 == 0) cells[threadIdx.x / 32] = value;
  __syncthreads();
  V result = cells[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x / 32); ++warp)
    result = combine(result, cells[warp]);
  __syncthreads();  // the next reduction overwrites the cells
  return result;
}

// Whether this block is the last of `blocks` to come here; if so, it sees what the others wrote to
// global memory before they came. *ticket is 0 before the launch. Every thread must call it.
__device__ inline bool gt_last_block(unsigned *ticket, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1u) + 1 == blocks;
    __threadfence();
  }
  __syncthreads();
  return last;
}
