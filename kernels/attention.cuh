// What attention forward and backward share: tiles of rows in shared memory.
// Needs sm_80.
#pragma once

#include "mma.cuh"

#define GT_LEAD_AXES 4  // `_LEAD_AXES` in gtensor/ops/attention/fused.py repeats it

// A piece of 16 bytes of a row of a tile. The pieces of a row are exchanged, so that those of eight
// rows lie in different banks: `exchange` is the row's number mod 8. With its lowest bit flipped,
// an even `piece` names the piece behind it.
template <typename T>
__device__ inline T *gt_piece(T *row, int exchange, int piece) {
  return row + (piece % 8 ^ exchange) * 8 + piece / 8 * 64;
}

// What a thread copies of the tiles of a matrix, `count` rows of D features each: a piece of every
// few rows.
template <typename T, int D, int count, int threads>
class gt_tile_rows {
  static constexpr int pieces = D / 8, rows = threads / pieces;  // of the threads at once
  const int first, piece;  // row of a tile
  const T *from;
  const gt_index step;
  const bool inside;  // the matrix has these features; others are zeros

 public:
  __device__ gt_tile_rows(const T *matrix, gt_index step, int begin, int features)
      : first(threadIdx.x / pieces),
        piece(threadIdx.x % pieces),
        from(matrix + (begin + first) * step + piece * 8),
        step(step),
        inside(piece * 8 < features) {}

  // Issues the copies of a tile, and goes to the one before it. Rows from `left` on become zeros.
  __device__ void fetch(gt_copies &copies, T *tile, int left = count) {
#pragma unroll
    for (int row = 0; row < count; row += rows)
      copies.issue(gt_piece(tile + (first + row) * D, first % 8, piece), from + row * step,
                   inside && first + row < left ? 16 : 0);
    from -= count * step;
  }
};
