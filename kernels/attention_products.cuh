// The products of attention, of a warp's own rows and of rows that pass: on tensor cores, or exact.
// Needs sm_80.
//
// A warp has 16 * M rows of a tile, N rows pass at a time; rows have D features, in tiles as
// gt_piece names them. All classes have the same members, and the same elements of products with
// rows that pass: lane 4 * g + t has rows g and g + 8 of each 16 (of which `half` names one) and
// columns 2t and 2t + 1 of each 8, in the order of `sums` in mma.cuh. Which elements of sums over
// features a lane has, their class knows; their rows are the same.
//   fragment      `steps` of them hold the warp's rows. `in_registers`: as few as one can keep
//   add_products  sums += fragments @ tile.T, for the features of a step
//   add_mixed     sums += factors @ tile
//   store         sums * factor to global memory
#pragma once

#include "attention.cuh"
#include "mma.cuh"

template <typename T, int D, int M, int N>
class gt_warp_rows {
 public:
  typedef T type;
  static constexpr int features = D, tiles = M, rows = 16 * M, passing = N;
  typedef float tile_sums[M][N / 8][4];  // rows x passing
  typedef float own_sums[M][D / 8][4];   // rows x features

 protected:
  static constexpr int width = gt_width<T>, pieces = D / width;
  const int lane = threadIdx.x % 32;

  // Writes the first `count` of the warp's rows of a tile, 16 bytes at once.
  __device__ void copy(const T *own, T *to, gt_index step, int count, int features) const {
    __syncwarp();  // its rows are there
#pragma unroll
    for (int i = 0; i < rows * pieces / 32; ++i) {
      const int at = (i * 32 + lane) / pieces, piece = (i * 32 + lane) % pieces;
      if (at < count && piece * width < features)
        *reinterpret_cast<uint4 *>(to + at * step + piece * width) =
            *reinterpret_cast<const uint4 *>(gt_piece(own + at * D, at % 8, piece));
    }
  }
};

// Halves, or float by TF32: factors are rounded to them, sums are float.
template <typename T, int D, int M, int N>
class gt_tensor_products : public gt_warp_rows<T, D, M, N> {
  typedef gt_warp_rows<T, D, M, N> base;
  using base::lane, base::width, base::pieces;
  static constexpr bool tf32 = sizeof(T) == 4;
  const int g = lane / 4, t = lane % 4;
  // Where piece 0 of a lane's row of a fragment lies in a tile: of rows that pass, of those that
  // are transposed, of the warp's own ones.
  const int plain = (lane % 8 + lane / 16 * 8) * D + (lane % 8 ^ lane / 8 % 2) * width;
  const int transposed = lane % 16 * D + (lane % 8 ^ lane / 16) * width;
  const int own = transposed + threadIdx.x / 32 * 16 * M * D;

  // The piece `piece`, which is even, of the row whose piece 0 is given: as gt_piece, at less cost.
  static __device__ const T *even_piece(const T *tile, int zero, int piece) {
    return tile + (zero ^ piece % 8 * width) + piece / 8 * 8 * width;
  }

  static __device__ unsigned rounded(unsigned bits) {
    return tf32 ? gt_tf32(__uint_as_float(bits)) : bits;
  }

  static __device__ void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                  unsigned b1) {
    if constexpr (tf32)
      gt_multiply_tf32(sums, a, b0, b1);
    else
      gt_multiply<T>(sums, a, b0, b1);
  }

  static __device__ void write_two(T *to, float lower, float upper) {
    if constexpr (tf32)
      *reinterpret_cast<float2 *>(to) = make_float2(lower, upper);
    else
      *reinterpret_cast<unsigned *>(to) = gt_two<T>(lower, upper);
  }

 public:
  using typename base::own_sums, typename base::tile_sums;
  static constexpr int steps = pieces / 2, unrolled = steps;  // two pieces at a time
  static constexpr bool in_registers = !tf32 && D <= 128;
  typedef unsigned fragment[M][4];

  __device__ void load_own(fragment &a, const T *tile, int step) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      gt_load_fragment(a[m], even_piece(tile, own, step * 2) + m * 16 * D);
#pragma unroll
      for (int part = 0; part < 4; ++part) a[m][part] = rounded(a[m][part]);
    }
  }

  __device__ void add_products(tile_sums &sums, const fragment &a, const T *tile,
                               int step) const {
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
      unsigned b[4];  // rows n * 8 .. + 15 of the tile
      gt_load_fragment(b, even_piece(tile, plain, step * 2) + n * 8 * D);
#pragma unroll
      for (int part = 0; part < 4; ++part) b[part] = rounded(b[part]);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply(sums[m][n], a[m], b[0], b[1]);
        multiply(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }

  __device__ void add_mixed(own_sums &sums, const tile_sums &factors, const T *tile) const {
    if constexpr (tf32)
      add_mixed_words(sums, factors, tile);
    else
      add_mixed_halves(sums, factors, tile);
  }

  // By the warp's own rows of a tile. A barrier has to lie behind the last load of these rows.
  __device__ void store(const own_sums &sums, float factor, T *tile, T *to, gt_index step,
                        int count, int features) const {
    T *const own_rows = tile + threadIdx.x / 32 * 16 * M * D;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          T *const row = own_rows + (m * 16 + g + half * 8) * D;
          write_two(gt_piece(row, g, (n * 8 + t * 2) / width) + t * 2 % width,
                    sums[m][n][2 * half] * factor, sums[m][n][2 * half + 1] * factor);
        }
    this->copy(own_rows, to, step, count, features);
  }

 private:
  __device__ void add_mixed_halves(own_sums &sums, const tile_sums &factors,
                                   const T *tile) const {
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      fragment a;
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int part = 0; part < 4; ++part)
          a[m][part] = gt_two<T>(factors[m][2 * i + part / 2][part % 2 * 2],
                                 factors[m][2 * i + part / 2][part % 2 * 2 + 1]);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        unsigned b[4];  // rows i * 16 .. + 15, features n * 8 .. + 15
        gt_load_fragment_transposed(b, even_piece(tile, transposed, n) + i * 16 * D);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply(sums[m][n], a[m], b[0], b[1]);
          multiply(sums[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // A product's row t is row 2t that passes, its row t + 4 row 2t + 1: so a lane has its factors,
  // and reads rows in different banks.
  __device__ void add_mixed_words(own_sums &sums, const tile_sums &factors, const T *tile) const {
    const int zero[2] = {2 * t * D + (2 * t ^ g / 4) * width + g % 4,
                         (2 * t + 1) * D + ((2 * t + 1) ^ g / 4) * width + g % 4};
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      fragment a;
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int part = 0; part < 4; ++part)
          a[m][part] = gt_tf32(factors[m][i][part % 2 * 2 + part / 2]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        unsigned b[2];  // feature n * 8 + g
#pragma unroll
        for (int e = 0; e < 2; ++e)
          b[e] = gt_tf32(even_piece(tile, zero[e], n * 2)[i * 8 * D]);
#pragma unroll
        for (int m = 0; m < M; ++m) multiply(sums[m][n], a[m], b[0], b[1]);
      }
    }
  }
};

// Float without tensor cores: each product and each sum is float's, in the order of the inner axis.
template <int D, int M, int N>
class gt_exact_products : public gt_warp_rows<float, D, M, N> {
  typedef gt_warp_rows<float, D, M, N> base;
  using base::lane, base::pieces;
  const int g = lane / 4, t = lane % 4;

  static __device__ float4 four(const float *row, int exchange, int piece) {
    return *reinterpret_cast<const float4 *>(gt_piece(row, exchange, piece));
  }

 public:
  using typename base::own_sums, typename base::tile_sums;
  static constexpr int steps = pieces, unrolled = 1;  // a piece at a time
  static constexpr bool in_registers = false;
  typedef float4 fragment[M][2];

  __device__ void load_own(fragment &a, const float *tile, int step) const {
    const float *const row = tile + (threadIdx.x / 32 * 16 * M + g) * D;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        a[m][half] = four(row + (m * 16 + half * 8) * D, g, step);
  }

  __device__ void add_products(tile_sums &sums, const fragment &a, const float *tile,
                               int step) const {
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float4 b = four(tile + (n * 8 + t * 2 + e) * D, t * 2 + e, step);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float &sum = sums[m][n][half * 2 + e];
            sum = fmaf(a[m][half].x, b.x, sum);
            sum = fmaf(a[m][half].y, b.y, sum);
            sum = fmaf(a[m][half].z, b.z, sum);
            sum = fmaf(a[m][half].w, b.w, sum);
          }
      }
  }

  // A lane has four neighbouring features of each 16: those of n and n + 1, which is odd.
  __device__ void add_mixed(own_sums &sums, const tile_sums &factors, const float *tile) const {
#pragma unroll
    for (int row = 0; row < N; ++row) {
      float factor[M][2];
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          factor[m][half] = __shfl_sync(0xffffffffu, factors[m][row / 8][half * 2 + row % 2],
                                        row % 8 / 2, 4);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        const float4 b = four(tile + row * D, row % 8, n * 2 + t);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float *const lower = sums[m][n] + half * 2, *const upper = sums[m][n + 1] + half * 2;
            lower[0] = fmaf(factor[m][half], b.x, lower[0]);
            lower[1] = fmaf(factor[m][half], b.y, lower[1]);
            upper[0] = fmaf(factor[m][half], b.z, upper[0]);
            upper[1] = fmaf(factor[m][half], b.w, upper[1]);
          }
      }
    }
  }

  // As gt_tensor_products.
  __device__ void store(const own_sums &sums, float factor, float *tile, float *to, gt_index step,
                        int count, int features) const {
    float *const own_rows = tile + threadIdx.x / 32 * 16 * M * D;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < D / 8; n += 2)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float *const lower = sums[m][n] + half * 2;
          const float *const upper = sums[m][n + 1] + half * 2;
          float *const row = own_rows + (m * 16 + g + half * 8) * D;
          *reinterpret_cast<float4 *>(gt_piece(row, g, n * 2 + t)) =
              make_float4(lower[0] * factor, lower[1] * factor, upper[0] * factor,
                          upper[1] * factor);
        }
    this->copy(own_rows, to, step, count, features);
  }
};
