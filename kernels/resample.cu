// A sparse matrix times x along one axis: interpolation, uneven windows, filters of one axis.
//
// Layout: contiguous x (lead, columns, trail), out (lead, rows, trail). The entries of row r are
// starts[r] to starts[r + 1] of `column` and `weight`. A thread belongs to an element of out;
// neighbouring threads to neighbouring elements of the trailing axes, or to neighbouring rows.
// Traffic per element: reads as many elements as its row has entries (mostly cached), writes 1; with
// `accumulate` it reads 1 more.
// Sums are in gt_float<T>, in the order of the entries, without atomics.
#include "half.cuh"

template <typename T>
__global__ void resample(const T *x, const gt_index *starts, const gt_index *column,
                         const gt_float<T> *weight, T *out, gt_index lead, gt_index rows,
                         gt_index columns, gt_index trail, gt_index accumulate) {
  for (gt_index i = gt_thread(); i < lead * rows * trail; i += gt_threads()) {
    const gt_index row = i / trail % rows, outer = i / trail / rows;
    const T *from = x + outer * columns * trail + i % trail;
    gt_float<T> sum = accumulate ? gt_up(out[i]) : gt_float<T>(0);
    for (gt_index e = starts[row]; e < starts[row + 1]; ++e)
      sum += weight[e] * gt_up(from[column[e] * trail]);
    out[i] = gt_down<T>(sum);
  }
}

// Launch: one-dimensional blocks of GT_BLOCK threads, at most one thread an element. No shared
// memory.
