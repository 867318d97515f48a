// Matrix products into memory that exists, in any layout: out = alpha * a @ b + bias + beta * out.
//
// Layout: a (..., m, k), b (..., k, n), out (..., m, n), bias (n), of any strides: gt_product in
// matmul_into.cuh says where everything lies, gt_settings what else there is to do.
// Traffic: with tiles of e x e elements a is read n / e times, b m / e times; out is read (if beta
// is not 0), and is written, once. 16 bytes at a time wherever neighbours lie together and begin at
// a multiple of 16 bytes.
#include "matmul_into.cuh"

template <typename T>
__global__ void __launch_bounds__(256, 2)  // at most 128 registers
    matmul_into(const T *a, const T *b, void *out, const void *bias, gt_product axes,
                gt_settings how, gt_index tiles) {
  gt_large_tiling<T>::product(a, b, out, bias, axes, how, tiles);
}

template <typename T>
__global__ void __launch_bounds__(64, 8)  // at most 128 registers
    matmul_into_small(const T *a, const T *b, void *out, const void *bias, gt_product axes,
                      gt_settings how, gt_index tiles) {
  gt_small_tiling<T>::product(a, b, out, bias, axes, how, tiles);
}

// Launch: a block for each tile of each matrix, along x, and along y what x does not hold; 256
// threads, small 64. Small tiles are for products that have few large ones.
