// What the kernels of matmul_into.cu, matmul_into_complex.cu and matmul_naive.cu are made of: the
// layouts of a product's arrays, the tiles of a block, and what becomes of a sum of products.
//
// Layout: any strides, in elements. The index space has rows, columns, the inner axis, and up to
// GT_BATCH_AXES batch axes. Each axis has a step for every array, 0 where the array repeats.
// Offsets are 64-bit; the indices within a tile, and all that is counted in its loops, are 32-bit.
#pragma once

#include "complex.cuh"
#include "half.cuh"
#include "pack.cuh"

#define GT_BATCH_AXES 6  // `BATCH_AXES` in gtensor/backend/matmul_kernel.py repeats it

// ----------------------------------------------------------------------------------------- layouts

// A place in each array, or the way from one index of an axis to the next, in elements.
struct gt_place {
  gt_index a, b, out, bias;

  __device__ void go(const gt_place &step, gt_index count) {
    a += count * step.a;
    b += count * step.b;
    out += count * step.out;
    bias += count * step.bias;
  }
};

struct gt_axis {
  gt_index length;
  gt_place step;
};

// The axes of a product. Batch axes stand innermost first; those left over have length 1.
// `_Space` in gtensor/backend/matmul_kernel.py makes it.
struct gt_product {
  gt_axis rows, columns, inner, batch[GT_BATCH_AXES];

  // Where an element of the matrices of a batch index lies, or its row of a, its column of b.
  __device__ gt_place at(gt_index index, gt_index row, gt_index column) const {
    gt_place place = {0, 0, 0, 0};
    place.go(rows.step, row);
    place.go(columns.step, column);
    for (int axis = 0; axis < GT_BATCH_AXES && index > 0; ++axis) {
      place.go(batch[axis].step, index % batch[axis].length);
      index /= batch[axis].length;
    }
    return place;
  }
};

// ------------------------------------------------------------------------------------------ inputs

__device__ inline int gt_at_most(gt_index count, int most) {
  return count < most ? static_cast<int>(count) : most;
}

// Brings an input from global memory to the tiles of a block: each thread a pack of 16 bytes of
// each tile. A tile has `extent` indices of the outer axis (rows of a, columns of b) and `depth` of
// the inner one, and lies in shared memory as [depth][pitch]. Packs and neighbouring threads go
// along the axis on which elements are closer together.
template <typename T, int extent, int depth, int pitch>
class gt_carrier {
  typedef gt_float<T> F;
  static constexpr int width = gt_width<T>;

  const bool along_inner;
  const int outer_count;  // outer indices of the tiles that exist
  int along, across;      // the thread's place in a tile
  const gt_index outer_step, inner_step;
  const T *from;
  gt_pack<T, width> held;

 public:
  __device__ gt_carrier(const T *matrix, gt_index outer_step, gt_index inner_step, int outer_count)
      : along_inner(inner_step == 1 || (outer_step != 1 && llabs(inner_step) < llabs(outer_step))),
        outer_count(outer_count),
        outer_step(outer_step),
        inner_step(inner_step) {
    const int first = threadIdx.x * width, line = along_inner ? depth : extent;
    along = first % line;
    across = first / line;
    from = matrix + (along_inner ? across : along) * outer_step +
           (along_inner ? along : across) * inner_step;
  }

  // Reads the pack of the next tile: zeros where the input has no such elements.
  __device__ void fetch(gt_index inner_left) {
    const int inner_count = gt_at_most(inner_left, depth);
    const bool inside = across < (along_inner ? outer_count : inner_count);
    held = gt_gather<width>(from, along_inner ? inner_step : outer_step,
                            inside ? (along_inner ? inner_count : outer_count) - along : 0);
    from += depth * inner_step;
  }

  __device__ void put(F *tile) const {
    constexpr int group = gt_width<F>;
#pragma unroll
    for (int begin = 0; begin < width; begin += group) {
      gt_pack<F, group> pack;
      for (int w = 0; w < group; ++w) pack.values[w] = gt_up(held.values[begin + w]);
      if (along_inner) {
        F *const to = tile + (along + begin) * pitch + across;
        for (int w = 0; w < group; ++w) to[w * pitch] = pack.values[w];
      } else {
        gt_store(tile + across * pitch + along + begin, pack);
      }
    }
  }
};

// ------------------------------------------------------------------------------------ what follows

// What to do besides the product; `kernel_settings` in gtensor/backend/matmul_kernel.py makes it.
struct gt_settings {
  double alpha, alpha_imaginary, beta, beta_imaginary;
  gt_index wide;       // whether out is gt_float<T>, else T
  gt_index wide_bias;  // whether bias is
};

// What becomes of sums: alpha * sum + bias + beta * out. bias may be NULL. out is read only if beta
// is not 0.
template <typename T>
class gt_ending {
  typedef gt_float<T> F;
  static constexpr bool is_half = sizeof(T) < sizeof(F);

  void *const out;
  const void *const bias;
  const bool wide, wide_bias;
  const F alpha, beta;

 public:
  __device__ gt_ending(void *out, const void *bias, const gt_settings &how)
      : out(out), bias(bias), wide(how.wide != 0), wide_bias(how.wide_bias != 0),
        alpha(gt_from_parts<F>::made(how.alpha, how.alpha_imaginary)),
        beta(gt_from_parts<F>::made(how.beta, how.beta_imaginary)) {}

  // The next W columns of a row; `count` of them exist.
  template <int W>
  __device__ void operator()(F (&sums)[W], const gt_place &place, const gt_place &step,
                             int count) const {
    for (int w = 0; w < W; ++w) sums[w] = alpha * sums[w];
    if (bias) {
      const gt_pack<F, W> more = read<W>(bias, place.bias, step.bias, count, wide_bias);
      for (int w = 0; w < W; ++w) sums[w] += more.values[w];
    }
    if (beta != F(0)) {
      const gt_pack<F, W> more = read<W>(out, place.out, step.out, count, wide);
      for (int w = 0; w < W; ++w) gt_add_product(sums[w], beta, more.values[w]);
    }
    if (is_half && wide)
      store(static_cast<F *>(out) + place.out, step.out, count, sums);
    else
      store(static_cast<T *>(out) + place.out, step.out, count, sums);
  }

 private:
  template <int W>
  __device__ gt_pack<F, W> read(const void *from, gt_index at, gt_index step, int count,
                                bool as_computed) const {
    if (is_half && as_computed)
      return gt_gather<W>(static_cast<const F *>(from) + at, step, count);
    const gt_pack<T, W> stored = gt_gather<W>(static_cast<const T *>(from) + at, step, count);
    gt_pack<F, W> pack;
    for (int w = 0; w < W; ++w) pack.values[w] = gt_up(stored.values[w]);
    return pack;
  }

  template <int W, typename S>
  __device__ void store(S *to, gt_index step, int count, const F (&sums)[W]) const {
    gt_pack<S, W> pack;
    for (int w = 0; w < W; ++w) pack.values[w] = gt_down<S>(sums[w]);
    gt_scatter(to, step, count, pack);
  }
};

// ------------------------------------------------------------------------------------------- tiles

// A block of side x side threads computes a tile of out. A thread has micro x micro elements of it,
// in groups of 16 bytes in the compute type: neighbouring threads have neighbouring groups. The
// tiles of a and b are as deep as one pack of each thread makes them.
template <typename T, int side, int micro>
class gt_tiling {
  typedef gt_float<T> F;
  static constexpr int group = gt_width<F>, groups = micro / group;
  static constexpr int extent = side * micro, depth = side * side * gt_width<T> / extent;
  static constexpr int pitch = extent + group;  // lines of a tile begin in different banks

  // The first index of a group of this thread.
  static __device__ int index(int thread, int number) {
    return (number * side + thread) * group;
  }

  static __device__ void load(F (&values)[micro], const F *line, int thread) {
#pragma unroll
    for (int number = 0; number < groups; ++number) {
      const gt_pack<F, group> pack = gt_load<group>(line + index(thread, number));
#pragma unroll
      for (int w = 0; w < group; ++w) values[number * group + w] = pack.values[w];
    }
  }

  // sums += the product of a line of each tile
  static __device__ void multiply(F (&sums)[micro][micro], const F *a_line, const F *b_line) {
    F x[micro], y[micro];
    load(x, a_line, threadIdx.x / side);
    load(y, b_line, threadIdx.x % side);
#pragma unroll
    for (int i = 0; i < micro; ++i)
#pragma unroll
      for (int j = 0; j < micro; ++j) gt_add_product(sums[i][j], x[i], y[j]);
  }

 public:
  static __device__ void product(const T *a, const T *b, void *out, const void *bias,
                                 const gt_product &axes, const gt_settings &how, gt_index tiles) {
    __shared__ __align__(16) F a_tiles[2][depth * pitch];
    __shared__ __align__(16) F b_tiles[2][depth * pitch];
    __shared__ gt_place corner;    // where the tile of out begins; shared, as registers are scarce
    __shared__ int rows, columns;  // of the tile that exist
    const gt_index tile = gt_index(blockIdx.y) * gridDim.x + blockIdx.x;
    if (tile >= tiles) return;
    if (threadIdx.x == 0) {
      const gt_index across = (axes.columns.length + extent - 1) / extent;
      const gt_index down = (axes.rows.length + extent - 1) / extent;
      const gt_index row = tile / across % down * extent, column = tile % across * extent;
      corner = axes.at(tile / across / down, row, column);
      rows = gt_at_most(axes.rows.length - row, extent);
      columns = gt_at_most(axes.columns.length - column, extent);
    }
    __syncthreads();

    F sums[micro][micro];
    for (int i = 0; i < micro; ++i)
      for (int j = 0; j < micro; ++j) sums[i][j] = F(0);
    typedef gt_carrier<T, extent, depth, pitch> carrier;
    carrier from_a(a + corner.a, axes.rows.step.a, axes.inner.step.a, rows);
    carrier from_b(b + corner.b, axes.columns.step.b, axes.inner.step.b, columns);
    from_a.fetch(axes.inner.length);
    from_b.fetch(axes.inner.length);
    int turn = 0;  // a tile is written while others still read the one before
    for (gt_index left = axes.inner.length; left > 0; left -= depth) {
      F *const a_tile = a_tiles[turn], *const b_tile = b_tiles[turn];
      from_a.put(a_tile);
      from_b.put(b_tile);
      __syncthreads();
      if (left > depth) {  // comes in while this tile is multiplied
        from_a.fetch(left - depth);
        from_b.fetch(left - depth);
      }
      // A second line in flight would not fit into the registers of two blocks.
#pragma unroll 1
      for (int k = 0; k < depth; ++k) multiply(sums, a_tile + k * pitch, b_tile + k * pitch);
      turn ^= 1;
    }
    end(sums, corner, axes, rows, columns, gt_ending<T>(out, bias, how));
  }

 private:
  // The text of an ending is long: it stands once, for one row of the thread. The rows move up,
  // because registers have no index.
  static __device__ void end(F (&sums)[micro][micro], const gt_place &corner,
                             const gt_product &axes, int rows, int columns,
                             const gt_ending<T> &ending) {
#pragma unroll 1
    for (int turn = 0; turn < micro; ++turn) {
      const int row = index(threadIdx.x / side, turn / group) + turn % group;
      if (row >= rows) return;
#pragma unroll
      for (int number = 0; number < groups; ++number) {
        const int column = index(threadIdx.x % side, number);
        if (column >= columns) break;
        F part[group];
        for (int w = 0; w < group; ++w) part[w] = sums[0][number * group + w];
        gt_place place = corner;
        place.go(axes.rows.step, row);
        place.go(axes.columns.step, column);
        ending(part, place, axes.columns.step, columns - column);
      }
#pragma unroll
      for (int above = 1; above < micro; ++above)
        for (int j = 0; j < micro; ++j) sums[above - 1][j] = sums[above][j];
    }
  }
};

// A line of a thread's sums has at most 32 bytes. `Tiling` in gtensor/backend/matmul_kernel.py
// repeats these numbers.
template <typename T>
constexpr int gt_most = 32 / sizeof(gt_float<T>);

template <typename T>
using gt_large_tiling = gt_tiling<T, 16, (gt_most<T> < 8 ? gt_most<T> : 8)>;

template <typename T>
using gt_small_tiling = gt_tiling<T, 8, (gt_most<T> < 4 ? gt_most<T> : 4)>;
