"""Small CUDA texts of the tests' own: every feature of the host machines, right and then broken.

NVRTC compiles the very same texts.
"""

from __future__ import annotations

WARPS = """
template <typename T>
__global__ void shuffles(const T *x, T *y, int by, int width) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  const int size = gridDim.x * blockDim.x;
  y[at] = __shfl_sync(0xffffffff, x[at], by, width);
  y[size + at] = __shfl_up_sync(0xffffffff, x[at], by, width);
  y[2 * size + at] = __shfl_down_sync(0xffffffff, x[at], by, width);
  y[3 * size + at] = __shfl_xor_sync(0xffffffff, x[at], by, width);
}

// Half-warps shuffle on their own; the last lane has ended before.
__global__ void halves_of_warps(const int *x, int *y) {
  const unsigned thread = threadIdx.x;
  if (thread == 31) return;
  const bool low = thread < 16;
  const int mine = x[thread];
  if (low)
    y[thread] = __shfl_sync(0x0000ffff, mine, 3);
  else
    y[thread] = __shfl_sync(0xffff0000, mine, 20);
}

__global__ void votes(const int *x, unsigned *y) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned *mine = y + at * 8;
  mine[6] = __popc(__activemask());
  mine[0] = __ballot_sync(0xffffffff, x[at] > 0);
  mine[1] = __any_sync(0xffffffff, x[at] > 0);
  mine[2] = __all_sync(0xffffffff, x[at] > 0);
  mine[3] = __syncthreads_or(x[at] > 0);
  mine[4] = __syncthreads_and(x[at] > 0);
  mine[5] = __syncthreads_count(x[at] > 0);
  mine[7] = __ffs(x[at]);
}

// Every lane reads what its neighbour wrote to shared memory.
__global__ void neighbours(const int *x, int *y) {
  __shared__ int cells[64];
  const int thread = threadIdx.x;
  cells[thread] = x[thread];
  __syncwarp();
  y[thread] = cells[thread ^ 1] + __shfl_xor_sync(0xffffffff, cells[thread], 2);
}
"""

ATOMICS = """
template <typename T>
__global__ void sums(const T *x, T *y, int n, int cells) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(y + i % cells, x[i]);
}

__global__ void integers(const int *x, int *y, unsigned *z, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicMax(y, x[i]);
    atomicMin(y + 1, x[i]);
    atomicSub(y + 2, x[i]);
    atomicExch(y + 3, 5);
    atomicInc(z, 6);  // 0, 1, .. 6, 0, ..
    atomicDec(z + 1, 6);
    atomicOr(z + 2, 1u << i % 7);
    atomicAnd(z + 3, ~(1u << i % 7));
    atomicXor(z + 4, unsigned(x[i]));
    for (unsigned seen = 0, old; (old = atomicCAS(z + 5, seen, seen + 2)) != seen;) seen = old;
  }
}

__global__ void arrivals(unsigned *y, unsigned *ticket) {
  y[blockIdx.y * gridDim.x + blockIdx.x] = atomicAdd(ticket, 1u);
}

// The last block to end adds up the sums of all blocks: warps by shuffles, blocks by a ticket.
__global__ void last_block_sum(const float *x, float *sums, unsigned *ticket, float *y, int n) {
  extern __shared__ __align__(16) unsigned char bytes[];
  float *cells = reinterpret_cast<float *>(bytes);  // one for each warp
  __shared__ bool last;
  const int thread = threadIdx.x, lane = thread % warpSize;
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + thread; i < n; i += gridDim.x * blockDim.x)
    sum += __ldg(x + i);
  for (int by = warpSize / 2; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
  if (lane == 0) cells[thread / warpSize] = sum;
  __syncthreads();
  if (thread == 0) {
    for (int warp = 1; warp < int(blockDim.x) / warpSize; ++warp) sum += cells[warp];
    sums[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && thread == 0) {
    sum = 0;
    for (int block = 0; block < int(gridDim.x); ++block) sum += sums[block];
    *y = sum;
    *ticket = 0;
  }
}
"""

VECTORS = """
__global__ void scale(const float *x, float *y, float factor, int n) {
  const int step = gridDim.x * blockDim.x * 4;
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += step) {
    float4 four = *reinterpret_cast<const float4 *>(x + i);
    four.x *= factor, four.y *= factor, four.z *= factor, four.w *= factor;
    *reinterpret_cast<float4 *>(y + i) = four;
  }
}

__global__ void pack(const unsigned *x, uint4 *y) {
  const int i = threadIdx.x;
  y[i] = make_uint4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}

__global__ void reversed(const double *x, double *y) {
  extern __shared__ double cells[];
  cells[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = cells[blockDim.x - 1 - threadIdx.x];
}
"""

KERNELS = {
    WARPS: [*(f"shuffles<{ctype}>"
              for ctype in ("int", "unsigned", "long long", "float", "double")),
            "halves_of_warps", "votes", "neighbours"],
    ATOMICS: [*(f"sums<{ctype}>"
                for ctype in ("int", "unsigned", "unsigned long long", "float", "double")),
              "integers", "arrivals", "last_block_sum"],
    VECTORS: ["scale", "pack", "reversed"],
}
"""The texts, and the name expressions of their kernels."""
