// What the text of a kernel sees in place of CUDA's built-in names, so that g++ compiles it.
//
// A CUDA thread runs until it ends or must wait for others, at a barrier of its block
// (__syncthreads) or of lanes of its warp (shuffles, votes, __syncwarp). Two machines stand behind
// these names: fibers.cpp runs each CUDA thread as a fiber of one OS thread, in chosen orders; the
// one of tests/kernels runs each as an OS thread, under ThreadSanitizer (HOSTCUDA_THREADS).
#pragma once

// Texts ask for it (docs/testing.md): here stands C++ where a GPU has inline PTX.
#define __HOSTCUDA__ 1

#include <type_traits>

// C++17's special functions, which CUDA has not, would be compiled again with each text.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <initializer_list>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#pragma GCC visibility push(default)
#include "../native/kernel_abi.h"
#pragma GCC visibility pop

#undef __constant__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __managed__
#undef __noinline__
#undef __shared__
#define __constant__ HOSTCUDA_EXPORTED
#define __device__
#define __forceinline__ inline
#define __global__ HOSTCUDA_EXPORTED
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __managed__ HOSTCUDA_EXPORTED
#define __noinline__ __attribute__((noinline))
// One block runs at a time in a module (a machine that runs several gives each a copy of the text),
// so the array of a block is a static one. `extern __shared__ T name[];` is replaced by
// hostcuda::dynamic_shared before the text comes here (kernels/text.py). `noinit` gives shared
// memory a section of its own, by which kernels/assembly.py knows it: GCC keeps that section in
// templates and inline functions, where it drops one that is named.
#define __shared__ static __attribute__((aligned(128), noinit))

// Kernels and variables that a module is asked for by name; kernels/text.py marks those that are
// declared __device__.
#define HOSTCUDA_EXPORTED __attribute__((visibility("default"), externally_visible, used))

#ifdef HOSTCUDA_THREADS
#define HOSTCUDA_PER_THREAD thread_local
#else
#define HOSTCUDA_PER_THREAD
#endif

#pragma GCC visibility push(default)

extern HOSTCUDA_PER_THREAD uint3 threadIdx __asm__("hostcuda_threadIdx");
extern HOSTCUDA_PER_THREAD uint3 blockIdx __asm__("hostcuda_blockIdx");
extern dim3 blockDim __asm__("hostcuda_blockDim");
extern dim3 gridDim __asm__("hostcuda_gridDim");

namespace hostcuda {

// Ends the launch with this error and this sentence.
[[noreturn]] void fail(hostcuda_fault error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// The bytes of shared memory that the launch gives the running block, exactly as many.
void *dynamic_shared_bytes();

}  // namespace hostcuda

#pragma GCC visibility pop

namespace hostcuda {

template <typename T>
T *dynamic_shared() {
  return static_cast<T *>(dynamic_shared_bytes());
}

// A declaration of dynamic shared memory outside all functions.
template <typename T>
struct DynamicShared {
  operator T *() const { return dynamic_shared<T>(); }
};

}  // namespace hostcuda

#include "atomics.h"
#include "barriers.h"
#include "intrinsics.h"
#include "functions.h"
#include "halves.h"
#include "module.h"

// CUDA's assert, and what NVRTC says of itself.
#undef assert
#define assert(condition)                                                                  \
  ((condition) ? void()                                                                    \
               : hostcuda::fail(HOSTCUDA_ASSERT, "assertion `%s' failed at %s:%d", #condition, \
                                __FILE__, __LINE__))
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
