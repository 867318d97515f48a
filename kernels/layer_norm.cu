// Layer norm over the last axis: y = (x - mean) * rstd * weight + bias; RMS norm where mean is NULL:
// nothing is subtracted, and the variance is the mean of the squares.
//
// Layout: contiguous (rows, columns); rows as in rows.cuh. weight and bias (columns), of x's dtype,
// or NULL. mean and rstd (rows) are in gt_float<T>. The variance is biased and taken in a second
// pass over the row.
// Traffic per element: forward reads 1, writes 1; backward reads 2, writes 1, also with the sums
// for the parameters; it reads 1 more where it adds to dx. Of a row that is longer than its
// threads' registers forward reads 3, backward 4.
// In place: y may be x where it has x's type; dx may be g or x; hence no __restrict__.
#include "row_norm.cuh"

template <typename T, typename Y>
__device__ inline void gt_layer_norm(const T *x, const T *weight, const T *bias, Y *y,
                                     gt_float<T> *mean, gt_float<T> *rstd, gt_index rows,
                                     gt_index columns, double eps) {
  typedef gt_float<T> F;
  __shared__ F shared_cells[GT_BLOCK / 32];
  F *const cells = shared_cells;
  const size_t address = gt_address(x) | gt_address(weight) | gt_address(bias) | gt_address(y);
  gt_by_width<T>(columns, address, [&](auto width) {
    constexpr int W = decltype(width)::value;
    gt_normalize<W>(
        x, y, mean != nullptr, rows, columns, eps, cells,
        [&](gt_index, gt_index column, gt_pack<F, W> &values) {
          gt_pack<T, W> scale, shift;
          if (weight) scale = gt_load<W>(weight + column);
          if (bias) shift = gt_load<W>(bias + column);
          for (int w = 0; w < W; ++w) {
            if (weight) values.values[w] *= gt_up(scale.values[w]);
            if (bias) values.values[w] += gt_up(shift.values[w]);
          }
        },
        [&](gt_index row, F average, F, F inverse) {
          if (mean) mean[row] = average;
          rstd[row] = inverse;
        });
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    layer_norm_forward(const T *x, const T *weight, const T *bias, T *y, gt_float<T> *mean,
                       gt_float<T> *rstd, gt_index rows, gt_index columns, double eps) {
  gt_layer_norm(x, weight, bias, y, mean, rstd, rows, columns, eps);
}

// The same into the halves that products read under autocast.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    layer_norm_forward_float16(const T *x, const T *weight, const T *bias, __half *y,
                               gt_float<T> *mean, gt_float<T> *rstd, gt_index rows,
                               gt_index columns, double eps) {
  gt_layer_norm(x, weight, bias, y, mean, rstd, rows, columns, eps);
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    layer_norm_forward_bfloat16(const T *x, const T *weight, const T *bias, __nv_bfloat16 *y,
                                gt_float<T> *mean, gt_float<T> *rstd, gt_index rows,
                                gt_index columns, double eps) {
  gt_layer_norm(x, weight, bias, y, mean, rstd, rows, columns, eps);
}

// The sums over a block's rows of g * xhat (0) and of g (1), each with its rounding errors: four
// numbers a column, (4, columns). A thread adds up the same columns in every call, and only it
// touches their numbers, so no barrier is needed between calls.
template <typename T, int W>
struct gt_column_sums {
  typedef gt_float<T> F;
  F *sums;
  gt_index columns;
  bool on_chip;

  // Calls visit(column) for the packs of this thread.
  template <typename Visit>
  __device__ void each(Visit visit) const {
    const gt_index thread = threadIdx.y * blockDim.x + threadIdx.x;
    for (gt_index column = thread * W; column < columns; column += blockDim.x * blockDim.y * W)
      visit(column);
  }

  // Where element w of a pack has its number; on chip neighbouring threads meet different banks.
  __device__ F *at(int number, gt_index column, int w) const {
    const gt_index place = on_chip ? w * (columns / W) + column / W : column + w;
    return sums + number * columns + place;
  }

  __device__ void clear() const {
    each([&](gt_index column) {
      for (int number = 0; number < 4; ++number)
        for (int w = 0; w < W; ++w) *at(number, column, w) = 0;
    });
  }

  __device__ gt_total<F> total(int number, gt_index column, int w) const {
    gt_total<F> found;
    found.sum = *at(number, column, w);
    found.rest = *at(number + 2, column, w);
    return found;
  }

  __device__ void add(int number, gt_index column, int w, F value) const {
    gt_total<F> found = total(number, column, w);
    found.add(value);
    *at(number, column, w) = found.sum;
    *at(number + 2, column, w) = found.rest;
  }
};

// dx = rstd * (h - mean(h) - xhat * mean(h * xhat))
// with h = g * weight and xhat = (x - mean) * rstd; without mean(h) where mean is NULL. x, mean and
// rstd have `shared` rows, for the first rows of g, for as many behind them, and so on. dx may be
// NULL; with accumulate = 1 it is added to what is there.
// partials, or NULL: for layer_norm_parameters, of each block the sums over its rows of g * xhat
// and of g. They are gathered in dynamic shared memory if on_chip, (4, columns) numbers, and then
// partials is (gridDim.x, 2, columns), else (gridDim.x, 4, columns).
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    layer_norm_backward(const T *g, const T *x, const T *weight, const gt_float<T> *mean,
                        const gt_float<T> *rstd, T *dx, gt_float<T> *partials, gt_index rows,
                        gt_index columns, gt_index shared, gt_index on_chip, gt_index accumulate) {
  typedef gt_float<T> F;
  extern __shared__ __align__(16) unsigned char dynamic[];
  __shared__ F shared_cells[GT_BLOCK / 32];
  F *const cells = shared_cells;
  F *const chip = reinterpret_cast<F *>(dynamic);
  F *const mine = partials + blockIdx.x * (on_chip ? 2 : 4) * columns;
  const size_t address = gt_address(g) | gt_address(x) | gt_address(weight) | gt_address(dx);
  gt_by_width<T>(columns, address, [&](auto width) {
    constexpr int W = decltype(width)::value;
    const gt_column_sums<T, W> sums = {on_chip ? chip : mine, columns, on_chip != 0};
    if (partials) sums.clear();
    for (gt_index first = static_cast<gt_index>(blockIdx.x) * blockDim.y; first < rows;
         first += static_cast<gt_index>(gridDim.x) * blockDim.y) {
      const gt_index row = first + threadIdx.y;
      const bool there = dx && row < rows;
      const gt_index same = there ? row % shared : 0;
      const F average = mean ? mean[same] : F(0);
      const F inverse = rstd[same];
      const T *const arrays[2] = {g + row * columns, x + same * columns};
      gt_row<T, W, 2> own(arrays, columns, there);
      F sum = 0;
      F dot = 0;
      if (dx) {
        own.each([&](gt_index column, const auto &packs) {
          gt_pack<T, W> scale;
          if (weight) scale = gt_load<W>(weight + column);
          for (int w = 0; w < W; ++w) {
            F h = gt_up(packs[0].values[w]);
            if (weight) h *= gt_up(scale.values[w]);
            sum += h;
            dot += h * ((gt_up(packs[1].values[w]) - average) * inverse);
          }
        });
        sum = mean ? gt_row_reduce(sum, cells, gt_sum()) / F(columns) : F(0);
        dot = gt_row_reduce(dot, cells, gt_sum()) / F(columns);
      }
      if (partials) {
        sums.each([&](gt_index column) {
          F slopes[W] = {}, shifts[W] = {};
          for (gt_index at = first; at < rows && at < first + blockDim.y; ++at) {
            const gt_pack<T, W> grad = gt_load<W>(g + at * columns + column);
            const gt_pack<T, W> value = gt_load<W>(x + at * columns + column);
            const F centre = mean ? mean[at] : F(0), scale = rstd[at];
            for (int w = 0; w < W; ++w) {
              slopes[w] += gt_up(grad.values[w]) * ((gt_up(value.values[w]) - centre) * scale);
              shifts[w] += gt_up(grad.values[w]);
            }
          }
          for (int w = 0; w < W; ++w) {
            sums.add(0, column, w, slopes[w]);
            sums.add(1, column, w, shifts[w]);
          }
        });
        __syncthreads();  // dx may overwrite what the sums were taken of
      }
      own.each([&](gt_index column, const auto &packs) {
        gt_pack<T, W> scale, result;
        if (weight) scale = gt_load<W>(weight + column);
        if (accumulate) result = gt_load<W>(dx + row * columns + column);
        for (int w = 0; w < W; ++w) {
          F h = gt_up(packs[0].values[w]);
          if (weight) h *= gt_up(scale.values[w]);
          const F xhat = (gt_up(packs[1].values[w]) - average) * inverse;
          const F value = inverse * (h - sum - xhat * dot);
          result.values[w] = gt_down<T>(accumulate ? gt_up(result.values[w]) + value : value);
        }
        gt_store(dx + row * columns + column, result);
      });
    }
    if (partials)
      sums.each([&](gt_index column) {
        for (int w = 0; w < W; ++w)
          for (int number = 0; number < 2; ++number)
            mine[number * columns + column + w] = sums.total(number, column, w).result();
      });
  });
}

// The gradients of weight (blockIdx.y 0) and bias (1) from what `parts` blocks of
// layer_norm_backward found; either may be NULL. partials: (parts, numbers, columns). Each block
// takes 32 columns, its blockDim.y threads share the parts.
template <typename T>
__global__ void layer_norm_parameters(const gt_float<T> *partials, T *dweight, T *dbias,
                                      gt_index parts, gt_index columns, gt_index numbers) {
  typedef gt_float<T> F;
  __shared__ F cells[8][33];  // 33: neighbouring rows start in different banks
  T *const out = blockIdx.y ? dbias : dweight;
  const gt_index column = static_cast<gt_index>(blockIdx.x) * 32 + threadIdx.x;
  const bool there = out && column < columns;
  gt_total<F> total;
  if (there)
#pragma unroll 4
    for (gt_index part = threadIdx.y; part < parts; part += blockDim.y)
      total.add(partials[(part * numbers + blockIdx.y) * columns + column]);
  cells[threadIdx.y][threadIdx.x] = total.result();
  __syncthreads();
  if (threadIdx.y == 0 && there) {
    gt_total<F> sum;
    for (unsigned lane = 0; lane < blockDim.y; ++lane) sum.add(cells[lane][threadIdx.x]);
    out[column] = gt_down<T>(sum.result());
  }
}

// Launch: forward and backward grid (any number of blocks), block (threads, rows) as in rows.cuh,
// <= GT_BLOCK together; parameters grid (ceil(columns / 32), 2), block (32, <= 8). Dynamic shared
// memory: backward 4 * columns gt_float<T> if on_chip.
