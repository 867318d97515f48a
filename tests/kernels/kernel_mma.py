"""CUDA texts that use kernels/mma.cuh: each of its functions alone, and a product in stages."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernel_host import launch_all_schedules

from gtensor.backend import kernels

HALVES = ("__half", "__nv_bfloat16")

FUNCTIONS = """
#include "mma.cuh"

// A warp: row i of x, 8 halves, is given by lane i.
__global__ void loads(const uint4 *x, unsigned *plain, unsigned *transposed) {
  __shared__ __align__(16) uint4 rows[32];
  const int lane = threadIdx.x;
  rows[lane] = x[lane];
  __syncwarp();
  unsigned registers[4];
  gt_load_fragment(registers, rows + lane);
  for (int j = 0; j < 4; ++j) plain[lane * 4 + j] = registers[j];
  gt_load_fragment_transposed(registers, rows + lane);
  for (int j = 0; j < 4; ++j) transposed[lane * 4 + j] = registers[j];
}

// A warp of each block: registers of a, b and the sums, in the order of the lanes.
template <typename T>
__global__ void products(const unsigned *a, const unsigned *b, float *sums) {
  const int at = blockIdx.x * 32 + threadIdx.x;
  const unsigned factors[4] = {a[at * 4], a[at * 4 + 1], a[at * 4 + 2], a[at * 4 + 3]};
  float own[4];
  for (int e = 0; e < 4; ++e) own[e] = sums[at * 4 + e];
  gt_multiply<T>(own, factors, b[at * 2], b[at * 2 + 1]);
  for (int e = 0; e < 4; ++e) sums[at * 4 + e] = own[e];
}

__global__ void products_tf32(const float *a, const float *b, float *sums) {
  const int at = blockIdx.x * 32 + threadIdx.x;
  unsigned factors[4];
  for (int e = 0; e < 4; ++e) factors[e] = gt_tf32(a[at * 4 + e]);
  float own[4];
  for (int e = 0; e < 4; ++e) own[e] = sums[at * 4 + e];
  gt_multiply_tf32(own, factors, gt_tf32(b[at * 2]), gt_tf32(b[at * 2 + 1]));
  for (int e = 0; e < 4; ++e) sums[at * 4 + e] = own[e];
}

template <typename T>
__global__ void pairs(const float *x, unsigned *y) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  y[at] = gt_two<T>(x[2 * at], x[2 * at + 1]);
}

__global__ void numbers(const float *x, unsigned *rounded, float *powers) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  rounded[at] = gt_tf32(x[at]);
  powers[at] = gt_exp2(x[at]);
}

// Each thread copies 16 bytes, of which `counts` has the number that it reads, and copies two more
// groups; what it sees at the destinations after the issues and after each wait.
__global__ void copies(const uint4 *x, const int *counts, uint4 *seen) {
  __shared__ __align__(16) uint4 cells[3][64];
  const int thread = threadIdx.x;
  for (int i = 0; i < 3; ++i) cells[i][thread] = make_uint4(1, 2, 3, 4);
  gt_copies copies;
  for (int i = 0; i < 3; ++i) {
    copies.issue(&cells[i][thread], x + i * 64 + thread, counts[thread]);
    copies.commit();
  }
  for (int i = 0; i < 3; ++i) seen[i * 64 + thread] = cells[i][thread];
  copies.wait<2>();
  for (int i = 0; i < 3; ++i) seen[(3 + i) * 64 + thread] = cells[i][thread];
  copies.wait<0>();
  for (int i = 0; i < 3; ++i) seen[(6 + i) * 64 + thread] = cells[i][thread];
}

// A copy that no group has when it is waited for, and then has one.
__global__ void late_commit(const uint4 *x, uint4 *seen) {
  __shared__ __align__(16) uint4 cells[32];
  const int thread = threadIdx.x;
  gt_copies copies;
  copies.issue(cells + thread, x + thread);
  copies.wait<0>();
  seen[thread] = cells[thread];
  copies.commit();
  copies.wait<0>();
  seen[32 + thread] = cells[thread];
}
"""

PRODUCT = """
#include "mma.cuh"

// out = a @ b: a (m, k), b (k, n), contiguous, n and k multiples of 8; 64 threads for 32 x 16 of
// out, 32 of the inner axis at a time, in two stages.
template <typename T>
__global__ void __launch_bounds__(64, 8)  // at most 128 registers
product(const T *a, const T *b, float *out, int m, int n, int k) {
  __shared__ __align__(16) T a_tiles[2][32 * 32];
  __shared__ __align__(16) T b_tiles[2][32 * 16];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int first_row = blockIdx.y * 32, first_column = blockIdx.x * 16;
  gt_copies copies;
  const auto fetch = [&](int stage, int inner) {
    for (int i = thread; i < 32 * 4; i += 64) {
      const int row = i / 4, at = inner + i % 4 * 8;
      const bool there = first_row + row < m && at < k;
      copies.issue(a_tiles[stage] + row * 32 + i % 4 * 8,
                   a + (there ? (first_row + row) * k + at : 0), there ? 16 : 0);
    }
    for (int i = thread; i < 32 * 2; i += 64) {
      const int row = i / 2, at = first_column + i % 2 * 8;
      const bool there = inner + row < k && at < n;
      copies.issue(b_tiles[stage] + row * 16 + i % 2 * 8,
                   b + (there ? (inner + row) * n + at : 0), there ? 16 : 0);
    }
    copies.commit();
  };
  float sums[2][4] = {};
  fetch(0, 0);
  for (int inner = 0, stage = 0; inner < k; inner += 32, stage ^= 1) {
    copies.wait<0>();
    __syncthreads();  // the tiles are there; the other ones are read no more
    if (inner + 32 < k) fetch(stage ^ 1, inner + 32);
    const T *a_tile = a_tiles[stage] + warp * 16 * 32, *b_tile = b_tiles[stage];
    for (int step = 0; step < 32; step += 16) {
      unsigned x[4], y[4];
      gt_load_fragment(x, a_tile + lane % 16 * 32 + step + lane / 16 * 8);
      gt_load_fragment_transposed(y, b_tile + (step + lane % 16) * 16 + lane / 16 * 8);
      gt_multiply<T>(sums[0], x, y[0], y[1]);
      gt_multiply<T>(sums[1], x, y[2], y[3]);
    }
  }
  for (int half = 0; half < 2; ++half)
    for (int e = 0; e < 4; ++e) {
      const int row = first_row + warp * 16 + lane / 4 + e / 2 * 8;
      const int column = first_column + half * 8 + lane % 4 * 2 + e % 2;
      if (row < m && column < n) out[row * n + column] = sums[half][e];
    }
}
"""

NAMES = {
    FUNCTIONS: ["loads", "products_tf32", "numbers", "copies", "late_commit",
                *(f"{name}<{ctype}>" for name in ("products", "pairs") for ctype in HALVES)],
    PRODUCT: [f"product<{ctype}>" for ctype in HALVES],
}
"""The texts, and the name expressions of their kernels."""


def inlined(text: str) -> str:
    """A text with the headers of kernels/ that it includes."""
    return kernels.inline_includes(text, "sample")


class DeviceMachine:
    """The kernels of a text on a CUDA device, launched as those of a HostMachine."""

    def __init__(self, text: str) -> None:
        import cupy

        self.module = cupy.RawModule(code=inlined(text), options=kernels.OPTIONS,
                                     name_expressions=NAMES[text])

    def launch(
        self, name: str, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any],
        schedule: int = 0, shared_mem: int = 0,
    ) -> list[np.ndarray]:
        """Run a kernel, whose numbers are of the type int; a device has its own schedule."""
        import cupy

        given = [cupy.asarray(arg) if isinstance(arg, np.ndarray) else np.int32(arg)
                 for arg in args]
        self.module.get_function(name)(grid, block, tuple(given), shared_mem=shared_mem)
        return [cupy.asnumpy(arg) for arg in given if isinstance(arg, cupy.ndarray)]


def check_product(
    machine: Any, dtype: np.dtype, m: int, n: int, k: int, rng: np.random.Generator
) -> None:
    """Run the product of small integers, which is exact."""
    a, b = (rng.integers(-8, 8, shape).astype(dtype) for shape in ((m, k), (k, n)))
    out = np.full((m, n), 77, np.float32)
    launch_all_schedules(machine, f"product<{kernels.c_type(dtype)}>", (-(-n // 16), -(-m // 32)),
                         (64,), [a, b, out, m, n, k])
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))
