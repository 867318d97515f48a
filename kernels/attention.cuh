// What attention forward and backward share: tiles of rows in shared memory, masks and dropout.
// Needs sm_80.
#pragma once

#include "mma.cuh"
#include "pack.cuh"
#include "philox.cuh"

#define GT_LEAD_AXES 4  // `_LEAD_AXES` in gtensor/ops/attention/fused.py repeats it

// A piece of 16 bytes of a row of a tile. The pieces of a row are exchanged, so that those of eight
// rows lie in different banks: `exchange` is the row's number mod 8. With its lowest bit flipped,
// an even `piece` names the piece behind it.
template <typename T>
__device__ inline T *gt_piece(T *row, int exchange, int piece) {
  return row + ((piece % 8 ^ exchange) + piece / 8 * 8) * gt_width<T>;
}

// What a thread copies of the tiles of a matrix, `count` rows of D features each: a piece of every
// few rows.
template <typename T, int D, int count, int threads>
class gt_tile_rows {
  static constexpr int pieces = D / gt_width<T>;
  static constexpr int rows = threads / pieces;  // of the threads at once
  const int first, piece;  // row of a tile
  const T *from;
  const gt_index step;
  const bool inside;  // the matrix has these features; others are zeros

 public:
  __device__ gt_tile_rows(const T *matrix, gt_index step, int begin, int features)
      : first(threadIdx.x / pieces),
        piece(threadIdx.x % pieces),
        from(matrix + (begin + first) * step + piece * gt_width<T>),
        step(step),
        inside(piece * gt_width<T> < features) {}

  // Issues the copies of a tile, and goes to the one before it. Rows from `left` on become zeros.
  __device__ void fetch(gt_copies &copies, T *tile, int left = count) {
#pragma unroll
    for (int row = 0; row < count; row += rows)
      copies.issue(gt_piece(tile + (first + row) * D, (first + row) % 8, piece), from + row * step,
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

// In the place of gt_terms where there is neither mask nor dropout. Exponentials are powers of two:
// scale is that of the scores times log2(e), of each query the logarithm of its sum is kept.
struct gt_no_terms {
  static constexpr bool present = false, keeps_largest = false;

  // A score as an exponent, and a weight relative to another exponent.
  static __device__ float exponent(float score, float scale) { return score * scale; }

  static __device__ float weight(float score, float scale, float base) {
    return gt_exp2(fmaf(score, scale, -base));
  }

  // Of a query, for backward: the logarithm of its sum, and delta.
  struct __align__(8) numbers {
    float log, delta;

    static __device__ numbers of(float largest, float total, float delta) {
      return {fmaf(largest, 1.44269504088896341f, log2f(total)), delta};
    }

    __device__ float weight(float score, float scale) const {
      return gt_exp2(fmaf(score, scale, -log));
    }
  };
};

// The same as exact as float: the scale of most scores is a power of two, by which they stay exact;
// and weights relative to the largest one have no error in common, as from a rounded logarithm.
struct gt_no_terms_exact {
  static constexpr bool present = false, keeps_largest = true;

  static __device__ float exponent(float score, float scale) { return score * scale; }

  static __device__ float weight(float score, float scale, float base) {
    return gt_exp2(fmaf(score, scale, -base) * 1.44269504088896341f);
  }

  struct numbers {
    float inverse, delta, largest;

    static __device__ numbers of(float largest, float total, float delta) {
      return {1.0f / total, delta, largest};
    }

    __device__ float weight(float score, float scale) const {
      return gt_no_terms_exact::weight(score, scale, largest) * inverse;
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
  static constexpr bool present = true, keeps_largest = true;
  const gt_attention_dropout dropout;

  static __device__ float exponent(float score, float) { return score; }

  static __device__ float weight(float score, float, float base) {
    return gt_exp2((score - base) * 1.44269504088896341f);
  }

  // The largest score is apart: with it the logarithm of the sum could be lost. Of float the sum
  // stays one, too, as in gt_no_terms_exact.
  struct numbers {
    static constexpr bool exact = sizeof(T) == 4;
    float sum, delta, largest;

    static __device__ numbers of(float largest, float total, float delta) {
      return {exact ? 1.0f / total : log2f(total), delta, largest};
    }

    __device__ float weight(float score, float) const {
      return exact ? gt_terms::weight(score, 0, largest) * sum
                   : gt_exp2(fmaf(score - largest, 1.44269504088896341f, -sum));
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

  // Scores of 16 queries and 8 * N keys, as a lane has those of a product: scaled, and masked.
  // `row` is the lane's first query, `origin` the first key.
  template <int N>
  __device__ void score(float (&scores)[N][4], float scale, int row, int origin) const {
    const int first = origin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[n][e] = one(scores[n][e] * scale, row + e / 2 * 8, first + n * 8 + e % 2);
  }

  // The same of 16 keys, of which `key` is the lane's first one, and of queries from `origin` on.
  template <int N>
  __device__ void score_turned(float (&scores)[N][4], float scale, int key, int origin) const {
    const int first = origin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[n][e] = one(scores[n][e] * scale, first + n * 8 + e % 2, key + e / 2 * 8);
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

 private:
  __device__ float one(float scaled, int query, int key) const {
    if (space.itemsize == 0 || query >= static_cast<int>(space.rows.length) ||
        key >= static_cast<int>(space.keys))
      return scaled;
    const int at =
        query * static_cast<int>(space.rows.mask) + key * static_cast<int>(space.key_step);
    if (space.itemsize == 1) return mask[at] ? scaled : -gt_infinity<float>();
    return scaled + gt_up(reinterpret_cast<const T *>(mask)[at]);
  }
};
