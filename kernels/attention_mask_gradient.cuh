// Attention backward, of a block: the gradient of a mask that was added to the scores.
// Needs sm_80.
//
// dmask = the sum of ds = p * (g @ v.T - delta), as in attention_backward.cuh, over the axes along
// which the mask repeats: its matrices, and all queries or keys where it has one for all.
//
// Layout: q, k, v, g as in attention_backward.cuh, whose first launch has left `numbers`: of each
// query log, delta (of halves more exact than out) and the largest score. gt_mask_gradient says
// where they lie. dmask: any strides.
// A block has 64 queries and 64 keys (32 where a row has 512 bytes) of one matrix of the mask. All
// tiles that it repeats over pass in one order, and their sum stays in registers: nothing larger
// than the mask is written, and each element once. A warp has 16 of the queries. Sums are float32.
// Traffic: the rows of queries and of keys for each tile of weights (from L2, where they fit).
#pragma once

#include "attention_products.cuh"

struct gt_mask_gradient_axis {
  gt_index length, q, k, v, g, numbers, dmask;  // strides in elements
};

// `_MASK_SPACE` in gtensor/ops/attention/fused.py repeats it. Of `rows` the length is that of
// queries. The mask repeats along the first leading axes, over `repeats` matrices.
struct gt_mask_gradient {
  gt_mask_gradient_axis lead[GT_LEAD_AXES], rows;  // innermost first; those left over: 1
  gt_index matrices, repeats, one_query, one_key, key_step, keys, features, value_features, causal;
};

// `Products`: keys of a tile pass.
template <typename Products>
class gt_mask_gradient_block {
  typedef typename Products::type T;
  static constexpr int D = Products::features, owned = 64, passing = Products::passing;
  static constexpr int threads = owned / Products::rows * 32;
  typedef float tile_sums[passing / 8][4];  // 16 x passing

  const Products products{};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  // sums = a's rows of the warp @ b.T. Of float half of the features at a time: shorter sums are
  // rounded less, and the gradient, a difference of such sums, shows it more than others do.
  __device__ void multiply(typename Products::tile_sums &sums, const T *a, const T *b) const {
    constexpr int parts = sizeof(T) == 4 ? 2 : 1, steps = Products::steps / parts;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      typename Products::tile_sums found = {};
#pragma unroll Products::unrolled
      for (int i = part * steps; i < (part + 1) * steps; ++i) {
        typename Products::fragment own;
        products.load_own(own, a, i);
        products.add_products(found, own, b, i);
      }
#pragma unroll
      for (int n = 0; n < passing / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[0][n][e] = part == 0 ? found[0][n][e] : sums[0][n][e] + found[0][n][e];
    }
  }

  // The sums over keys, as those of the first key.
  static __device__ void add_up_keys(tile_sums &sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0;
#pragma unroll
      for (int n = 0; n < passing / 8; ++n) sum += sums[n][2 * half] + sums[n][2 * half + 1];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      sums[0][2 * half] = sum;
    }
  }

  // Writes the sums over queries, of `keys` keys.
  __device__ void store_sums_of_queries(const tile_sums &sums, T *to, gt_index step,
                                        int keys) const {
    __shared__ float of_warps[threads / 32][passing];
#pragma unroll
    for (int n = 0; n < passing / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = sums[n][e] + sums[n][2 + e];
#pragma unroll
        for (int other = 4; other < 32; other *= 2)
          sum += __shfl_xor_sync(0xffffffffu, sum, other);
        if (lane < 4) of_warps[warp][n * 8 + lane * 2 + e] = sum;
      }
    __syncthreads();  // the sums of all warps are there
    const int key = threadIdx.x;
    if (key >= min(keys, passing)) return;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < threads / 32; ++i) sum += of_warps[i][key];
    to[key * step] = gt_down<T>(sum);
  }

 public:
  // bytes of dynamic shared memory: `mask_plan` in gtensor/ops/attention/fused.py repeats it
  __device__ void run(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                      T *dmask, const gt_mask_gradient &space, float scale,
                      gt_terms<T> terms) const {
    extern __shared__ __align__(128) unsigned char memory[];
    T *const query_tile = reinterpret_cast<T *>(memory);
    T *const arrived_tile = query_tile + owned * D;
    T *const key_tile = arrived_tile + owned * D;
    T *const value_tile = key_tile + passing * D;
    typedef typename gt_terms<T>::numbers query_numbers;

    const unsigned repeats = static_cast<unsigned>(space.repeats);
    const unsigned masks = static_cast<unsigned>(space.matrices) / repeats;
    const int query_count = static_cast<int>(space.rows.length);
    const int key_count = static_cast<int>(space.keys);
    const int features = static_cast<int>(space.features);
    const int value_features = static_cast<int>(space.value_features);
    const bool one_query = space.one_query != 0, one_key = space.one_key != 0;
    const bool causal = space.causal != 0;
    const int query_tiles = (query_count + owned - 1) / owned;
    const int key_tiles = (key_count + passing - 1) / passing;
    // Tiles of weights that are added up: from one of queries and of keys on.
    const unsigned rest = blockIdx.x / masks;
    const unsigned across = one_key ? 1 : key_tiles;
    const int from_query = rest / across, from_key = rest % across;
    const int most_queries = one_query ? query_tiles : 1, most_keys = one_key ? key_tiles : 1;

    gt_copies copies;
    tile_sums sums = {};
    gt_index place = 0;  // of the matrix of the mask
    for (unsigned repeat = 0; repeat < repeats; ++repeat) {
      const unsigned matrix = blockIdx.x % masks * repeats + repeat;
      unsigned left = matrix;
      const T *from_q = q, *from_k = k, *from_v = v, *from_g = g;
      const float *from_numbers = numbers;
      place = 0;
#pragma unroll
      for (int axis = 0; axis < GT_LEAD_AXES; ++axis) {
        const gt_mask_gradient_axis &lead = space.lead[axis];
        const unsigned length = static_cast<unsigned>(lead.length);
        const gt_index at = left % length;
        left /= length;
        from_q += at * lead.q, from_k += at * lead.k, from_v += at * lead.v;
        from_g += at * lead.g, from_numbers += at * lead.numbers, place += at * lead.dmask;
      }
      terms.enter(matrix);
#pragma unroll 1
      for (int each = 0; each < most_queries * most_keys; ++each) {
        const int first = (from_query + each / most_keys) * owned;
        const int origin = (from_key + each % most_keys) * passing;
        __syncthreads();  // the tiles before these are read no more
        gt_tile_rows<T, D, owned, threads>(from_q, space.rows.q, first, features)
            .fetch(copies, query_tile, query_count - first);
        gt_tile_rows<T, D, owned, threads>(from_g, space.rows.g, first, value_features)
            .fetch(copies, arrived_tile, query_count - first);
        gt_tile_rows<T, D, passing, threads>(from_k, space.rows.k, origin, features)
            .fetch(copies, key_tile, key_count - origin);
        gt_tile_rows<T, D, passing, threads>(from_v, space.rows.v, origin, value_features)
            .fetch(copies, value_tile, key_count - origin);
        copies.commit();
        copies.wait<0>();
        __syncthreads();  // the tiles are there

        const int row = first + warp * 16 + lane / 4;  // a lane has it, and eight further on
        typename Products::tile_sums scores, changes;
        multiply(scores, query_tile, key_tile);
        multiply(changes, arrived_tile, value_tile);
        terms.score(scores[0], scale, row, origin);
        if (terms.dropout.threshold) {
          // A quad of lanes has eight keys of a row: each lane draws for a quarter of them.
          unsigned drawn = 0;
#pragma unroll 1
          for (int i = 0; i < passing / 16; ++i)
            drawn |= terms.kept(row + i % 2 * 8, origin / 8 + i / 2 * 4 + lane % 4) << i * 8;
#pragma unroll
          for (int n = 0; n < passing / 8; ++n) {
            const unsigned kept = __shfl_sync(0xffffffffu, drawn, n % 4, 4);
#pragma unroll
            for (int e = 0; e < 4; ++e)
              changes[0][n][e] *= terms.factor(kept, n / 4 * 16 + e / 2 * 8 + lane % 4 * 2 + e % 2);
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const query_numbers known =
              reinterpret_cast<const query_numbers *>(from_numbers)[row + half * 8];
          const int seen = (causal ? min(key_count, row + half * 8 + 1) : key_count) - origin -
                           lane % 4 * 2;  // keys, from the lane's first one on
#pragma unroll
          for (int n = 0; n < passing / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (n * 8 + e < seen)
                sums[n][2 * half + e] += known.weight(scores[0][n][2 * half + e], scale) *
                                         (changes[0][n][2 * half + e] - known.delta);
        }
      }
    }

    if (one_key) add_up_keys(sums);
    const int first = from_query * owned + warp * 16 + lane / 4, origin = from_key * passing;
    const int keys = one_key ? 1 : key_count - origin;
    dmask += place + origin * space.key_step;
    if (one_query) {
      store_sums_of_queries(sums, dmask, space.key_step, keys);
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + half * 8;
#pragma unroll
      for (int n = 0; n < passing / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = n * 8 + lane % 4 * 2 + e;
          if (row < query_count && key < keys)
            dmask[row * space.rows.dmask + key * space.key_step] =
                gt_down<T>(sums[n][2 * half + e]);
        }
    }
  }
};
