// Attention forward of halves on tensor cores: attention_forward.cuh says how. A warp has 16 of the
// 128 queries of a block, keys and values pass 64 at a time; for more than 128 features half of each.
// Needs sm_80. Types: __half, __nv_bfloat16.
#include "attention_forward.cuh"
#include "mma.cuh"

template <typename T, int D, typename Terms>
using gt_forward = gt_attention_block<gt_tensor_products<T, D, 1, D <= 128 ? 64 : 32>,
                                      D <= 128 ? 128 : 64, Terms>;

// scale is that of the scores times log2(e), positive: exponentials are powers of two.
template <typename T>
__global__ void __launch_bounds__(256, 2)  // at most 128 registers
attention_forward_64(const T *q, const T *k, const T *v, T *out, float *logs, float *totals,
                     gt_attention space, double scale) {
  gt_forward<T, 64, gt_no_terms>::forward(q, k, v, out, logs, totals, space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 232 registers
attention_forward_128(const T *q, const T *k, const T *v, T *out, float *logs, float *totals,
                      gt_attention space, double scale) {
  gt_forward<T, 128, gt_no_terms>::forward(q, k, v, out, logs, totals, space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_forward_256(const T *q, const T *k, const T *v, T *out, float *logs, float *totals,
                      gt_attention space, double scale) {
  gt_forward<T, 256, gt_no_terms>::forward(q, k, v, out, logs, totals, space, scale, {});
}

// Launch: a block of 256 threads for each 128 queries of each matrix, along x; dynamic shared
// memory for tiles of 128 queries, 128 keys and 128 values. Features up to 64, up to 128. For up to
// 256 half of all of these.
