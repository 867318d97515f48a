// The products of matmul_into.cu for complex numbers, of parts gt_float<T>.
//
// Layout, traffic and launch: as in matmul_into.cu.
#include "matmul_into.cuh"

template <typename T>
using gt_complex_of = gt_complex<gt_float<T>>;

template <typename T>
__global__ void __launch_bounds__(256, 2)  // at most 128 registers
    matmul_into_complex(const gt_complex_of<T> *a, const gt_complex_of<T> *b, void *out,
                        const void *bias, gt_product axes, gt_settings how, gt_index tiles) {
  gt_large_tiling<gt_complex_of<T>>::product(a, b, out, bias, axes, how, tiles);
}

template <typename T>
__global__ void __launch_bounds__(64, 8)  // at most 128 registers
    matmul_into_complex_small(const gt_complex_of<T> *a, const gt_complex_of<T> *b, void *out,
                              const void *bias, gt_product axes, gt_settings how,
                              gt_index tiles) {
  gt_small_tiling<gt_complex_of<T>>::product(a, b, out, bias, axes, how, tiles);
}
