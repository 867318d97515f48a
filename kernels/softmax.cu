// Softmax and log-softmax over the last axis, forward and backward.
//
// Layout: contiguous (rows, columns), rows of any length; rows as in rows.cuh.
// Traffic per element: forward reads 1, writes 1; backward reads 2, writes 1. Of a row that is
// longer than its threads' registers forward reads 2, backward 4.
// Sums are accumulated in gt_float<T>: float for half types.
// A row of -infinity only, or with +infinity or NaN, becomes NaN as in PyTorch.
// In place: y may be x, and dx may be g or y; hence no __restrict__.
#include "half.cuh"
#include "rows.cuh"

// y = finish(x - largest, total) of each element, from the two numbers of its row's exponentials.
template <typename T, typename Finish>
__device__ inline void gt_normalize_rows(const T *x, T *y, gt_index rows, gt_index columns,
                                         gt_float<T> *cells, Finish finish) {
  gt_by_width<T>(columns, gt_address(x) | gt_address(y), [&](auto width) {
    constexpr int W = decltype(width)::value;
    for (gt_index first = static_cast<gt_index>(blockIdx.x) * blockDim.y; first < rows;
         first += static_cast<gt_index>(gridDim.x) * blockDim.y) {
      const gt_index row = first + threadIdx.y;
      const T *const arrays[1] = {x + row * columns};
      gt_row<T, W, 1> own(arrays, columns, row < rows);
      gt_exponentials<gt_float<T>> found;
      own.each([&](gt_index, const auto &packs) { found.add(packs[0]); });
      found.combine(cells);
      own.each([&](gt_index column, const auto &packs) {
        gt_pack<T, W> result;
        for (int w = 0; w < W; ++w)
          result.values[w] =
              gt_down<T>(finish(gt_up(packs[0].values[w]) - found.largest, found.total));
        gt_store(y + row * columns + column, result);
      });
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    softmax_forward(const T *x, T *y, gt_index rows, gt_index columns) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK / 32];
  gt_normalize_rows(x, y, rows, columns, cells,
                    [](F below, F total) { return exp(below) / total; });
}

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    log_softmax_forward(const T *x, T *y, gt_index rows, gt_index columns) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK / 32];
  gt_normalize_rows(x, y, rows, columns, cells,
                    [](F below, F total) { return below - log(total); });
}

// dx = finish(g, y, sum of term(g, y) over the row) of each element, from the output y. y has
// `shared` rows, for the first rows of g, for as many behind them, and so on.
template <typename T, typename Term, typename Finish>
__device__ inline void gt_rows_gradient(const T *g, const T *y, T *dx, gt_index rows,
                                        gt_index columns, gt_index shared, gt_float<T> *cells,
                                        Term term, Finish finish) {
  typedef gt_float<T> F;
  gt_by_width<T>(columns, gt_address(g) | gt_address(y) | gt_address(dx), [&](auto width) {
    constexpr int W = decltype(width)::value;
    for (gt_index first = static_cast<gt_index>(blockIdx.x) * blockDim.y; first < rows;
         first += static_cast<gt_index>(gridDim.x) * blockDim.y) {
      const gt_index row = first + threadIdx.y;
      const T *const arrays[2] = {g + row * columns, y + row % shared * columns};
      gt_row<T, W, 2> own(arrays, columns, row < rows);
      F sum = 0;
      own.each([&](gt_index, const auto &packs) {
        for (int w = 0; w < W; ++w)
          sum += term(gt_up(packs[0].values[w]), gt_up(packs[1].values[w]));
      });
      sum = gt_row_reduce(sum, cells, gt_sum());
      own.each([&](gt_index column, const auto &packs) {
        gt_pack<T, W> result;
        for (int w = 0; w < W; ++w)
          result.values[w] = gt_down<T>(
              finish(gt_up(packs[0].values[w]), gt_up(packs[1].values[w]), sum));
        gt_store(dx + row * columns + column, result);
      });
    }
  });
}

// dx = y * (g - sum(g * y))
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    softmax_backward(const T *g, const T *y, T *dx, gt_index rows, gt_index columns,
                     gt_index shared) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK / 32];
  gt_rows_gradient(
      g, y, dx, rows, columns, shared, cells, [](F grad, F value) { return grad * value; },
      [](F grad, F value, F dot) { return value * (grad - dot); });
}

// dx = g - exp(y) * sum(g)
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    log_softmax_backward(const T *g, const T *y, T *dx, gt_index rows, gt_index columns,
                         gt_index shared) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK / 32];
  gt_rows_gradient(
      g, y, dx, rows, columns, shared, cells, [](F grad, F) { return grad; },
      [](F grad, F value, F sum) { return grad - exp(value) * sum; });
}

// Launch: grid (any number of blocks), block (threads, rows) as in rows.cuh, <= GT_BLOCK together.
// No dynamic shared memory.
