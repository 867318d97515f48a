// Rows of a matrix, each shared by a row of the threads of a block: blocks are (threads, rows), the
// threads a multiple of 32.
//
// Layout: contiguous (rows, columns). Traffic: a row whose packs find room in the registers of its
// threads is read once, whatever is computed of it; a longer one is read by each walk over it.
#pragma once

#include "pack.cuh"
#include "reduce.cuh"

// Packs of W elements of a thread in registers: `packed_launch` in gtensor/backend/kernels.py repeats it.
template <int W>
constexpr int gt_kept = W == 8 || W == 2 ? 2 : 4;  // 8 halves, 2 doubles

// Combines `value` of the threads of each row, which all get the result. cells: an element for each
// warp of the block. Every thread of the block must call it.
template <typename V, typename Combine>
__device__ inline V gt_row_reduce(V value, V *cells, Combine combine) {
  value = gt_warp_reduce(value, combine);
  const int warps = blockDim.x / 32;
  if (warps == 1) return value;
  V *const own = cells + threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) own[threadIdx.x / 32] = value;
  __syncthreads();
  value = own[0];
  for (int warp = 1; warp < warps; ++warp) value = combine(value, own[warp]);
  __syncthreads();  // the next reduction overwrites the cells
  return value;
}

// The same row of N arrays, in packs of W elements; none where it is not `there`.
template <typename T, int W, int N>
struct gt_row {
  __device__ gt_row(const T *const (&arrays)[N], gt_index columns, bool there)
      : columns(there ? columns : 0) {
    for (int n = 0; n < N; ++n) from[n] = arrays[n];
    whole = columns <= span();
    if (whole) load(0);
  }

  // Calls visit(column, packs) for the thread's packs; N of them begin at that column.
  template <typename Visit>
  __device__ void each(Visit visit) {
    for (gt_index first = 0; first < columns; first += span()) {
      if (!whole) load(first);
#pragma unroll
      for (int k = 0; k < gt_kept<W>; ++k)
        if (place(first, k) < columns) visit(place(first, k), packs[k]);
    }
  }

 private:
  const T *from[N];
  gt_index columns;
  bool whole;  // all packs of the row are loaded
  gt_pack<T, W> packs[gt_kept<W>][N];

  __device__ gt_index span() const { return static_cast<gt_index>(gt_kept<W> * W) * blockDim.x; }

  __device__ gt_index place(gt_index first, int k) const {
    return first + (k * blockDim.x + threadIdx.x) * W;
  }

  __device__ void load(gt_index first) {
#pragma unroll
    for (int k = 0; k < gt_kept<W>; ++k)
      if (place(first, k) < columns)
        for (int n = 0; n < N; ++n) packs[k][n] = gt_load<W>(from[n] + place(first, k));
  }
};

// The largest of some values, and the sum of the exponentials relative to it, in one walk.
template <typename F>
struct gt_exponentials {
  F largest, total;

  __device__ gt_exponentials() : largest(-gt_infinity<F>()), total(0) {}

  template <typename T, int W>
  __device__ void add(const gt_pack<T, W> &pack) {
    F now = largest;
    for (int w = 0; w < W; ++w) now = gt_max()(now, gt_up(pack.values[w]));
    // as long as all are -infinity their difference from it would be NaN
    const F base = now == -gt_infinity<F>() ? F(0) : now;
    if (now != largest) total *= exp(largest - base);
    for (int w = 0; w < W; ++w) total += exp(gt_up(pack.values[w]) - base);
    largest = now;
  }

  // Those of a whole row, to all its threads. NaN for a row of -infinity only, with +infinity or
  // with NaN.
  __device__ void combine(F *cells) {
    const F all = gt_row_reduce(largest, cells, gt_max());
    total = gt_row_reduce(total * exp(largest - all), cells, gt_sum());
    largest = all;
  }
};
