// Rows of mean 0 and variance 1: what layer norm, RMS norm and group norm have in common.
//
// Layout: contiguous (rows, columns), as in rows.cuh. Traffic: a row that fits into the registers of
// its threads is read once; a longer one is read three times.
#pragma once

#include "half.cuh"
#include "rows.cuh"

// y = (x - mean) * rstd, in the mean's absence x * rstd. affine(row, column, values) changes the W
// normalized values that begin at that column; save(row, mean, variance, rstd) is called by one
// thread of the row. y may be x where it has x's type.
template <int W, typename T, typename Y, typename Affine, typename Save>
__device__ inline void gt_normalize(const T *x, Y *y, bool centred, gt_index rows, gt_index columns,
                                    double eps, gt_float<T> *cells, Affine affine, Save save) {
  typedef gt_float<T> F;
  for (gt_index first = static_cast<gt_index>(blockIdx.x) * blockDim.y; first < rows;
       first += static_cast<gt_index>(gridDim.x) * blockDim.y) {
    const gt_index row = first + threadIdx.y;
    const T *const arrays[1] = {x + row * columns};
    gt_row<T, W, 1> own(arrays, columns, row < rows);
    F average = 0;
    if (centred) {
      F sum = 0;
      own.each([&](gt_index, const auto &packs) {
        for (int w = 0; w < W; ++w) sum += gt_up(packs[0].values[w]);
      });
      average = gt_row_reduce(sum, cells, gt_sum()) / F(columns);
    }
    F squares = 0;
    own.each([&](gt_index, const auto &packs) {
      for (int w = 0; w < W; ++w) {
        const F deviation = gt_up(packs[0].values[w]) - average;
        squares += deviation * deviation;
      }
    });
    const F variance = gt_row_reduce(squares, cells, gt_sum()) / F(columns);
    const F inverse = F(1) / sqrt(variance + F(eps));
    own.each([&](gt_index column, const auto &packs) {
      gt_pack<F, W> values;
      for (int w = 0; w < W; ++w)
        values.values[w] = (gt_up(packs[0].values[w]) - average) * inverse;
      affine(row, column, values);
      gt_pack<Y, W> result;
      for (int w = 0; w < W; ++w) result.values[w] = gt_down<Y>(gt_float<Y>(values.values[w]));
      gt_store(y + row * columns + column, result);
    });
    if (threadIdx.x == 0 && row < rows) save(row, average, variance, inverse);
  }
}
