// Attention backward of halves on tensor cores: attention_backward.cuh says how. A block has 128
// rows, a warp for up to 64 features 32 of them, for more 16; 32 pass at a time. For more than 128
// features a block has half of the rows, and 16 pass.
// Needs sm_80. Types: __half, __nv_bfloat16.
#include "attention_backward.cuh"
#include "mma.cuh"

template <typename T, int D, int M, typename Terms>
using gt_backward = gt_attention_backward<gt_tensor_products<T, D, M, D <= 128 ? 32 : 16>,
                                          D <= 128 ? 128 : 64, Terms>;

// scale is that of the scores times log2(e), positive: exponentials are powers of two.
template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_backward_queries_64(const T *q, const T *k, const T *v, const T *out, const T *g,
                              const float *largest, const float *totals, float *numbers, T *dq,
                              gt_attention_gradients space, double scale) {
  gt_backward<T, 64, 2, gt_no_terms>().queries(q, k, v, out, g, largest, totals, numbers, dq,
                                               space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 255 registers
attention_backward_queries_128(const T *q, const T *k, const T *v, const T *out, const T *g,
                               const float *largest, const float *totals, float *numbers, T *dq,
                               gt_attention_gradients space, double scale) {
  gt_backward<T, 128, 1, gt_no_terms>().queries(q, k, v, out, g, largest, totals, numbers, dq,
                                                space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_backward_queries_256(const T *q, const T *k, const T *v, const T *out, const T *g,
                               const float *largest, const float *totals, float *numbers, T *dq,
                               gt_attention_gradients space, double scale) {
  gt_backward<T, 256, 1, gt_no_terms>().queries(q, k, v, out, g, largest, totals, numbers, dq,
                                                space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_backward_keys_64(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                           T *dk, T *dv, gt_attention_gradients space, double scale) {
  gt_backward<T, 64, 2, gt_no_terms>().keys(q, k, v, g, numbers, dk, dv, space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 255 registers
attention_backward_keys_128(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                            T *dk, T *dv, gt_attention_gradients space, double scale) {
  gt_backward<T, 128, 1, gt_no_terms>().keys(q, k, v, g, numbers, dk, dv, space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_backward_keys_256(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                            T *dk, T *dv, gt_attention_gradients space, double scale) {
  gt_backward<T, 256, 1, gt_no_terms>().keys(q, k, v, g, numbers, dk, dv, space, scale, {});
}

// Launch: blocks along x, of 128 threads for features up to 64, of 256 up to 128: one for each 128
// queries of each matrix; one for each 128 keys of each matrix of keys. Dynamic shared memory for
// two tiles of 128 rows and four of 32. For features up to 256 half of these rows and 128 threads;
// of keys two blocks in the place of one where both gradients are wanted.
