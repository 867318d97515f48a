// Attention forward, of a block: out = softmax(scale * q @ k.T) @ v, in one launch.
// Needs sm_80.
//
// Layout: q (..., queries, features), k (..., keys, features), v (..., keys, value_features), out
// (..., queries, value_features). gt_attention says where they lie: up to GT_LEAD_AXES leading
// axes, of any strides, 0 where an array repeats. Features lie side by side; they, and all strides,
// are multiples of 16 bytes, and so are the places where arrays begin. logs (..., queries),
// contiguous: the logarithm of the sum of exponentials, 0 for a query that sees no key. totals, if
// not NULL: as many ones, the sums of exponentials relative to logs. With a mask or dropout, and of
// float32, logs are the largest scores, and totals the sums relative to them.
// A block takes the queries of a tile, of one matrix. Keys and values come through two stages of
// shared memory, the last ones first; a causal block skips what none of its queries sees. Sums are
// float32; weights of halves are rounded to T before they multiply values.
// Traffic: q and out once, k and v once for each block of queries (from L2, where they fit).
// With a mask or dropout, the kernels with `terms`: gt_attention_terms says where the mask lies, of
// which eight keys are read from global memory at once where they lie side by side and aligned.
// Dropout draws its bits again from the places of the weights.
// Source: Dao, "FlashAttention-2", 2023.
#pragma once

#include "attention_products.cuh"

struct gt_attention_axis {
  gt_index length, q, k, v, out;  // strides in elements
};

// `_SPACE` in gtensor/ops/attention/fused.py repeats it. Of `rows` the length is that of queries.
struct gt_attention {
  gt_attention_axis lead[GT_LEAD_AXES], rows;  // leading axes innermost first; those left over: 1
  gt_index matrices, keys, features, value_features, causal;
};

// `queries`: of a block's tile. `Products`: keys of a tile pass.
template <typename Products, int queries, typename Terms>
class gt_attention_block {
  typedef typename Products::type T;
  static constexpr int D = Products::features, M = Products::tiles, keys = Products::passing;
  static constexpr int warp_rows = Products::rows, threads = queries / warp_rows * 32;

 public:
  // bytes of dynamic shared memory: `plan` in gtensor/ops/attention/fused.py repeats it
  static __device__ void forward(const T *q, const T *k, const T *v, T *out, float *logs,
                                 float *totals, const gt_attention &space, double whole_scale,
                                 Terms terms) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ gt_index out_begin;  // of the matrix; shared, as registers are scarce
    T *const query_tile = reinterpret_cast<T *>(memory);
    T *const key_tiles = query_tile + queries * D;
    T *const value_tiles = key_tiles + 2 * keys * D;
    const Products products{};
    const int lane = threadIdx.x % 32;

    // The blocks of a causal mask with the most keys first.
    const unsigned matrices = static_cast<unsigned>(space.matrices);
    const unsigned matrix = blockIdx.x % matrices;
    const int first = (gridDim.x / matrices - 1 - blockIdx.x / matrices) * queries;
    const int begin = first + threadIdx.x / 32 * warp_rows;  // of the warp
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
    const float scale = static_cast<float>(whole_scale), infinity = gt_infinity<float>();

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

    constexpr int held = Products::in_registers ? Products::steps : 0;  // fragments of queries
    typename Products::fragment query[held + 1];
#pragma unroll
    for (int i = 0; i < held; ++i) products.load_own(query[i], query_tile, i);

    // A lane has 2 * M rows: `row`, and those that are each eight further on. With `begin` in a
    // register of its own, too, these would not suffice.
    const int row = begin + lane / 4;
    typename Products::own_sums sums = {};
    float top[M][2], total[M][2] = {};
#pragma unroll
    for (int m = 0; m < M; ++m) top[m][0] = top[m][1] = -infinity;
    for (int stage = 0; step >= 0; --step, stage ^= 1) {
      if (step > 0) key_rows.fetch(copies, key_tiles + (stage ^ 1) * keys * D);
      copies.commit();

      typename Products::tile_sums scores = {};
#pragma unroll Products::unrolled
      for (int i = 0; i < Products::steps; ++i) {
        if (!held) products.load_own(query[0], query_tile, i);
        products.add_products(scores, query[held ? i : 0], key_tiles + stage * keys * D, i);
      }
      const int origin = step * keys;
      if constexpr (Terms::present)
#pragma unroll
        for (int m = 0; m < M; ++m) terms.score(scores[m], scale, row + m * 16, origin);
      if (origin + keys > key_count || (causal && origin + keys > begin + 1)) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            // How many keys of the tile this row sees, from this lane's first one on.
            const int seen =
                (causal ? min(key_count, row + m * 16 + half * 8 + 1) : key_count) - origin -
                lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < keys / 8; ++n)
#pragma unroll
              for (int e = 2 * half; e < 2 * half + 2; ++e)
                if (n * 8 + e % 2 >= seen) scores[m][n][e] = -infinity;
          }
      }

#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float most = top[m][half];
#pragma unroll
          for (int n = 0; n < keys / 8; ++n)
            most = fmaxf(most, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
          most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
          most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
          const float base = most == -infinity ? 0.0f : Terms::exponent(most, scale);  // no NaN
          const float shrunk = Terms::weight(top[m][half], scale, base);
          top[m][half] = most;
          float sum = 0;
#pragma unroll
          for (int n = 0; n < keys / 8; ++n)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
              scores[m][n][e] = Terms::weight(scores[m][n][e], scale, base);
              sum += scores[m][n][e];
            }
          total[m][half] = fmaf(total[m][half], shrunk, sum);
#pragma unroll
          for (int n = 0; n < D / 8; ++n) {
            sums[m][n][2 * half] *= shrunk;
            sums[m][n][2 * half + 1] *= shrunk;
          }
        }
      if constexpr (Terms::present)
        if (terms.dropout.threshold) {
          // A quad of lanes has eight keys of a row: each lane draws for a quarter of them.
          constexpr int rows = 2 * M;  // of a lane
          unsigned drawn = 0;
#pragma unroll 1
          for (int i = 0; i < rows * keys / 32; ++i)
            drawn |= terms.kept(row + i % rows * 8, origin / 8 + i / rows * 4 + lane % 4) << i * 8;
#pragma unroll
          for (int n = 0; n < keys / 8; ++n) {
            const unsigned kept = __shfl_sync(0xffffffffu, drawn, n % 4, 4);
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
              for (int e = 0; e < 4; ++e)
                scores[m][n][e] *= terms.factor(
                    kept, ((n / 4 * M + m) * 2 + e / 2) * 8 + lane % 4 * 2 + e % 2);
          }
        }

      copies.wait<1>();
      __syncthreads();  // the values are there; the values before them are read no more
      if (step > 0) value_rows.fetch(copies, value_tiles + (stage ^ 1) * keys * D);
      copies.commit();
      products.add_mixed(sums, scores, value_tiles + stage * keys * D);
      copies.wait<1>();
      __syncthreads();  // the next keys are there; these ones are read no more
    }

#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = total[m][half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const bool none = sum == 0;
        const float inverse = none ? 0.0f : 1.0f / sum;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          sums[m][n][2 * half] *= inverse;
          sums[m][n][2 * half + 1] *= inverse;
        }
        const int at_row = row + m * 16 + half * 8;
        if (lane % 4 == 0 && at_row < query_count) {
          const gt_index at = static_cast<gt_index>(matrix) * query_count + at_row;
          if constexpr (Terms::keeps_largest) {
            logs[at] = none ? 0.0f : Terms::exponent(top[m][half], scale);
            totals[at] = none ? 1.0f : sum;
          } else {
            logs[at] = none ? 0.0f : (top[m][half] * scale + log2f(sum)) * 0.693147180559945309f;
            if (totals) totals[at] = 1;
          }
        }
      }
    products.store(sums, 1.0f, query_tile, out + out_begin + (row - lane / 4) * space.rows.out,
                   space.rows.out, query_count - (row - lane / 4), value_features);
  }
};
