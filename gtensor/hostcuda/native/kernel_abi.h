// What a compiled kernel module (kernels/compiler.py) and the fiber library (fibers/) show to the
// runtime. Plain C.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hostcuda_kernel {
  const char *name;                         // as cuModuleGetFunction asks for it
  void (*thread)(void *const *parameters);  // one CUDA thread; reads each parameter at its pointer
  unsigned parameter_count;
  const size_t *parameter_sizes;  // bytes of each parameter
  size_t static_shared_bytes;     // 0 where unknown
  unsigned max_threads;           // of __launch_bounds__; 1024 without
  const void *code, *code_end;    // the module's machine code lies between
} hostcuda_kernel;

// Every module exports this: its kernels in the order of the text, NULL past the last. Its
// __device__ and __constant__ variables are dynamic symbols beside it.
const hostcuda_kernel *hostcuda_module_kernel(size_t index);

// What ends a launch: the numbers of cudaError_t (driver_types.h).
enum hostcuda_fault {
  HOSTCUDA_ILLEGAL_ADDRESS = 700,
  HOSTCUDA_LAUNCH_TIMEOUT = 702,
  HOSTCUDA_ASSERT = 710,
  HOSTCUDA_MISALIGNED_ADDRESS = 716,
  HOSTCUDA_LAUNCH_FAILURE = 719
};

// Runs a launch to its end on the calling OS thread; one launch at a time in a process. `schedule`
// 0 runs blocks and threads first to last, 1 last to first, any other number is the seed of random
// orders. 0, or a hostcuda_fault with one sentence in `fault` that names the kernel, the block and
// the thread.
int hostcuda_run(const hostcuda_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                 size_t dynamic_shared, void *const *parameters, unsigned long long schedule,
                 char *fault, size_t fault_bytes);

// A launch is ended after these seconds of the CPU's time; 0: never.
void hostcuda_limit(double seconds);

#ifdef __cplusplus
}
#endif

// The image that the compiler makes, and that cuModuleLoadData is given without its size, starts
// with these 8 bytes, then 8 hexadecimal digits: the number of bytes of the whole image.
#define HOSTCUDA_IMAGE_MAGIC "HOSTCUDA"
