// Attention backward, of a block: the gradients of q, k and v, in two launches.
// Needs sm_80.
//
// With scores s = scale * q @ k.T, weights p = softmax(s), arrived gradients g of out = p @ v:
//   dv = p.T @ g;  ds = p * (g @ v.T - delta), delta = sum(g * out);  dq = scale * ds @ k;
//   dk = scale * ds.T @ q
// The weights are computed again from the scores and two numbers that forward saved of each query:
// `largest`, and `totals`, the sum of exponentials relative to it.
//   attention_backward_queries   a block has some queries, keys and values pass it: dq, and of each
//                                query the logarithm of its sum (of powers of two), and delta
//   attention_backward_keys      then a block has some keys, queries pass it: dk and dv, or for
//                                more than 128 features one of both. Matrices that share keys and
//                                values are added up in their order.
// Both skip what a causal mask hides. Each sum has one order: no atomics.
//
// delta is as exact as out, which is rounded. The weights of a query add up to 1, so its ds add up
// to what delta lacks: where the gradient of a mask of halves follows, which nothing else rounds,
// the first launch adds this sum to the delta that it leaves. dq, made in the same pass, is as
// without it.
//
// With dropout, g @ v.T and the weights of dv are multiplied by what dropout multiplied.
//
// Layout: as in attention_forward.cuh; g and dv as out and v, dq and dk as q and k.
// gt_attention_gradients says where they lie. largest, totals (..., queries). numbers: of each
// matrix two for each query, up to whole blocks of queries; three with a mask or dropout, and of
// float32.
// A warp has as many of the block's rows as its sums leave registers for. What passes comes through
// two stages of shared memory, the last rows first. Sums are float32; of halves weights and ds are
// rounded to T before they multiply.
// Traffic: what a block has once; what passes once for each block (from L2, where it fits).
// Source: Dao, "FlashAttention-2", 2023.
#pragma once

#include "attention_products.cuh"

struct gt_attention_gradient_axis {
  gt_index length, q, k, v, out, g, saved, dq, dk, dv;  // strides in elements; largest is `saved`
};

// `_GRADIENT_SPACE` in gtensor/ops/attention/fused.py repeats it. Of `rows` the length is that of
// queries. Keys and values repeat along the first leading axes, over `repeats` matrices. of_mask:
// whether the gradient of a mask follows.
struct gt_attention_gradients {
  gt_attention_gradient_axis lead[GT_LEAD_AXES], rows;  // innermost first; those left over: 1
  gt_index matrices, repeats, of_mask, keys, features, value_features, causal;
};

// The begin of a matrix in each array.
struct gt_attention_place {
  gt_index q = 0, k = 0, v = 0, out = 0, g = 0, saved = 0, dq = 0, dk = 0, dv = 0;

  __device__ gt_attention_place(const gt_attention_gradients &space, unsigned matrix) {
#pragma unroll
    for (int axis = 0; axis < GT_LEAD_AXES; ++axis) {
      const gt_attention_gradient_axis &lead = space.lead[axis];
      const unsigned length = static_cast<unsigned>(lead.length);
      const gt_index at = matrix % length;
      matrix /= length;
      q += at * lead.q, k += at * lead.k, v += at * lead.v, out += at * lead.out;
      g += at * lead.g, saved += at * lead.saved;
      dq += at * lead.dq, dk += at * lead.dk, dv += at * lead.dv;
    }
  }
};

// `owned`: rows of a block's tile. `Products`: rows of the other kind pass.
template <typename Products, int owned, typename Terms>
class gt_attention_backward {
  typedef typename Products::type T;
  static constexpr int D = Products::features, M = Products::tiles;
  static constexpr int passing = Products::passing, warp_rows = Products::rows;
  static constexpr int threads = owned / warp_rows * 32, steps = Products::steps;

  const Products products{};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  typedef typename Products::fragment fragment;
  typedef typename Products::tile_sums tile_sums;
  typedef typename Products::own_sums own_sums;
  typedef typename Terms::numbers query_numbers;
  struct alignas(sizeof(query_numbers) == 8 ? 16 : 8) two_queries {
    query_numbers of[2];
  };

  static __device__ float gradient_scale(double scale) {
    return static_cast<float>(Terms::keeps_largest ? scale : scale * 0.693147180559945309);
  }

 public:
  // bytes of dynamic shared memory: `gradient_plan` in gtensor/ops/attention/fused.py repeats it
  __device__ void queries(const T *q, const T *k, const T *v, const T *out, const T *g,
                          const float *largest, const float *totals, float *numbers, T *dq,
                          const gt_attention_gradients &space, double scale, Terms terms) const {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ query_numbers own_numbers[owned];
    __shared__ gt_index dq_begin;  // of the matrix; shared, as registers are scarce
    T *const query_tile = reinterpret_cast<T *>(memory);
    T *const arrived_tile = query_tile + owned * D;
    T *const key_tiles = arrived_tile + owned * D;
    T *const value_tiles = key_tiles + 2 * passing * D;

    // The blocks of a causal mask with the most keys first.
    const unsigned matrices = static_cast<unsigned>(space.matrices);
    const unsigned matrix = blockIdx.x % matrices, blocks = gridDim.x / matrices;
    const int first = (blocks - 1 - blockIdx.x / matrices) * owned;
    const int begin = first + warp * warp_rows;  // of the warp
    const gt_attention_place place(space, matrix);
    if (threadIdx.x == 0) dq_begin = place.dq;
    if constexpr (Terms::present) terms.enter(matrix);
    q += place.q, k += place.k, v += place.v, out += place.out, g += place.g;
    const int query_count = static_cast<int>(space.rows.length);
    const int key_count = static_cast<int>(space.keys);
    const bool causal = space.causal != 0;
    const int features = static_cast<int>(space.features);
    const int value_features = static_cast<int>(space.value_features);

    // Float32's out is exact enough, and its kernel has no register left.
    const bool of_mask = Terms::present && sizeof(T) == 2 && space.of_mask != 0;
    const float power_scale = static_cast<float>(scale), infinity = gt_infinity<float>();

    gt_copies copies;
    gt_tile_rows<T, D, owned, threads>(q, space.rows.q, first, features)
        .fetch(copies, query_tile, query_count - first);
    gt_tile_rows<T, D, owned, threads>(g, space.rows.g, first, value_features)
        .fetch(copies, arrived_tile, query_count - first);
    copies.commit();
    // The tiles of keys that the block sees, from the last one down.
    int step =
        ((causal ? min(key_count, first + owned) : key_count) + passing - 1) / passing - 1;
    gt_tile_rows<T, D, passing, threads> key_rows(k, space.rows.k, step * passing, features);
    gt_tile_rows<T, D, passing, threads> value_rows(v, space.rows.v, step * passing,
                                                    value_features);
    key_rows.fetch(copies, key_tiles, key_count - step * passing);
    value_rows.fetch(copies, value_tiles, key_count - step * passing);
    copies.commit();

    // delta, 16 bytes of features at a time, of the warp's rows.
    query_numbers *const block_numbers = reinterpret_cast<query_numbers *>(numbers) +
                                         static_cast<gt_index>(matrix) * blocks * owned + first;
    constexpr int width = gt_width<T>, pieces = D / width;
#pragma unroll
    for (int i = 0; i < warp_rows * pieces / 32; ++i) {
      const int at = warp * warp_rows + (i * 32 + lane) / pieces, piece = lane % pieces;
      const int row = first + at;
      float delta = 0;
      if (row < query_count && piece * width < value_features) {
        const auto x = gt_load<width>(out + row * space.rows.out + piece * width);
        const auto y = gt_load<width>(g + row * space.rows.g + piece * width);
#pragma unroll
        for (int w = 0; w < width; ++w) delta = fmaf(gt_up(x.values[w]), gt_up(y.values[w]), delta);
      }
#pragma unroll
      for (int other = 1; other < pieces; other *= 2)
        delta += __shfl_xor_sync(0xffffffffu, delta, other);
      if (piece == 0) {
        query_numbers known = {};
        if (row < query_count) {
          const gt_index saved = place.saved + row * space.rows.saved;
          known = query_numbers::of(largest[saved], totals[saved], delta);
        }
        own_numbers[at] = known;
        if (!of_mask) block_numbers[at] = known;
      }
    }
    if (!dq && !of_mask) {
      copies.wait<0>();
      return;
    }

    copies.wait<1>();
    __syncthreads();  // queries and what arrived are there
    // Fragments of queries and of what arrived, as registers allow.
    constexpr int held = Products::in_registers ? steps : 0, kept = M == 1 ? held : 0;
    fragment query[held + 1], arrived[kept + 1];
#pragma unroll
    for (int i = 0; i < held; ++i) products.load_own(query[i], query_tile, i);
#pragma unroll
    for (int i = 0; i < kept; ++i) products.load_own(arrived[i], arrived_tile, i);
    // A lane has 2 * M rows, each eight further on than the one before.
    query_numbers known[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        known[m][half] = own_numbers[warp * warp_rows + m * 16 + lane / 4 + half * 8];

    const int edge = causal ? begin + 1 : key_count;  // behind the keys that `begin` sees
    own_sums sums = {};
    float lacking[M][2] = {};  // of delta, a lane's part
    for (int stage = 0; step >= 0; --step, stage ^= 1) {
      copies.wait<0>();
      __syncthreads();  // the keys and values are there; those before them are read no more
      if (step > 0) {
        key_rows.fetch(copies, key_tiles + (stage ^ 1) * passing * D);
        value_rows.fetch(copies, value_tiles + (stage ^ 1) * passing * D);
      }
      copies.commit();
      const int origin = step * passing;
      if (origin >= edge + warp_rows - 1) continue;  // the warp sees none

      const T *const key_tile = key_tiles + stage * passing * D;
      const T *const value_tile = value_tiles + stage * passing * D;
      tile_sums scores = {}, changes = {};
#pragma unroll Products::unrolled
      for (int i = 0; i < steps; ++i) {
        if (!held) products.load_own(query[0], query_tile, i);
        products.add_products(scores, query[held ? i : 0], key_tile, i);
        if (!kept) products.load_own(arrived[0], arrived_tile, i);
        products.add_products(changes, arrived[kept ? i : 0], value_tile, i);
      }

      if constexpr (Terms::present)
#pragma unroll
        for (int m = 0; m < M; ++m)
          terms.score(scores[m], power_scale, begin + lane / 4 + m * 16, origin);
      if (origin + passing > min(key_count, edge)) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            // How many keys of the tile this row sees, from the lane's first one on.
            const int seen =
                min(key_count, edge + lane / 4 + m * 16 + half * 8) - origin - lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < passing / 8; ++n)
#pragma unroll
              for (int e = 2 * half; e < 2 * half + 2; ++e)
                if (n * 8 + e % 2 >= seen) scores[m][n][e] = -infinity;
          }
      }
      if constexpr (Terms::present)
        if (terms.dropout.threshold) {
          // A quad of lanes has eight keys of a row: each lane draws for a quarter of them.
          unsigned drawn = 0;
#pragma unroll 1
          for (int i = 0; i < 2 * M; ++i)
            drawn |= terms.kept(begin + lane / 4 + i * 8, origin / 8 + lane % 4) << i * 8;
#pragma unroll
          for (int n = 0; n < passing / 8; ++n) {
            const unsigned kept = __shfl_sync(0xffffffffu, drawn, n, 4);
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
              for (int e = 0; e < 4; ++e)
                changes[m][n][e] *=
                    terms.factor(kept, m * 16 + e / 2 * 8 + lane % 4 * 2 + e % 2);
          }
        }
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < passing / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            changes[m][n][e] = known[m][e / 2].weight(scores[m][n][e], power_scale) *
                               (changes[m][n][e] - known[m][e / 2].delta);
      if (of_mask)
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int n = 0; n < passing / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) lacking[m][e / 2] += changes[m][n][e];
      products.add_mixed(sums, changes, key_tile);
    }
    if (of_mask) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = lacking[m][half];
          sum += __shfl_xor_sync(0xffffffffu, sum, 1);
          sum += __shfl_xor_sync(0xffffffffu, sum, 2);
          known[m][half].delta += sum;
          if (lane % 4 == 0)
            block_numbers[warp * warp_rows + m * 16 + lane / 4 + half * 8] = known[m][half];
        }
      if (!dq) return;
    }
    if constexpr (!held) __syncwarp();  // the warp's queries are read no more
    products.store(sums, gradient_scale(scale), query_tile,
                   dq + dq_begin + begin * space.rows.dq, space.rows.dq, query_count - begin,
                   features);
  }

  __device__ void keys(const T *q, const T *k, const T *v, const T *g, const float *numbers, T *dk,
                       T *dv, const gt_attention_gradients &space, double scale,
                       Terms terms) const {
    if constexpr (D <= 128) {
      make<true, true>(blockIdx.x, q, k, v, g, numbers, dk, dv, space, scale, terms);
    } else {  // registers have place for one of both sums
      const bool both = dk && dv, of_keys = both ? blockIdx.x % 2 == 0 : dk != nullptr;
      const unsigned block = both ? blockIdx.x / 2 : blockIdx.x;
      if (of_keys)
        make<true, false>(block, q, k, v, g, numbers, dk, dv, space, scale, terms);
      else
        make<false, true>(block, q, k, v, g, numbers, dk, dv, space, scale, terms);
    }
  }

 private:
  // What `keys` makes, or one of both gradients.
  template <bool of_keys, bool of_values>
  __device__ void make(unsigned block, const T *q, const T *k, const T *v, const T *g,
                       const float *numbers, T *dk, T *dv, const gt_attention_gradients &space,
                       double scale, Terms terms) const {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(16) two_queries passing_numbers[2][passing / 2];
    constexpr int numbers_pieces = sizeof passing_numbers[0] / 16;
    T *const key_tile = reinterpret_cast<T *>(memory);
    T *const value_tile = key_tile + owned * D;
    T *const query_tiles = value_tile + owned * D;
    T *const arrived_tiles = query_tiles + 2 * passing * D;

    // The blocks of a causal mask that the most queries see first.
    const unsigned repeats = static_cast<unsigned>(space.repeats);
    const unsigned shared = static_cast<unsigned>(space.matrices) / repeats;
    const unsigned matrix = block % shared * repeats;
    const int first = block / shared * owned;
    const int begin = first + warp * warp_rows;  // of the warp
    const int query_count = static_cast<int>(space.rows.length);
    const int key_count = static_cast<int>(space.keys);
    const bool causal = space.causal != 0;
    const int features = static_cast<int>(space.features);
    const int value_features = static_cast<int>(space.value_features);
    const int padded = (query_count + owned - 1) / owned * owned;

    gt_copies copies;
    const gt_attention_place shared_place(space, matrix);
    gt_tile_rows<T, D, owned, threads>(k + shared_place.k, space.rows.k, first, features)
        .fetch(copies, key_tile, key_count - first);
    if constexpr (of_keys)
      gt_tile_rows<T, D, owned, threads>(v + shared_place.v, space.rows.v, first, value_features)
          .fetch(copies, value_tile, key_count - first);

    const float power_scale = static_cast<float>(scale), infinity = gt_infinity<float>();
    const int key = begin + lane / 4;  // the lane's first one; with it registers suffice
    own_sums key_sums = {}, value_sums = {};
    int stage = 0;
    for (unsigned repeat = 0; repeat < repeats; ++repeat) {
      // The tiles of queries that see the block, from the last one down.
      const gt_attention_place place(space, matrix + repeat);
      const float4 *known =
          reinterpret_cast<const float4 *>(numbers) +
          static_cast<gt_index>(matrix + repeat) * (padded / passing * numbers_pieces);
      if constexpr (Terms::present) terms.enter(matrix + repeat);
      const int last = (query_count + passing - 1) / passing - 1;
      const int end = causal ? first / passing : 0;
      gt_tile_rows<T, D, passing, threads> query_rows(q + place.q, space.rows.q, last * passing,
                                                      features);
      gt_tile_rows<T, D, passing, threads> arrived_rows(g + place.g, space.rows.g, last * passing,
                                                        value_features);
      const auto fetch = [&](int step, int into, int left) {
        query_rows.fetch(copies, query_tiles + into * passing * D, left);
        arrived_rows.fetch(copies, arrived_tiles + into * passing * D, left);
        if (threadIdx.x < numbers_pieces)
          copies.issue(reinterpret_cast<float4 *>(passing_numbers[into]) + threadIdx.x,
                       known + step * numbers_pieces + threadIdx.x);
      };
      if (last >= end) fetch(last, stage, query_count - last * passing);
      copies.commit();

      for (int step = last; step >= end; --step, stage ^= 1) {
        copies.wait<0>();
        __syncthreads();  // the queries are there; those before them are read no more
        if (step > end) fetch(step - 1, stage ^ 1, passing);
        copies.commit();
        const int origin = step * passing;
        if (causal && origin + passing <= begin) continue;  // no query sees the warp's keys

        const T *const query_tile = query_tiles + stage * passing * D;
        const T *const arrived_tile = arrived_tiles + stage * passing * D;
        tile_sums weights = {}, changes = {};  // a row is a key
#pragma unroll Products::unrolled
        for (int i = 0; i < steps; ++i) {
          fragment a;
          products.load_own(a, key_tile, i);
          products.add_products(weights, a, query_tile, i);
          if constexpr (of_keys) {
            products.load_own(a, value_tile, i);
            products.add_products(changes, a, arrived_tile, i);
          }
        }

        if constexpr (Terms::present)
#pragma unroll
          for (int m = 0; m < M; ++m)
            terms.score_turned(weights[m], power_scale, key + m * 16, origin);
        if (causal && origin < begin + warp_rows - 1) {
          // How many queries of the tile do not see the lane's first key, from its first one on.
          const int hidden = key - origin - lane % 4 * 2;
#pragma unroll
          for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < passing / 8; ++n)
#pragma unroll
              for (int e = 0; e < 4; ++e)
                if (n * 8 + e % 2 - m * 16 - e / 2 * 8 < hidden) weights[m][n][e] = -infinity;
        }
        unsigned drawn = 0;  // for a query and all of the warp's keys
        if constexpr (Terms::present)
          if (terms.dropout.threshold) {
#pragma unroll 1
            for (int i = 0; i < 2 * M; ++i)
              drawn |= terms.kept(origin + lane, begin / 8 + i) << i * 8;
          }
#pragma unroll
        for (int n = 0; n < passing / 8; ++n) {
          const two_queries known = passing_numbers[stage][n * 4 + lane % 4];
          unsigned kept[2] = {};  // for the lane's two queries, from its first key on
          if constexpr (Terms::present)
            if (terms.dropout.threshold) {
#pragma unroll
              for (int e = 0; e < 2; ++e)
                kept[e] = __shfl_sync(0xffffffffu, drawn, n * 8 + lane % 4 * 2 + e) >> lane / 4;
#pragma unroll
              for (int m = 0; m < M; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                  changes[m][n][e] *= terms.factor(kept[e % 2], m * 16 + e / 2 * 8);
            }
#pragma unroll
          for (int m = 0; m < M; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              weights[m][n][e] = known.of[e % 2].weight(weights[m][n][e], power_scale);
              changes[m][n][e] =
                  weights[m][n][e] * (changes[m][n][e] - known.of[e % 2].delta);
            }
          if constexpr (Terms::present)
            if (terms.dropout.threshold) {
#pragma unroll
              for (int m = 0; m < M; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                  weights[m][n][e] *= terms.factor(kept[e % 2], m * 16 + e / 2 * 8);
            }
        }
        if constexpr (of_values) products.add_mixed(value_sums, weights, arrived_tile);
        if constexpr (of_keys) products.add_mixed(key_sums, changes, query_tile);
      }
    }
    copies.wait<0>();
    __syncthreads();  // keys and values are there, also where no query came
    const gt_attention_place own_place(space, matrix);
    if (of_keys && dk)
      products.store(key_sums, gradient_scale(scale), key_tile,
                     dk + own_place.dk + (key - lane / 4) * space.rows.dk, space.rows.dk,
                     key_count - (key - lane / 4), features);
    if (of_values && dv)
      products.store(value_sums, 1.0f, value_tile,
                     dv + own_place.dv + (key - lane / 4) * space.rows.dv, space.rows.dv,
                     key_count - (key - lane / 4), value_features);
  }
};

