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
  gt_index key_step, keys, itemsize;  // elements and bytes of the mask: 0 none, 1 boolean, or of T
  gt_index wide;  // whether eight keys lie side by side, aligned, and are read at once
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

// Of a quad of lanes, register i of lane t becomes register t of lane i.
__device__ inline void gt_turn_quad(unsigned (&registers)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      unsigned &low = registers[i], &high = registers[i + step];
      const unsigned other = __shfl_xor_sync(0xffffffffu, upper ? low : high, step);
      low = upper ? other : low;
      high = upper ? high : other;
    }
  }
}

// Which of the four bytes of a word are not 0: a bit each, that of the lowest byte the lowest.
__device__ inline unsigned gt_bytes_set(unsigned word) {
  const unsigned high = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
  return (high >> 7) * 0x10204080u >> 28;
}

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
// Number: of a matrix; with 32 bits forward, with 64 bits backward has registers enough everywhere.
template <typename T, typename Number = gt_index>
class gt_terms {
  const gt_attention_terms &space;
  const unsigned char *const whole, *mask = nullptr;  // of all matrices, of this one
  Number number = 0;                                  // of the matrix

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
      number += static_cast<Number>(at * space.lead[axis].number);
    }
  }

  // Scores of 16 queries and 8 * N keys, as a lane has those of a product: scaled, and masked.
  // `row` is the lane's first query, `origin` the first key.
  template <int N>
  __device__ void score(float (&scores)[N][4], float scale, int row, int origin) const {
    const int quarter = threadIdx.x % 4;
    scaled(scores, scale);
    if (space.itemsize == sizeof(T)) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int first = 0; first < N; first += 4) {
          const eight added = turned(at(row + half * 8, origin / 8 + first + quarter));
#pragma unroll
          for (int i = 0; i < 4 && first + i < N; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              scores[first + i][2 * half + e] += value(added.words[e % words][i], e);
        }
    } else if (space.itemsize == 1) {
#pragma unroll
      for (int first = 0; first < N; first += 4) {
        const int eighth = origin / 8 + first + quarter;
        const unsigned own = seen(row, eighth) | seen(row + 8, eighth) << 8;
#pragma unroll
        for (int i = 0; i < 4 && first + i < N; ++i) {
          const unsigned bits = __shfl_sync(0xffffffffu, own, i, 4) >> quarter * 2;
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (!(bits >> (e / 2 * 8 + e % 2) & 1)) scores[first + i][e] = -gt_infinity<float>();
        }
      }
    }
  }

  // The same of 16 keys, of which `key` is the lane's first one, and of queries from `origin` on.
  template <int N>
  __device__ void score_turned(float (&scores)[N][4], float scale, int key, int origin) const {
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    const int eighth = (key - group) / 8;
    scaled(scores, scale);
    if (words == 2 && space.itemsize == sizeof(T)) {
      // As eight lanes have a query's eight keys, single loads use whole sectors.
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[n][e] += one(origin + n * 8 + quarter * 2 + e % 2, key + e / 2 * 8);
    }
#pragma unroll
    for (int first = 0; first < N; first += 4) {
      const int query = origin + first * 8;
      if (words == 1 && space.itemsize == sizeof(T)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Now of query i * 8 + group the keys 2 * quarter and the next one, for each i.
          const eight added = turned(at(query + quarter * 8 + group, eighth + half));
#pragma unroll
          for (int i = 0; i < 4 && first + i < N; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int from = (quarter * 2 + e) * 4 + group / 2;
              const unsigned word = __shfl_sync(0xffffffffu, added.words[0][i], from);
              scores[first + i][2 * half + e] += value(word, group % 2);
            }
        }
      } else if (space.itemsize == 1) {
        const unsigned own = seen(query + lane, eighth) | seen(query + lane, eighth + 1) << 8;
#pragma unroll
        for (int i = 0; i < 4 && first + i < N; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const unsigned bits =
                __shfl_sync(0xffffffffu, own, i * 8 + quarter * 2 + e) >> group;
            if (!(bits & 1)) scores[first + i][e] = -gt_infinity<float>();
            if (!(bits & 1 << 8)) scores[first + i][2 + e] = -gt_infinity<float>();
          }
      }
    }
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
  // Of eight keys what is added to the scores, in pairs: pair i is the word i, or word i of both.
  static constexpr int words = sizeof(T) / 2;
  struct eight {
    unsigned words[sizeof(T) / 2][4];
  };

  template <int N>
  static __device__ void scaled(float (&scores)[N][4], float scale) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] *= scale;
  }

  // The first or the second one of a pair, of which this is the word.
  static __device__ float value(unsigned word, int second) {
    T value;
    if constexpr (words == 2) {
      memcpy(static_cast<void *>(&value), &word, sizeof value);
    } else {
      const unsigned short bits = static_cast<unsigned short>(word >> 16 * second);
      memcpy(static_cast<void *>(&value), &bits, sizeof value);
    }
    return gt_up(value);
  }

  // Of a quad of lanes, pair i of lane t becomes pair t of lane i.
  static __device__ eight turned(eight x) {
#pragma unroll
    for (int w = 0; w < words; ++w) gt_turn_quad(x.words[w]);
    return x;
  }

  __device__ bool outside(int query, int key) const {
    return query >= static_cast<int>(space.rows.length) || key >= static_cast<int>(space.keys);
  }

  // Whether all of eight keys are read at once.
  __device__ bool at_once(int key) const {
    return space.wide && key + 8 <= static_cast<int>(space.keys);
  }

  __device__ int place(int query, int key) const {
    return query * static_cast<int>(space.rows.mask) + key * static_cast<int>(space.key_step);
  }

  // What is added to a score; 0 outside.
  __device__ float one(int query, int key) const {
    return outside(query, key) ? 0.0f : gt_up(reinterpret_cast<const T *>(mask)[place(query, key)]);
  }

  // What is added to the scores of keys 8 * eighth .. + 7; 0 outside.
  __device__ eight at(int query, int eighth) const {
    const int key = eighth * 8;
    eight found = {};
    const T *const from = reinterpret_cast<const T *>(mask);
    if (at_once(key)) {
      if (outside(query, key)) return found;
#pragma unroll
      for (int part = 0; part < words; ++part) {
        const uint4 bits = reinterpret_cast<const uint4 *>(from + place(query, key))[part];
        const unsigned flat[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          found.words[i % words][(part * 4 + i) / words] = flat[i];
      }
      return found;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (!outside(query, key + i)) {
        const T value = from[place(query, key + i)];
        unsigned bits = 0;
        memcpy(&bits, static_cast<const void *>(&value), sizeof value);
        found.words[i % words][i / 2] |= words == 2 ? bits : bits << i % 2 * 16;
      }
    return found;
  }

  // Which of keys 8 * eighth .. + 7 take part: a bit each; none outside.
  __device__ unsigned seen(int query, int eighth) const {
    const int key = eighth * 8;
    unsigned bits = 0;
    if (at_once(key)) {
      if (outside(query, key)) return 0;
      const uint2 bytes = *reinterpret_cast<const uint2 *>(mask + place(query, key));
      return gt_bytes_set(bytes.x) | gt_bytes_set(bytes.y) << 4;
    }
#pragma unroll 1
    for (int i = 0; i < 8; ++i)
      if (!outside(query, key + i) && mask[place(query, key + i)]) bits |= 1u << i;
    return bits;
  }
};
