// What attention forward and backward share: tiles of rows in shared memory, masks and dropout.
// Needs sm_80.
#pragma once

#include "mma.cuh"
#include "philox.cuh"

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

struct gt_attention_term_axis {
  gt_index length, mask, number;  // what a step along it adds: elements of the mask, matrices
};

// `_TERMS` in gtensor/ops/attention/fused.py repeats it. Leading axes are those of the kernel's
// structure; `number` counts matrices in the order of the axes, for dropout.
struct gt_attention_terms {
  gt_attention_term_axis lead[GT_LEAD_AXES], rows;  // of rows the length is that of queries
  gt_index key_step, keys, itemsize;  // elements and bytes of the mask: 0 none, 1 boolean, 2 of T
};

// The dropout of weights: those whose 32 bits are below the threshold are 0, others grow by the
// factor. Without dropout the threshold is 0. The seed may be in memory.
struct gt_attention_dropout {
  unsigned long long seed, threshold;
  float factor;

  __device__ gt_attention_dropout(const gt_index *place, gt_index seed, gt_index threshold,
                                  double factor)
      : seed(static_cast<unsigned long long>(place ? *place : seed)),
        threshold(static_cast<unsigned long long>(threshold)),
        factor(static_cast<float>(factor)) {}
};

// In the place of gt_terms where there is neither mask nor dropout.
struct gt_no_terms {
  static constexpr bool present = false;

  // Of a query, for backward: the logarithm of its sum, of powers of two, and delta.
  struct __align__(8) numbers {
    float log, delta;

    __device__ float weight(float score, float scale) const {
      return gt_exp2(fmaf(score, scale, -log));
    }
  };
};

// The mask and the dropout of a matrix of weights. Scores are multiplied by the scale before the
// mask is added; their exponentials are of e here, as in powers of two a large mask would overflow.
template <typename T>
class gt_terms {
  const gt_attention_terms &space;
  const unsigned char *const whole, *mask = nullptr;  // of all matrices, of this one
  gt_index number = 0;                                // of the matrix

 public:
  static constexpr bool present = true;
  const gt_attention_dropout dropout;

  // The largest score is apart: with it the logarithm of the sum could be lost.
  struct numbers {
    float log, delta, largest;

    __device__ float weight(float score, float) const {
      return gt_exp2(fmaf(score - largest, 1.44269504088896341f, -log));
    }
  };

  __device__ gt_terms(const void *mask, const gt_attention_terms &space,
                      const gt_attention_dropout &dropout)
      : space(space), whole(static_cast<const unsigned char *>(mask)), dropout(dropout) {}

  __device__ void enter(unsigned matrix) {
    mask = whole, number = 0;
#pragma unroll
    for (int axis = 0; axis < GT_LEAD_AXES; ++axis) {
      const unsigned length = static_cast<unsigned>(space.lead[axis].length);
      const gt_index at = matrix % length;
      matrix /= length;
      mask += at * space.lead[axis].mask * space.itemsize;
      number += at * space.lead[axis].number;
    }
  }

  __device__ float score(float product, float scale, int query, int key) const {
    const float scaled = product * scale;
    if (space.itemsize == 0 || query >= static_cast<int>(space.rows.length) ||
        key >= static_cast<int>(space.keys))
      return scaled;
    const int at =
        query * static_cast<int>(space.rows.mask) + key * static_cast<int>(space.key_step);
    if (space.itemsize == 1) return mask[at] ? scaled : -gt_infinity<float>();
    return scaled + gt_up(reinterpret_cast<const T *>(mask)[at]);
  }

  // Which weights of keys 8 * eighth .. + 7 are kept: a bit each, that of the first one the lowest.
  // The number of keys is a multiple of 8.
  __device__ unsigned kept(int query, int eighth) const {
    unsigned long long words[4];
    const gt_index row = number * space.rows.length + query;
    gt_philox(words, dropout.seed,
              static_cast<unsigned long long>(row * (space.keys / 8) + eighth));
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      bits |= static_cast<unsigned>((words[i / 2] >> i % 2 * 32 & 0xffffffffu) >= dropout.threshold)
              << i;
    return bits;
  }

  // What multiplies a weight, by its bit.
  __device__ float factor(unsigned bits, int bit) const {
    return bits >> bit & 1 ? dropout.factor : 0.0f;
  }
};
