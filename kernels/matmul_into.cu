// Matrix products into memory that exists, in any layout: out = activate(alpha * a @ b + bias +
// residual + beta * out). What is not finite in a and b counts as 0 if asked.
//
// Layout: a (..., m, k), b (..., k, n), out and residual (..., m, n), bias (n), of any strides:
// gt_product in matmul_into.cuh says where everything lies, gt_settings what else there is to do.
// Traffic: with tiles of e x e elements a is read n / e times, b m / e times; residual and out (if
// beta is not 0) are read, and out is written, once. 16 bytes at a time wherever neighbours lie
// together and begin at a multiple of 16 bytes.
// In place: residual may be out; hence no __restrict__.
#include "matmul_real.cuh"

template <typename T>
__global__ void __launch_bounds__(256, 2)
    matmul_into(const T *a, const T *b, void *out, const void *residual, const void *bias,
                const void *scale, gt_product axes, gt_settings how, gt_index tiles) {
  gt_large_tiling<T>::template product<gt_real_ending<T>>(
      a, b, out, residual, bias, scale, axes, how, tiles);
}

template <typename T>
__global__ void __launch_bounds__(64, 8)
    matmul_into_small(const T *a, const T *b, void *out, const void *residual, const void *bias,
                      const void *scale, gt_product axes, gt_settings how, gt_index tiles) {
  gt_small_tiling<T>::template product<gt_real_ending<T>>(
      a, b, out, residual, bias, scale, axes, how, tiles);
}

// Launch: a block for each tile of each matrix, along x, and along y what x does not hold; 256
// threads, small 64. Small tiles are for products that have few large ones.
