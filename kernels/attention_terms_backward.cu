// Attention backward with a mask, or dropout, or both, on tensor cores: gradients of q, k and v.
// Needs sm_80. Types: __half, __nv_bfloat16.
//
// Formulas, layout and traffic: attention_backward.cuh; tiles: as in attention_backward.cu, but for
// keys a warp has 16 rows. scale is that of the scores.
#include "attention_backward.cuh"
#include "mma.cuh"

template <typename T, int D, int M>
using gt_backward = gt_attention_backward<gt_tensor_products<T, D, M, D <= 128 ? 32 : 16>,
                                          D <= 128 ? 128 : 64, gt_terms<T>>;

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_backward_queries_64(
    const T *q, const T *k, const T *v, const T *out, const T *g, const float *largest,
    const float *totals, float *numbers, T *dq, gt_attention_gradients space, double scale,
    const void *mask, gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
    gt_index threshold, double factor) {
  gt_backward<T, 64, 2>().queries(
      q, k, v, out, g, largest, totals, numbers, dq, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 255 registers
attention_terms_backward_queries_128(
    const T *q, const T *k, const T *v, const T *out, const T *g, const float *largest,
    const float *totals, float *numbers, T *dq, gt_attention_gradients space, double scale,
    const void *mask, gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
    gt_index threshold, double factor) {
  gt_backward<T, 128, 1>().queries(
      q, k, v, out, g, largest, totals, numbers, dq, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_backward_queries_256(
    const T *q, const T *k, const T *v, const T *out, const T *g, const float *largest,
    const float *totals, float *numbers, T *dq, gt_attention_gradients space, double scale,
    const void *mask, gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
    gt_index threshold, double factor) {
  gt_backward<T, 256, 1>().queries(
      q, k, v, out, g, largest, totals, numbers, dq, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 255 registers
attention_terms_backward_keys_64(
    const T *q, const T *k, const T *v, const T *g, const float *numbers, T *dk, T *dv,
    gt_attention_gradients space, double scale, const void *mask, gt_attention_terms terms,
    const gt_index *seed_place, gt_index seed, gt_index threshold, double factor) {
  gt_backward<T, 64, 1>().keys(
      q, k, v, g, numbers, dk, dv, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 255 registers
attention_terms_backward_keys_128(
    const T *q, const T *k, const T *v, const T *g, const float *numbers, T *dk, T *dv,
    gt_attention_gradients space, double scale, const void *mask, gt_attention_terms terms,
    const gt_index *seed_place, gt_index seed, gt_index threshold, double factor) {
  gt_backward<T, 128, 1>().keys(
      q, k, v, g, numbers, dk, dv, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_backward_keys_256(
    const T *q, const T *k, const T *v, const T *g, const float *numbers, T *dk, T *dv,
    gt_attention_gradients space, double scale, const void *mask, gt_attention_terms terms,
    const gt_index *seed_place, gt_index seed, gt_index threshold, double factor) {
  gt_backward<T, 256, 1>().keys(
      q, k, v, g, numbers, dk, dv, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

// Launch: as in attention_backward.cu, but keys have blocks of 256 threads.
