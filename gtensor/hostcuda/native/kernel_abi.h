// What a compiled kernel module offers, and what runs it.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hostcuda_kernel {
    const char *name;                        // as cuModuleGetFunction asks for it
    void (*thread)(void *const *parameters); // runs one CUDA thread to its end
    unsigned parameter_count;
    const size_t *parameter_sizes;           // bytes of each parameter
    size_t static_shared_bytes;              // 0 where unknown
    unsigned max_threads;                    // of __launch_bounds__; 1024 without
    int cooperates;                          // meets other threads (barriers, warp operations): needs fibers
} hostcuda_kernel;

// Every module exports this: its kernels by number, NULL past the last.
const hostcuda_kernel *hostcuda_module_kernel(size_t index);

// The fiber library exports this. 0, or 1 with one sentence in `fault`.
int hostcuda_run(const hostcuda_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                 size_t dynamic_shared, void *const *parameters, unsigned long long schedule,
                 char *fault, size_t fault_bytes);

#ifdef __cplusplus
}
#endif
