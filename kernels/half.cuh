// The half storage types of raw kernels: __half (float16) and __nv_bfloat16 (bfloat16).
//
// Elementwise kernels do not include this file: CuPy hands them its own half classes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "number.cuh"
