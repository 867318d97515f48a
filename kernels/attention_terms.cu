// Attention forward with a mask, or dropout, or both, on tensor cores, in one launch.
// Needs sm_80. Types: __half, __nv_bfloat16.
//
// Layout and traffic: attention_forward.cuh; tiles: as in attention.cu. scale is that of the
// scores.
#include "attention_forward.cuh"
#include "mma.cuh"

template <typename T>
using gt_forward_terms = gt_terms<T, unsigned>;

template <typename T, int D>
using gt_forward = gt_attention_block<gt_tensor_products<T, D, 1, D <= 128 ? 64 : 32>,
                                      D <= 128 ? 128 : 64, gt_forward_terms<T>>;

template <typename T>
__global__ void __launch_bounds__(256, 2)  // at most 128 registers
attention_terms_forward_64(const T *q, const T *k, const T *v, T *out, float *largest,
                           float *totals, gt_attention space, double scale, const void *mask,
                           gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                           gt_index threshold, double factor) {
  gt_forward<T, 64>::forward(
      q, k, v, out, largest, totals, space, scale,
      gt_forward_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(256, 1)  // at most 255 registers
attention_terms_forward_128(const T *q, const T *k, const T *v, T *out, float *largest,
                            float *totals, gt_attention space, double scale, const void *mask,
                            gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                            gt_index threshold, double factor) {
  gt_forward<T, 128>::forward(
      q, k, v, out, largest, totals, space, scale,
      gt_forward_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_forward_256(const T *q, const T *k, const T *v, T *out, float *largest,
                            float *totals, gt_attention space, double scale, const void *mask,
                            gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                            gt_index threshold, double factor) {
  gt_forward<T, 256>::forward(
      q, k, v, out, largest, totals, space, scale,
      gt_forward_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

// Launch: as in attention.cu.
