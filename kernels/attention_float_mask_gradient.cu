// Attention backward of float32, exact or (GT_TF32) by TF32 on tensor cores: the gradient of a mask
// that was added to the scores.
// Needs sm_80. Types: float.
//
// Formula, layout and traffic: attention_mask_gradient.cuh.
#include "attention_mask_gradient.cuh"
#include "mma.cuh"

#ifdef GT_TF32
template <int D, int N>
using gt_mask_block = gt_mask_gradient_block<gt_tensor_products<float, D, 1, N>>;
#else
template <int D, int N>
using gt_mask_block = gt_mask_gradient_block<gt_exact_products<D, 1, N>>;
#endif

// scale is that of the scores.
template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_mask_gradient_64(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                           T *dmask, gt_mask_gradient space, double scale, const void *mask,
                           gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                           gt_index threshold, double factor) {
  gt_mask_block<64, 64>().run(
      q, k, v, g, numbers, dmask, space, static_cast<float>(scale),
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_mask_gradient_128(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                            T *dmask, gt_mask_gradient space, double scale, const void *mask,
                            gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                            gt_index threshold, double factor) {
  gt_mask_block<128, 32>().run(
      q, k, v, g, numbers, dmask, space, static_cast<float>(scale),
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

// Launch: blocks of 128 threads along x, one for each 64 x 64 elements of each matrix of the mask;
// dynamic shared memory for four tiles of 64 rows. For features up to 128 the keys are 32.
