// Lets the kernels of kernels/ be compiled by g++ and run on the CPU.
//
// One text, two machines behind it: fibers.cpp runs each CUDA thread as a fiber of one OS thread,
// in chosen orders, under AddressSanitizer and UBSan; threads.cpp runs each as an OS thread, under
// ThreadSanitizer (GT_HOST_THREADS). A CUDA thread runs until it ends or must wait for others, at a
// barrier of its block (__syncthreads) or of lanes of its warp (shuffles, votes, __syncwarp).
// What is covered and what is not: kernel_host.py says it.
#pragma once

#include <math.h>
#include <string.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __constant__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __shared__
#define __constant__ static const
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
// Blocks that run at the same time each have a copy of the text of their own (kernel_host.py), so
// the array of a block is a static one. `extern __shared__ T name[];` is replaced by a call of
// gt_host::dynamic_shared before the text comes here (kernel_text.py).
#define __shared__ static

#ifdef GT_HOST_THREADS
#define GT_HOST_PER_THREAD thread_local
#else
#define GT_HOST_PER_THREAD
#endif

extern GT_HOST_PER_THREAD uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace gt_host {

[[noreturn]] void fail(const char *format, ...);

// The bytes of shared memory that the launch gives the running block, exactly as many.
void *dynamic_shared_bytes();

template <typename T>
T *dynamic_shared() {
  return static_cast<T *>(dynamic_shared_bytes());
}

struct Argument {
  enum Kind { buffer, integer, real } kind;
  void *pointer;
  long long number;
  double value;
};

template <typename P>
struct Take {
  static P from(const Argument &argument) {
    if (argument.kind == Argument::buffer) fail("a kernel wants a number where an array is given");
    return argument.kind == Argument::real ? static_cast<P>(argument.value)
                                           : static_cast<P>(argument.number);
  }
};

template <typename P>
struct Take<P *> {
  static P *from(const Argument &argument) {
    if (argument.kind == Argument::buffer) return static_cast<P *>(argument.pointer);
    if (argument.kind == Argument::real || argument.number != 0)
      fail("a kernel wants an array or 0 where a number is given");
    return nullptr;
  }
};

typedef void (*Invoke)(const Argument *);

// Announces a kernel to the machine under the name that the tests call it by; `copy` says which
// copy of the text it is from.
struct Register {
  Register(const char *name, unsigned copy, Invoke invoke, std::size_t parameters);
};

template <auto Kernel>
struct Bound;

template <typename... P, void (*Kernel)(P...)>
struct Bound<Kernel> {
  static constexpr std::size_t parameters = sizeof...(P);
  static void invoke(const Argument *arguments) {
    call(arguments, std::index_sequence_for<P...>());
  }

 private:
  template <std::size_t... at>
  static void call(const Argument *arguments, std::index_sequence<at...>) {
    Kernel(Take<P>::from(arguments[at])...);
  }
};

}  // namespace gt_host

#define GT_HOST_REGISTER(id, copy, ...)                                                        \
  static gt_host::Register gt_host_register_##id(#__VA_ARGS__, copy,                           \
                                                 gt_host::Bound<__VA_ARGS__>::invoke,          \
                                                 gt_host::Bound<__VA_ARGS__>::parameters)

#include "atomics.h"
#include "barriers.h"
#include "intrinsics.h"
