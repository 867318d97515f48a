// Attention backward of halves on tensor cores: the gradient of a mask that was added to scores.
// Needs sm_80. Types: __half, __nv_bfloat16.
//
// Formula, layout and traffic: attention_mask_gradient.cuh.
#include "attention_mask_gradient.cuh"
#include "mma.cuh"

template <typename T, int D, int N>
using gt_mask_block = gt_mask_gradient_block<gt_tensor_products<T, D, 1, N>>;

// scale is that of the scores.
template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_mask_gradient_64(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                           T *dmask, gt_mask_gradient space, double scale, const void *mask,
                           gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                           gt_index threshold, double factor) {
  gt_mask_block<T, 64, 64>().run(
      q, k, v, g, numbers, dmask, space, static_cast<float>(scale),
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_mask_gradient_128(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                            T *dmask, gt_mask_gradient space, double scale, const void *mask,
                            gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                            gt_index threshold, double factor) {
  gt_mask_block<T, 128, 64>().run(
      q, k, v, g, numbers, dmask, space, static_cast<float>(scale),
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

template <typename T>
__global__ void __launch_bounds__(128, 2)  // at most 255 registers
attention_mask_gradient_256(const T *q, const T *k, const T *v, const T *g, const float *numbers,
                            T *dmask, gt_mask_gradient space, double scale, const void *mask,
                            gt_attention_terms terms, const gt_index *seed_place, gt_index seed,
                            gt_index threshold, double factor) {
  gt_mask_block<T, 256, 32>().run(
      q, k, v, g, numbers, dmask, space, static_cast<float>(scale),
      gt_terms<T>(mask, terms, gt_attention_dropout(seed_place, seed, threshold, factor)));
}

// Launch: blocks of 128 threads along x, one for each 64 x 64 elements of each matrix of the mask;
// dynamic shared memory for four tiles of 64 rows. Features up to 64, up to 128. For up to 256 the
// keys are 32.
