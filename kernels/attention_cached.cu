// New positions of a cache are stored; few queries attend to many keys of it: softmax(scale * q @
// k.T) @ v, in two launches. Types: __half, __nv_bfloat16, float.
//
// Layout: packed (batch, length, heads + 2 * kv_heads, features), contiguous: the queries of
// `heads`, which become the output, then new keys and values. keys, values (batch, kv_heads,
// capacity, features), contiguous. The first new position is *at, or `start` where `at` is null: so
// replays of a graph read it from memory. Query i sees keys up to that of its position. Groups of
// heads share one of keys; a row is a query of one of its heads. parts (batch * kv_heads, rows,
// most splits, features + 2) float: of the keys of a split the weighted sum of values, the largest
// score (as a power of two), and the sum of exponentials relative to it.
//   attention_cached_store    a thread has features i and i + features / 2 of one head: it turns
//                             them, if there is a table of cosines and sines (2, places, features
//                             / 2), and writes those of keys and values into the cache
//   attention_cached_64 ..    a block has one head of keys, one split of them, and up to 4 rows. A
//                             key's features lie in some neighbouring lanes, 8 in each; such teams
//                             of lanes have every few keys, and meet at the end. Sums are float.
//   attention_cached_combine  a block for each row: its splits, in their order
// Traffic: what is new once each way; keys and values once for each 4 rows (from L2 beyond the
// first), parts once each way.
// Source: Dao, "Flash-Decoding for long-context inference", 2023.
#include "half.cuh"
#include "pack.cuh"

#define GT_CACHED_THREADS 128
#define GT_CACHED_ROWS 4  // `_ROWS` in gtensor/ops/attention/cached.py repeats it
#define GT_CACHED_LEAST 64  // keys of a split; `_LEAST_KEYS` repeats it
#define GT_CACHED_STEP 16  // a split has a multiple of so many keys

// `_SPACE` in gtensor/ops/attention/cached.py repeats it.
struct gt_cached {
  gt_index kv_heads, group, length, capacity, features;
  gt_index most;  // splits, of a cache that is full
  gt_index wide;  // whether 16 bytes of features lie aligned
};

__device__ inline gt_index gt_cached_start(const gt_index *at, gt_index start) {
  return at ? *at : start;
}

// The keys of each split: as many splits as fill a GPU, if each has enough.
__device__ inline int gt_cached_keys(const gt_cached &space, int keys) {
  const int splits = min((keys - 1) / GT_CACHED_LEAST + 1, static_cast<int>(space.most));
  return ((keys - 1) / splits / GT_CACHED_STEP + 1) * GT_CACHED_STEP;
}

// The place of a row's query in `packed`.
__device__ inline gt_index gt_cached_place(const gt_cached &space, unsigned head, int row) {
  const unsigned kv_heads = static_cast<unsigned>(space.kv_heads);
  const int group = static_cast<int>(space.group);
  const gt_index position = head / kv_heads * space.length + row / group;
  return (position * (space.group + 2) * kv_heads + head % kv_heads * space.group + row % group) *
         space.features;
}

template <typename T, int lanes>
class gt_cached_block {
  static constexpr int rows = GT_CACHED_ROWS, threads = GT_CACHED_THREADS, teams = threads / lanes;
  static constexpr int each = 8, at_once = 4;  // features of a lane, keys of a team
  static constexpr int width = gt_width<T>;

  const int team = threadIdx.x / lanes, lane = threadIdx.x % lanes, features;
  const bool wide;

  // The lane's feature i.
  __device__ int feature(int i) const { return (i / width * lanes + lane) * width + i % width; }

  // The lane's features of a row; zeros behind the last one, and if it is not there.
  __device__ void load(float (&x)[each], const T *row, bool there) const {
#pragma unroll
    for (int i = 0; i < each; i += width) {
      gt_pack<T, width> pack;
#pragma unroll
      for (int w = 0; w < width; ++w) pack.values[w] = gt_down<T>(0.0f);
      if (there && wide && feature(i) < features) pack = gt_load<width>(row + feature(i));
      if (there && !wide)
#pragma unroll
        for (int w = 0; w < width; ++w)
          if (feature(i + w) < features) pack.values[w] = row[feature(i + w)];
#pragma unroll
      for (int w = 0; w < width; ++w) x[i + w] = gt_up(pack.values[w]);
    }
  }

 public:
  __device__ explicit gt_cached_block(const gt_cached &space)
      : features(static_cast<int>(space.features)), wide(space.wide != 0) {}

  __device__ void run(const T *packed, const T *keys, const T *values, float *parts,
                      const gt_index *at, gt_index given_start, const gt_cached &space,
                      float scale) const {
    __shared__ float tops[rows][teams], totals[rows][teams], mixed[rows][threads * each];
    const float infinity = gt_infinity<float>();
    const unsigned head = blockIdx.x;
    const int first_row = blockIdx.z * rows;
    const int all_rows = static_cast<int>(space.length * space.group);
    const int row_count = min(rows, all_rows - first_row);
    const int start = static_cast<int>(gt_cached_start(at, given_start));
    const int known = start + static_cast<int>(space.length);
    const int split = gt_cached_keys(space, known), begin = blockIdx.y * split;
    if (begin >= known) return;  // no key is there yet
    const int end = min(begin + split, known);
    keys += head * space.capacity * space.features;
    values += head * space.capacity * space.features;

    float query[rows][each], sums[rows][each] = {}, top[rows], total[rows];
    int seen[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int row = first_row + r;
      load(query[r], packed + gt_cached_place(space, head, row), r < row_count);
#pragma unroll
      for (int i = 0; i < each; ++i) query[r][i] *= scale;
      seen[r] = min(end, start + row / static_cast<int>(space.group) + 1);
      top[r] = -infinity, total[r] = 0;
    }

    for (int base = begin + team; base - team < end; base += teams * at_once) {
      float key[at_once][each], value[at_once][each];
#pragma unroll
      for (int u = 0; u < at_once; ++u) {
        const gt_index at = (base + u * teams) * space.features;
        load(key[u], keys + at, base + u * teams < end);
        load(value[u], values + at, base + u * teams < end);
      }
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        if (r >= row_count) break;
        float scores[at_once], most = top[r];
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
          float score = 0;
#pragma unroll
          for (int i = 0; i < each; ++i) score = fmaf(query[r][i], key[u][i], score);
#pragma unroll
          for (int other = 1; other < lanes; other *= 2)
            score += __shfl_xor_sync(0xffffffffu, score, other);
          scores[u] = base + u * teams < seen[r] ? score : -infinity;
          most = fmaxf(most, scores[u]);
        }
        const float origin = most == -infinity ? 0.0f : most;  // no NaN
        const float shrunk = exp2f(top[r] - origin);
        top[r] = most;
        total[r] *= shrunk;
#pragma unroll
        for (int i = 0; i < each; ++i) sums[r][i] *= shrunk;
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
          const float weight = exp2f(scores[u] - origin);
          total[r] += weight;
#pragma unroll
          for (int i = 0; i < each; ++i) sums[r][i] = fmaf(weight, value[u][i], sums[r][i]);
        }
      }
    }

#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (lane == 0) tops[r][team] = top[r], totals[r][team] = total[r];
#pragma unroll
      for (int i = 0; i < each; ++i) mixed[r][team * lanes * each + feature(i)] = sums[r][i];
    }
    __syncthreads();  // what the teams have found is there
    for (int r = 0; r < row_count; ++r) {
      float most = -infinity, sum = 0;
      for (int t = 0; t < teams; ++t) most = fmaxf(most, tops[r][t]);
      const float origin = most == -infinity ? 0.0f : most;
      for (int t = 0; t < teams; ++t) sum += totals[r][t] * exp2f(tops[r][t] - origin);
      const gt_index row = static_cast<gt_index>(head) * all_rows + first_row + r;
      float *const to = parts + (row * space.most + blockIdx.y) * (features + 2);
      for (int f = threadIdx.x; f < features; f += threads) {
        float found = 0;
        for (int t = 0; t < teams; ++t)
          found += mixed[r][t * lanes * each + f] * exp2f(tops[r][t] - origin);
        to[f] = found;
      }
      if (threadIdx.x == 0) to[features] = most, to[features + 1] = sum;
    }
  }
};

// table is null where positions turn nothing. `positions`: new ones of all sequences.
template <typename T>
__global__ void __launch_bounds__(GT_CACHED_THREADS)
attention_cached_store(T *packed, T *keys, T *values, const float *table, gt_index places,
                       const gt_index *at, gt_index start, gt_cached space, gt_index positions) {
  const gt_index queries = space.group * space.kv_heads, turned = queries + space.kv_heads;
  const gt_index heads = turned + space.kv_heads, unchanged = table ? 0 : queries;
  const gt_index half = (space.features + 1) / 2, written = heads - unchanged;
  start = gt_cached_start(at, start);
  for (gt_index i = gt_thread(); i < positions * written * half; i += gt_threads()) {
    const gt_index feature = i % half, head = i / half % written + unchanged;
    const gt_index row = i / half / written, position = start + row % space.length;
    T *const from = packed + (row * heads + head) * space.features + feature;
    const bool paired = feature + half < space.features;
    float x = gt_up(from[0]), y = paired ? gt_up(from[half]) : 0.0f;
    if (table && head < turned) {
      const float *const angle = table + position * half + feature;
      const float c = angle[0], s = angle[places * half], old = x;
      x = old * c - y * s;
      y = y * c + old * s;
    }
    T *to = from;
    if (head >= queries) {
      const gt_index of = row / space.length * space.kv_heads + (head - queries) % space.kv_heads;
      to = (head < turned ? keys : values) + (of * space.capacity + position) * space.features +
           feature;
    }
    to[0] = gt_down<T>(x);
    if (paired) to[half] = gt_down<T>(y);
  }
}

// scale is that of the scores times log2(e).
template <typename T>
__global__ void __launch_bounds__(GT_CACHED_THREADS, 2)  // at most 255 registers
attention_cached_64(const T *packed, const T *keys, const T *values, float *parts,
                    const gt_index *at, gt_index start, gt_cached space, double scale) {
  gt_cached_block<T, 8>(space).run(packed, keys, values, parts, at, start, space,
                                   static_cast<float>(scale));
}

template <typename T>
__global__ void __launch_bounds__(GT_CACHED_THREADS, 2)  // at most 255 registers
attention_cached_128(const T *packed, const T *keys, const T *values, float *parts,
                     const gt_index *at, gt_index start, gt_cached space, double scale) {
  gt_cached_block<T, 16>(space).run(packed, keys, values, parts, at, start, space,
                                    static_cast<float>(scale));
}

template <typename T>
__global__ void __launch_bounds__(GT_CACHED_THREADS, 2)  // at most 255 registers
attention_cached_256(const T *packed, const T *keys, const T *values, float *parts,
                     const gt_index *at, gt_index start, gt_cached space, double scale) {
  gt_cached_block<T, 32>(space).run(packed, keys, values, parts, at, start, space,
                                    static_cast<float>(scale));
}

template <typename T>
__global__ void __launch_bounds__(GT_CACHED_THREADS)
attention_cached_combine(const float *parts, T *packed, const gt_index *at, gt_index start,
                         gt_cached space) {
  const int known = static_cast<int>(gt_cached_start(at, start) + space.length);
  const int splits = (known - 1) / gt_cached_keys(space, known) + 1;
  const int features = static_cast<int>(space.features);
  const int rows = static_cast<int>(space.length * space.group), each = features + 2;
  const float infinity = gt_infinity<float>();
  parts += static_cast<gt_index>(blockIdx.x) * space.most * each;
  float most = -infinity, total = 0;
  for (int s = 0; s < splits; ++s) most = fmaxf(most, parts[s * each + features]);
  const float origin = most == -infinity ? 0.0f : most;  // all scores are NaN, or infinite
  for (int s = 0; s < splits; ++s)
    total += parts[s * each + features + 1] * exp2f(parts[s * each + features] - origin);
  packed += gt_cached_place(space, blockIdx.x / rows, blockIdx.x % rows);
  for (int f = threadIdx.x; f < features; f += GT_CACHED_THREADS) {
    float sum = 0;
    for (int s = 0; s < splits; ++s)
      sum += parts[s * each + f] * exp2f(parts[s * each + features] - origin);
    packed[f] = gt_down<T>(sum / total);
  }
}

// Launch: blocks of GT_CACHED_THREADS. To store, a thread for each two features that are written.
// To attend, heads of keys of the batch along x, the most splits along y (those behind the last key
// end at once), each 4 rows along z; features up to 64, 128, 256. To combine, a block for each row.
