// The product of matmul_into.cu with a thread for every element of out: what its tiles are compared
// with by profiling/ladder_matmul.py, and what says in few lines what it computes.
//
// Layout: as in matmul_into.cu; elements: of out.
// Traffic: a and b are read once for every element of out.
#include "matmul_into.cuh"

template <typename T>
__global__ void matmul_naive(const T *a, const T *b, void *out, const void *bias, gt_product axes,
                             gt_settings how, gt_index elements) {
  typedef gt_float<T> F;
  const gt_ending<T> ending(out, bias, how);
  const gt_index rows = axes.rows.length, columns = axes.columns.length;
  for (gt_index index = gt_thread(); index < elements; index += gt_threads()) {
    const gt_place place = axes.at(index / columns / rows, index / columns % rows, index % columns);
    F sum[1] = {F(0)};
    for (gt_index k = 0; k < axes.inner.length; ++k)
      sum[0] += gt_up(a[place.a + k * axes.inner.step.a]) *
                gt_up(b[place.b + k * axes.inner.step.b]);
    ending(sum, place, axes.columns.step, 1);
  }
}
