// Attention backward of float32 by TF32 on tensor cores, the gradient of a mask:
// attention_float_mask_gradient.cu with other products.
// Needs sm_80. Types: float.
#define GT_TF32 1

#include "attention_float_mask_gradient.cu"
#include "mma.cuh"
