// Lets the kernels of kernels/ be compiled by g++ and run on the CPU.
//
// Each CUDA thread is a fiber (ucontext) and all fibers run on one OS thread: a fiber runs until it
// ends or reaches __syncthreads(), then the next one runs, in an order that the launch chooses
// (machine.cpp). Blocks run one after the other, so a __shared__ array is a static one.
// Not covered: warps (shuffles, votes), atomics, dynamic shared memory, several blocks at once,
// fences.
#pragma once

#include <math.h>
#include <string.h>

#include <cstddef>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#undef __device__
#undef __global__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __device__
#define __global__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace gt_host {

// Ends this fiber's turn until every fiber of the block has come to the same barrier.
void barrier(const char *file, int line);

struct Argument {
  enum Kind { buffer, integer, real } kind;
  void *pointer;
  long long number;
  double value;
};

[[noreturn]] void fail(const char *format, ...);

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

// Announces a kernel to the machine under the name that the tests call it by.
struct Register {
  Register(const char *name, Invoke invoke, std::size_t parameters);
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

#define __syncthreads() gt_host::barrier(__FILE__, __LINE__)
#define GT_HOST_REGISTER(id, ...)                                                \
  static gt_host::Register gt_host_register_##id(#__VA_ARGS__,                   \
                                                 gt_host::Bound<__VA_ARGS__>::invoke, \
                                                 gt_host::Bound<__VA_ARGS__>::parameters)

inline double __longlong_as_double(long long bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
