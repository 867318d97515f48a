// The products of matmul_into.cu for complex numbers, of parts gt_float<T>, without activation.
//
// Layout, traffic and launch: as in matmul_into.cu.
#include "matmul_into.cuh"

struct gt_no_activation {
  __device__ explicit gt_no_activation(const gt_settings &) {}

  template <typename F, int W>
  __device__ void operator()(F (&)[W]) const {}
};

template <typename T>
using gt_complex_of = gt_complex<gt_float<T>>;

template <typename T>
using gt_complex_ending = gt_ending<gt_complex_of<T>, gt_no_activation>;

template <typename T>
__global__ void __launch_bounds__(256, 2)
    matmul_into_complex(const gt_complex_of<T> *a, const gt_complex_of<T> *b, void *out,
                        const void *residual, const void *bias, const void *scale,
                        gt_product axes, gt_settings how, gt_index tiles) {
  gt_large_tiling<gt_complex_of<T>>::template product<gt_complex_ending<T>>(
      a, b, out, residual, bias, scale, axes, how, tiles);
}

template <typename T>
__global__ void __launch_bounds__(64, 8)
    matmul_into_complex_small(const gt_complex_of<T> *a, const gt_complex_of<T> *b, void *out,
                              const void *residual, const void *bias, const void *scale,
                              gt_product axes, gt_settings how,
                              gt_index tiles) {
  gt_small_tiling<gt_complex_of<T>>::template product<gt_complex_ending<T>>(
      a, b, out, residual, bias, scale, axes, how, tiles);
}
