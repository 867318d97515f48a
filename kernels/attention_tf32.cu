// Attention forward of float32 by TF32 on tensor cores: attention_float.cu with other products.
// Needs sm_80. Types: float.
#define GT_TF32 1

#include "attention_float.cu"
#include "mma.cuh"
