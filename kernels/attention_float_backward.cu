// Attention backward of float32, exact or (GT_TF32) by TF32 on tensor cores: attention_backward.cuh
// says how. For up to 64 features a block has 128 rows, a warp 32 of them (keys with `terms`: 16),
// and 16 rows pass at a time (TF32: 32 keys); for more features it has half of each, and 16 pass.
// Needs sm_80. Types: float.
#include "attention_backward.cuh"
#include "mma.cuh"

#ifdef GT_TF32
#define GT_KEYS 32  // that pass, for up to 64 features
template <int D, int M, int N>
using gt_products = gt_tensor_products<float, D, M, N>;
#else
#define GT_KEYS 16
template <int D, int M, int N>
using gt_products = gt_exact_products<D, M, N>;
#endif

template <int D, int M, int N, typename Terms>
using gt_backward = gt_attention_backward<gt_products<D, M, N>, 8192 / D, Terms>;

// scale is that of the scores, positive.
template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_backward_queries_64(const T *q, const T *k, const T *v, const T *out, const T *g,
                              const float *largest, const float *totals, float *numbers, T *dq,
                              gt_attention_gradients space, double scale) {
  gt_backward<64, 2, GT_KEYS, gt_no_terms_exact>().queries(q, k, v, out, g, largest, totals,
                                                          numbers, dq, space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_backward_queries_128(const T *q, const T *k, const T *v, const T *out, const T *g,
                               const float *largest, const float *totals, float *numbers, T *dq,
                               gt_attention_gradients space, double scale) {
  gt_backward<128, 1, 16, gt_no_terms_exact>().queries(q, k, v, out, g, largest, totals, numbers,
                                                      dq, space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_backward_keys_64(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                           T *dk, T *dv, gt_attention_gradients space, double scale) {
  gt_backward<64, 2, 16, gt_no_terms_exact>().keys(q, k, v, g, numbers, dk, dv, space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_backward_keys_128(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                            T *dk, T *dv, gt_attention_gradients space, double scale) {
  gt_backward<128, 1, 16, gt_no_terms_exact>().keys(q, k, v, g, numbers, dk, dv, space, scale, {});
}

// With a mask, or dropout, or both.
template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_backward_queries_64(
    const T *q, const T *k, const T *v, const T *out, const T *g, const float *largest,
    const float *totals, float *numbers, T *dq, gt_attention_gradients space, double scale,
    const void *mask, gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
    gt_index threshold, double factor) {
  gt_backward<64, 2, GT_KEYS, gt_terms<T>>().queries(
      q, k, v, out, g, largest, totals, numbers, dq, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_backward_queries_128(
    const T *q, const T *k, const T *v, const T *out, const T *g, const float *largest,
    const float *totals, float *numbers, T *dq, gt_attention_gradients space, double scale,
    const void *mask, gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
    gt_index threshold, double factor) {
  gt_backward<128, 1, 16, gt_terms<T>>().queries(
      q, k, v, out, g, largest, totals, numbers, dq, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 255 registers
attention_terms_backward_keys_64(
    const T *q, const T *k, const T *v, const T *g, const float *numbers, T *dk, T *dv,
    gt_attention_gradients space, double scale, const void *mask, gt_attention_terms terms,
    const gt_index *seed_place, gt_index seed, gt_index threshold, double factor) {
  gt_backward<64, 1, 16, gt_terms<T>>().keys(
      q, k, v, g, numbers, dk, dv, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_backward_keys_128(
    const T *q, const T *k, const T *v, const T *g, const float *numbers, T *dk, T *dv,
    gt_attention_gradients space, double scale, const void *mask, gt_attention_terms terms,
    const gt_index *seed_place, gt_index seed, gt_index threshold, double factor) {
  gt_backward<128, 1, 16, gt_terms<T>>().keys(
      q, k, v, g, numbers, dk, dv, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

// Launch: blocks along x, of 128 threads, for keys with a mask or dropout and up to 64 features of
// 256: one for each 128 queries of each matrix; one for each 128 keys of each matrix of keys; for
// more than 64 features half of each. Dynamic shared memory for two tiles of the block's rows and
// four of a quarter as many.
