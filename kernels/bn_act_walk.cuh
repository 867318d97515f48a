// How the kernels of bn_act.cu walk over the elements of their channels: 16 bytes at a time where
// rows and pointers allow it, else element by element, channels first or last.
//
// Layout: x contiguous (n, c, s). Channels first, a block belongs to one channel (blockIdx.x) and
// one part of its images and positions (blockIdx.y). Channels last, s is 1: a block belongs to a
// tile of channels and one part of the n rows, neighbouring threads to neighbouring channels.
// A walk is used the same way in both layouts:
//   at, left, next()   offset of the next W elements of this thread; how many such steps are left
//   width, owned       W; channels of a thread, 1 or W: element w belongs to channel + w % owned
//   lane, lanes        which of the threads of the same channels this one is, and how many they are
// The divisions stand in the constructors; a step is a few additions.
#pragma once

#include "half.cuh"
#include "reduce.cuh"

#define GT_CHIP_BLOCK 512  // threads of a block that holds a channel on chip

// W elements, read and written at once.
template <typename T, int W>
struct gt_pack {
  T values[W];
};

// Elements of T in 16 bytes.
template <typename T>
constexpr int gt_width = 16 / sizeof(T);

template <int number>
struct gt_constant {
  static constexpr int value = number;
};

__device__ inline size_t gt_address(const void *pointer) {
  return reinterpret_cast<size_t>(pointer);
}

// Calls visit(W) with the constant W, the elements of a pack: gt_width if rows of `row` elements
// are made of such packs and the pointers, whose bits are in `address`, are aligned; else 1.
template <typename T, typename Visit>
__device__ inline void gt_by_width(gt_index row, size_t address, Visit visit) {
  if (row % gt_width<T> == 0 && address % 16 == 0)
    visit(gt_constant<gt_width<T>>());
  else
    visit(gt_constant<1>());
}

template <int W, typename T>
__device__ inline gt_pack<T, W> gt_load(const T *from) {
  gt_pack<T, W> pack;
  if constexpr (W == 1) {
    pack.values[0] = *from;
  } else {
    static_assert(sizeof pack == sizeof(uint4), "a pack has 16 bytes");
    const uint4 bits = *reinterpret_cast<const uint4 *>(from);
    memcpy(static_cast<void *>(&pack), &bits, sizeof pack);
  }
  return pack;
}

template <int W, typename T>
__device__ inline void gt_store(T *to, const gt_pack<T, W> &pack) {
  if constexpr (W == 1) {
    *to = pack.values[0];
  } else {
    uint4 bits;
    memcpy(&bits, &pack, sizeof bits);
    *reinterpret_cast<uint4 *>(to) = bits;
  }
}

// Which part of the work a block does. Kernels that read what an earlier one has read take the
// parts backwards: they begin with what is still in the L2 cache.
struct gt_part {
  gt_index column, chunk;
};

__device__ inline gt_part gt_forwards() { return {blockIdx.x, blockIdx.y}; }

__device__ inline gt_part gt_backwards() {
  return {gridDim.x - 1 - blockIdx.x, gridDim.y - 1 - blockIdx.y};
}

// The first and one past the last of `count` things of a chunk.
struct gt_span {
  gt_index begin, end;
  __device__ gt_span(gt_index count, gt_index chunk) {
    const gt_index each = (count + gridDim.y - 1) / gridDim.y;
    begin = chunk * each;
    end = min(begin + each, count);
  }
};

// How many of `begin`, `begin + stride`, ... lie before `end`.
__device__ inline gt_index gt_steps(gt_index begin, gt_index end, gt_index stride) {
  return begin < end ? (end - begin + stride - 1) / stride : 0;
}

template <int W>
struct gt_channels_first {
  static constexpr int width = W, owned = 1;
  gt_index at, left, channel, chunk;
  int lane, lanes;

  __device__ gt_channels_first(gt_part part, gt_index n, gt_index c, gt_index s)
      : at(0), channel(part.column), chunk(part.chunk), lane(threadIdx.x), lanes(blockDim.x) {
    row = s / W;
    const gt_span span(n * row, part.chunk);
    const gt_index first = span.begin + lane;
    left = gt_steps(first, span.end, lanes);
    if (left == 0) return;
    const gt_index image = first / row;
    const gt_index images = lanes / row;
    place = first - image * row;
    turn = lanes - images * row;
    at = (image * c + channel) * s + place * W;
    jump = images * c * s + turn * W;
    skip = (c - 1) * s;
  }

  __device__ void next() {
    at += jump;
    place += turn;
    if (place >= row) {
      place -= row;
      at += skip;
    }
  }

  __device__ bool inside(gt_index) const { return true; }

  template <typename V, typename Combine>
  __device__ void reduce(V (&values)[owned], V *cells, Combine combine) const {
    values[0] = gt_warps_reduce(values[0], cells, combine);
  }

 private:
  gt_index row, place = 0;      // in packs: the length of a row, and where in it the thread is
  gt_index turn = 0, jump = 0;  // what a step adds to place and at
  gt_index skip = 0;            // what lies between a row and that of the next image
};

template <int W>
struct gt_channels_last {
  static constexpr int width = W, owned = W;
  gt_index at, left, channel, chunk;
  int lane, lanes;

  // tile: channels of a block, a power of two of at least W and at most W * blockDim.x.
  __device__ gt_channels_last(gt_part part, gt_index n, gt_index c, gt_index tile)
      : at(0), left(0), chunk(part.chunk) {
    across = static_cast<int>(tile) / W;
    lanes = blockDim.x / across;
    lane = threadIdx.x / across;
    channel = part.column * tile + threadIdx.x % across * W;
    const gt_span span(n, part.chunk);
    const gt_index first = span.begin + lane;
    if (inside(c)) left = gt_steps(first, span.end, lanes);
    at = first * c + channel;
    jump = lanes * c;
  }

  __device__ void next() { at += jump; }

  __device__ bool inside(gt_index c) const { return channel < c; }

  // cells: W * blockDim.x. The threads of lane 0 get the result, and they alone.
  template <typename V, typename Combine>
  __device__ void reduce(V (&values)[owned], V *cells, Combine combine) const {
    for (int w = 0; w < W; ++w) cells[w * blockDim.x + threadIdx.x] = values[w];
    __syncthreads();
    for (int half = lanes / 2; half > 0; half /= 2) {
      if (lane < half)
        for (int w = 0; w < W; ++w) {
          V *cell = cells + w * blockDim.x + threadIdx.x;
          *cell = combine(cell[0], cell[half * across]);
        }
      __syncthreads();
    }
    if (lane == 0)
      for (int w = 0; w < W; ++w) values[w] = cells[w * blockDim.x + threadIdx.x];
    __syncthreads();  // the next reduction overwrites the cells
  }

 private:
  int across;     // threads beside each other in a row
  gt_index jump;  // what a step adds to at
};

// Calls visit(offsets, count) for all steps of the walk, U at a time; the first `count` offsets are
// there, U of them but for the last time. Loads of different offsets are in flight together.
template <int U, typename Walk, typename Visit>
__device__ inline void gt_walk(Walk walk, Visit visit) {
  for (; walk.left > 0; walk.left -= U) {
    gt_index offsets[U];
    for (int u = 0; u < U; ++u, walk.next()) offsets[u] = walk.at;
    visit(offsets, walk.left < U ? static_cast<int>(walk.left) : U);
  }
}

// Where in shared memory the packs of a thread lie, U steps of its walk at a time.
template <int W, int U>
struct gt_places {
  gt_index at[U];

  __device__ gt_places() {
    for (int u = 0; u < U; ++u) at[u] = (threadIdx.x + u * blockDim.x) * W;
  }

  __device__ void next() {
    for (int u = 0; u < U; ++u) at[u] += U * blockDim.x * W;
  }
};

// Steps of a walk at a time where two arrays, or one that is also written, are walked over: enough
// loads in flight, few enough registers.
template <int W>
constexpr int gt_steps_at_once = W == 1 ? 4 : W < 8 ? 2 : 1;

// The first `count` of U packs at `offsets`; zeros for the others.
template <int W, int U, typename T>
__device__ inline void gt_load(const T *from, const gt_index (&offsets)[U], int count,
                               gt_pack<T, W> (&packs)[U]) {
  for (int u = 0; u < U; ++u)
    packs[u] = u < count ? gt_load<W>(from + offsets[u]) : gt_pack<T, W>();
}

template <int W, int U, typename T>
__device__ inline void gt_store(T *to, const gt_index (&offsets)[U], int count,
                                const gt_pack<T, W> (&packs)[U]) {
  for (int u = 0; u < U; ++u)
    if (u < count) gt_store(to + offsets[u], packs[u]);
}

// Combines `values` of all threads and blocks of the same channels. Returns whether this thread has
// the result: thread `lane` 0 of one block. partials: (gridDim.y, c); tickets: gridDim.x zeros;
// neither is read where gridDim.y is 1.
template <typename Walk, typename V, typename Combine>
__device__ inline bool gt_gather(const Walk &walk, V (&values)[Walk::owned], V *partials,
                                 unsigned *tickets, gt_index c, V *cells, Combine combine) {
  walk.reduce(values, cells, combine);
  if (gridDim.y > 1) {
    if (walk.lane == 0 && walk.inside(c))
      for (int p = 0; p < Walk::owned; ++p)
        partials[walk.chunk * c + walk.channel + p] = values[p];
    if (!gt_last_block(tickets + blockIdx.x, gridDim.y)) return false;
    for (int p = 0; p < Walk::owned; ++p) values[p] = V();
    if (walk.inside(c))
#pragma unroll 4
      for (gt_index chunk = walk.lane; chunk < gridDim.y; chunk += walk.lanes)
        for (int p = 0; p < Walk::owned; ++p)
          values[p] = combine(values[p], partials[chunk * c + walk.channel + p]);
    walk.reduce(values, cells, combine);
  }
  return walk.lane == 0 && walk.inside(c);
}
