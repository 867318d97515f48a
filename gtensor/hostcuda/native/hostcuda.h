// What libhostcuda offers beside CUDA's own functions: to the Python side and to the libraries.
#pragma once

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hostcuda_kind {
    HOSTCUDA_KERNEL, HOSTCUDA_LIBRARY, HOSTCUDA_COPY, HOSTCUDA_MEMSET, HOSTCUDA_OTHER
};

// Queue work on a stream. `run` is called without any lock of the runtime's, by the thread that
// executes the queues; `drop` (may be NULL) once, when `run` is not needed any more. While the
// stream is captured the work becomes a node of the graph: `run` is called at each launch then.
// Returns a cudaError_t; on an error `drop` has been called.
int hostcuda_enqueue(cudaStream_t stream, void (*run)(void *), void (*drop)(void *), void *argument,
                     int kind, const char *name);

// As hostcuda_enqueue; in its turn the work waits until `ready` answers 1, and other streams go on
// meanwhile. `ready` is asked under the runtime's lock: it looks and calls nothing. After a change
// of what it looks at, call hostcuda_drive.
int hostcuda_enqueue_when(cudaStream_t stream, int (*ready)(void *), void (*run)(void *),
                          void (*drop)(void *), void *argument, int kind, const char *name);

// Runs what is queued and need not wait, by the calling thread, which is not one of the program's;
// in deferred mode only until `enough` answers 1, which is asked as `ready` is. Then every thread
// that waits looks again.
void hostcuda_drive(int (*enough)(void *), void *argument);

// From now on no `run` and no `drop` is called, and nothing is queued: what they are written in
// ends. Handles, graphs and streams may be destroyed later than that.
void hostcuda_end(void);

// 1 while the stream is captured, 0 if not, -1 if there is no such stream or CUDA was used before
// this process was forked.
int hostcuda_is_capturing(cudaStream_t stream);

// 1 if [address, address + bytes) lies in device or managed memory that is mapped, else 0.
int hostcuda_is_device_memory(const void *address, size_t bytes);

// From within `run`: the device has met an error that stays (a cudaError_t of the 700 family), with
// one sentence that says where.
void hostcuda_fail(int error, const char *sentence);

// From within `run`: 0 if [address, address + bytes) is memory that the device can reach. Else the
// device has met cudaErrorIllegalAddress, and `what` begins the sentence about it.
int hostcuda_reach(const void *address, size_t bytes, const char *what);

// Notes that a function was called that is not there. Returns cudaErrorNotSupported.
int hostcuda_missing(const char *name);

// The next of the seed's random numbers.
unsigned long long hostcuda_random(void);

// Kernels, library calls and copies within a device that were queued since the start.
unsigned long long hostcuda_launches(void);

// What was queued, or done, while the host device was watched. Of a kernel `module` is its CUmodule,
// and `parameters` has the bytes of its parameters, one after the other, each of its size.
typedef struct hostcuda_event {
    int kind;
    const char *name;
    unsigned long long bytes;
    unsigned long long module;
    const char *function;            // the kernel's name in its module; NULL of anything else
    unsigned grid[3], block[3];
    unsigned long long shared;       // dynamic
    int resident;                    // blocks that a multiprocessor holds
    unsigned parameter_count;
    const unsigned *parameter_sizes;
    const unsigned char *parameters;
} hostcuda_event;

// From now on everything that is counted is noted as well, in the order of queueing; 0 ends it.
void hostcuda_watch(int on);

// Hands over what was noted since the last call, and forgets it.
void hostcuda_watched(void (*take)(void *, const hostcuda_event *), void *argument);

// 1 in dry mode: work is counted and not run.
int hostcuda_is_dry(void);

#ifdef __cplusplus
}
#endif
