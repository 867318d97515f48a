// Attention forward of float32, exact or (GT_TF32) by TF32 on tensor cores: attention_forward.cuh
// says how. A block has 128 queries, a warp 32 of them; for more than 64 features half of each.
// Keys and values pass 32 at a time.
// Needs sm_80. Types: float.
#include "attention_forward.cuh"
#include "mma.cuh"

#ifdef GT_TF32
template <int D, int M, int N>
using gt_products = gt_tensor_products<float, D, M, N>;
#else
template <int D, int M, int N>
using gt_products = gt_exact_products<D, M, N>;
#endif

template <typename T, int D, typename Terms>
using gt_forward = gt_attention_block<gt_products<D, 128 / D, 32>, 8192 / D, Terms>;

// scale is that of the scores, positive.
template <typename T>
__global__ void __launch_bounds__(128, 3)  // at most 168 registers
attention_forward_64(const T *q, const T *k, const T *v, T *out, float *logs, float *totals,
                     gt_attention space, double scale) {
  gt_forward<T, 64, gt_no_terms_exact>::forward(q, k, v, out, logs, totals, space, scale, {});
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_forward_128(const T *q, const T *k, const T *v, T *out, float *logs, float *totals,
                      gt_attention space, double scale) {
  gt_forward<T, 128, gt_no_terms_exact>::forward(q, k, v, out, logs, totals, space, scale, {});
}

// With a mask, or dropout, or both.
template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_forward_64(const T *q, const T *k, const T *v, T *out, float *largest,
                           float *totals, gt_attention space, double scale, const void *mask,
                           gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                           gt_index threshold, double factor) {
  gt_forward<T, 64, gt_terms<T>>::forward(
      q, k, v, out, largest, totals, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_terms_forward_128(const T *q, const T *k, const T *v, T *out, float *largest,
                            float *totals, gt_attention space, double scale, const void *mask,
                            gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                            gt_index threshold, double factor) {
  gt_forward<T, 128, gt_terms<T>>::forward(
      q, k, v, out, largest, totals, space, scale,
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

// Launch: a block of 128 threads for each 128 queries of each matrix, along x; dynamic shared
// memory for tiles of 128 queries, 64 keys and 64 values. Features up to 64. For features up to 128
// a block has 64 queries.
