// Attention forward on tensor cores: out = softmax(scale * q @ k.T) @ v, in one launch.
// Needs sm_80. Types: __half, __nv_bfloat16.
//
// Layout: q (..., queries, features), k (..., keys, features), v (..., keys, value_features), out
// (..., queries, value_features). gt_attention says where they lie: up to GT_LEAD_AXES leading
// axes, of any strides, 0 where an array repeats. Features lie side by side; they, and all strides,
// are multiples of 8, and arrays begin at multiples of 16 bytes. logs (..., queries), contiguous:
// the logarithm of the sum of exponentials, 0 for a query that sees no key. totals, if not NULL: as
// many ones, the sums of exponentials relative to logs.
// A block takes 128 queries of one matrix, a warp 16 of them. Keys and values come through two
// stages of shared memory, 64 at a time, the last ones first; a causal block skips what none of its
// queries sees. Sums are float32; weights are rounded to T before they multiply values.
// Traffic: q and out once, k and v once for each block of queries (from L2, where they fit).
// With a mask or dropout, the kernels with `terms`: gt_attention_terms says where the mask lies, of
// which each element is read from global memory by the lane that has its score. Of each query the
// largest score is kept instead of the logarithm, and the sum relative to it. Dropout draws its
// bits again from the places of the weights.
// Source: Dao, "FlashAttention-2", 2023.
#include "attention.cuh"
#include "mma.cuh"

struct gt_attention_axis {
  gt_index length, q, k, v, out;  // strides in elements
};

// `_SPACE` in gtensor/ops/attention/fused.py repeats it. Of `rows` the length is that of queries.
struct gt_attention {
  gt_attention_axis lead[GT_LEAD_AXES], rows;  // leading axes innermost first; those left over: 1
  gt_index matrices, keys, features, value_features, causal;
};

template <typename T, int D, typename Terms>
class gt_attention_block {
  static constexpr int queries = 128, keys = 64;  // of a tile
  static constexpr int threads = queries * 2, pieces = D / 8;

  // A score as an exponent, and a weight relative to another exponent: powers of two, or of e where
  // a mask was added.
  static __device__ float exponent(float score, float scale) {
    return Terms::present ? score : score * scale;
  }

  static __device__ float weight(float score, float scale, float base) {
    return gt_exp2(Terms::present ? (score - base) * 1.44269504088896341f
                                  : fmaf(score, scale, -base));
  }

 public:
  // bytes of dynamic shared memory: `plan` in gtensor/ops/attention/fused.py repeats it
  static __device__ void forward(const T *q, const T *k, const T *v, T *out, float *logs,
                                 float *totals, const gt_attention &space, float scale,
                                 Terms terms) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ gt_index out_begin;  // of the matrix; shared, as registers are scarce
    T *const query_tile = reinterpret_cast<T *>(memory);
    T *const key_tiles = query_tile + queries * D;
    T *const value_tiles = key_tiles + 2 * keys * D;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // The blocks of a causal mask with the most keys first.
    const unsigned matrices = static_cast<unsigned>(space.matrices);
    const unsigned matrix = blockIdx.x % matrices;
    const int first = (gridDim.x / matrices - 1 - blockIdx.x / matrices) * queries;
    unsigned rest = matrix;
    gt_index out_place = 0;
#pragma unroll
    for (int axis = 0; axis < GT_LEAD_AXES; ++axis) {
      const gt_attention_axis &lead = space.lead[axis];
      const unsigned length = static_cast<unsigned>(lead.length);
      const gt_index at = rest % length;
      rest /= length;
      q += at * lead.q, k += at * lead.k, v += at * lead.v, out_place += at * lead.out;
    }
    if (threadIdx.x == 0) out_begin = out_place;
    if constexpr (Terms::present) terms.enter(matrix);
    const int query_count = static_cast<int>(space.rows.length);
    const int key_count = static_cast<int>(space.keys);
    const bool causal = space.causal != 0;
    const int features = static_cast<int>(space.features);
    const int value_features = static_cast<int>(space.value_features);
    const float infinity = gt_infinity<float>();

    gt_copies copies;
    // The tiles of keys that the block sees, from the last one down.
    int step = ((causal ? min(key_count, first + queries) : key_count) + keys - 1) / keys - 1;
    gt_tile_rows<T, D, queries, threads>(q, space.rows.q, first, features)
        .fetch(copies, query_tile, query_count - first);
    gt_tile_rows<T, D, keys, threads> key_rows(k, space.rows.k, step * keys, features);
    gt_tile_rows<T, D, keys, threads> value_rows(v, space.rows.v, step * keys, value_features);
    key_rows.fetch(copies, key_tiles, key_count - step * keys);
    copies.commit();
    value_rows.fetch(copies, value_tiles, key_count - step * keys);
    copies.commit();
    copies.wait<1>();
    __syncthreads();  // queries and keys are there

    // What a lane gives gt_piece for its row of a fragment: of queries and values, of keys.
    const int behind = lane % 8 ^ lane / 16, key_behind = lane % 8 ^ lane / 8 % 2;
    unsigned query[D / 16][4];
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
      gt_load_fragment(query[i], gt_piece(query_tile + (warp * 16 + lane % 16) * D, behind, i * 2));

    // A lane has two rows: `row`, and eight further on.
    const int row = first + warp * 16 + lane / 4;
    float sums[pieces][4] = {};
    float top[2] = {-infinity, -infinity}, total[2] = {0, 0};
    for (int stage = 0; step >= 0; --step, stage ^= 1) {
      const T *const key_row = key_tiles + stage * keys * D + (lane % 8 + lane / 16 * 8) * D;
      const T *const value_row = value_tiles + stage * keys * D + lane % 16 * D;
      if (step > 0) key_rows.fetch(copies, key_tiles + (stage ^ 1) * keys * D);
      copies.commit();

      float scores[keys / 8][4] = {};
#pragma unroll
      for (int i = 0; i < D / 16; ++i)
#pragma unroll
        for (int n = 0; n < keys / 8; n += 2) {
          unsigned b[4];  // keys n * 8 .. + 15, features i * 16 .. + 15
          gt_load_fragment(b, gt_piece(key_row, key_behind, i * 2) + n * 8 * D);
          gt_multiply<T>(scores[n], query[i], b[0], b[1]);
          gt_multiply<T>(scores[n + 1], query[i], b[2], b[3]);
        }
      const int origin = step * keys;
      if constexpr (Terms::present)
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            scores[n][e] = terms.score(scores[n][e], scale, row + e / 2 * 8,
                                       origin + n * 8 + lane % 4 * 2 + e % 2);
      if (origin + keys > key_count || (causal && origin + keys > first + warp * 16 + 1)) {
        int seen[2];  // how many keys of the tile, from this lane's first one on
#pragma unroll
        for (int half = 0; half < 2; ++half)
          seen[half] = (causal ? min(key_count, row + half * 8 + 1) : key_count) - origin -
                       lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (n * 8 + e % 2 >= seen[e / 2]) scores[n][e] = -infinity;
      }

#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = top[half];
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
          most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float base = most == -infinity ? 0.0f : exponent(most, scale);  // no NaN
        const float shrunk = weight(top[half], scale, base);
        top[half] = most;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            scores[n][e] = weight(scores[n][e], scale, base);
            sum += scores[n][e];
          }
        total[half] = fmaf(total[half], shrunk, sum);
#pragma unroll
        for (int n = 0; n < pieces; ++n) {
          sums[n][2 * half] *= shrunk;
          sums[n][2 * half + 1] *= shrunk;
        }
      }
      if constexpr (Terms::present)
        if (terms.dropout.threshold) {
          // A quad of lanes has eight keys of a row: each lane draws for a quarter of them.
          unsigned drawn = 0;
#pragma unroll 1
          for (int i = 0; i < keys / 16; ++i)
            drawn |= terms.kept(row + i % 2 * 8, origin / 8 + i / 2 * 4 + lane % 4) << i * 8;
#pragma unroll
          for (int n = 0; n < keys / 8; ++n) {
            const unsigned kept = __shfl_sync(0xffffffffu, drawn, n % 4, 4);
#pragma unroll
            for (int e = 0; e < 4; ++e)
              scores[n][e] *= terms.factor(kept, n / 4 * 16 + e / 2 * 8 + lane % 4 * 2 + e % 2);
          }
        }

      copies.wait<1>();
      __syncthreads();  // the values are there; the values before them are read no more
      if (step > 0) value_rows.fetch(copies, value_tiles + (stage ^ 1) * keys * D);
      copies.commit();
#pragma unroll
      for (int i = 0; i < keys / 16; ++i) {
        const unsigned weights[4] = {gt_two<T>(scores[2 * i][0], scores[2 * i][1]),
                                     gt_two<T>(scores[2 * i][2], scores[2 * i][3]),
                                     gt_two<T>(scores[2 * i + 1][0], scores[2 * i + 1][1]),
                                     gt_two<T>(scores[2 * i + 1][2], scores[2 * i + 1][3])};
#pragma unroll
        for (int n = 0; n < pieces; n += 2) {
          unsigned b[4];  // keys i * 16 .. + 15, features n * 8 .. + 15
          gt_load_fragment_transposed(b, gt_piece(value_row, behind, n) + i * 16 * D);
          gt_multiply<T>(sums[n], weights, b[0], b[1]);
          gt_multiply<T>(sums[n + 1], weights, b[2], b[3]);
        }
      }
      copies.wait<1>();
      __syncthreads();  // the next keys are there; these ones are read no more
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const bool none = sum == 0;
      const float inverse = none ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int n = 0; n < pieces; ++n) {
        sums[n][2 * half] *= inverse;
        sums[n][2 * half + 1] *= inverse;
      }
      if (lane % 4 == 0 && row + half * 8 < query_count) {
        const gt_index at = static_cast<gt_index>(matrix) * query_count + row + half * 8;
        if constexpr (Terms::present) {
          logs[at] = none ? 0.0f : top[half];
          totals[at] = none ? 1.0f : sum;
        } else {
          logs[at] = none ? 0.0f : (top[half] * scale + log2f(sum)) * 0.693147180559945309f;
          if (totals) totals[at] = 1;
        }
      }
    }
    // By the warp's own rows of the queries' tile, so that 16 bytes are written at once.
    T *const own_rows = query_tile + warp * 16 * D;
#pragma unroll
    for (int n = 0; n < pieces; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<unsigned *>(gt_piece(own_rows + (lane / 4 + half * 8) * D, lane / 4, n) +
                                      lane % 4 * 2) =
            gt_two<T>(sums[n][2 * half], sums[n][2 * half + 1]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * pieces / 32; ++i) {
      const int at = (i * 32 + lane) / pieces, piece = lane % pieces;
      const int row_at = first + warp * 16 + at;
      if (row_at < query_count && piece * 8 < value_features)
        *reinterpret_cast<uint4 *>(out + out_begin + row_at * space.rows.out + piece * 8) =
            *reinterpret_cast<const uint4 *>(gt_piece(own_rows + at * D, at % 8, piece));
    }
  }
};

// scale is that of the scores times log2(e), positive: exponentials are powers of two.
template <typename T>
__global__ void __launch_bounds__(256, 2)  // at most 128 registers
attention_forward_64(const T *q, const T *k, const T *v, T *out, float *logs, float *totals,
                     gt_attention space, double scale) {
  gt_attention_block<T, 64, gt_no_terms>::forward(q, k, v, out, logs, totals, space,
                                                  static_cast<float>(scale), {});
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 232 registers
attention_forward_128(const T *q, const T *k, const T *v, T *out, float *logs, float *totals,
                      gt_attention space, double scale) {
  gt_attention_block<T, 128, gt_no_terms>::forward(q, k, v, out, logs, totals, space,
                                                   static_cast<float>(scale), {});
}

// With a mask, or dropout, or both. scale is that of the scores.
template <typename T>
__global__ void __launch_bounds__(256, 2)  // at most 128 registers
attention_terms_forward_64(const T *q, const T *k, const T *v, T *out, float *largest,
                           float *totals, gt_attention space, double scale, const void *mask,
                           gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                           gt_index threshold, double factor) {
  gt_attention_block<T, 64, gt_terms<T>>::forward(
      q, k, v, out, largest, totals, space, static_cast<float>(scale),
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 255 registers
attention_terms_forward_128(const T *q, const T *k, const T *v, T *out, float *largest,
                            float *totals, gt_attention space, double scale, const void *mask,
                            gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                            gt_index threshold, double factor) {
  gt_attention_block<T, 128, gt_terms<T>>::forward(
      q, k, v, out, largest, totals, space, static_cast<float>(scale),
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

// Launch: a block of 256 threads for each 128 queries of each matrix, along x; dynamic shared
// memory for tiles of 128 queries, 128 keys and 128 values. Features up to 64, up to 128.
