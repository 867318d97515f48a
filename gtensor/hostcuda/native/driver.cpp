// The driver's functions, as far as programs call them beside the runtime's: contexts, devices,
// memory, streams, events, and how a function is found by name.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "driver.h"

using namespace hostcuda;

namespace {

Device *device_of(CUdevice index) {
    auto &devices = runtime().devices;
    return index >= 0 && size_t(index) < devices.size() ? &devices[size_t(index)] : nullptr;
}

Device *device_of(CUcontext context) {
    for (Device &device : runtime().devices)
        if (reinterpret_cast<Device *>(context) == &device) return &device;
    return nullptr;
}

CUcontext context_of(Device *device) { return reinterpret_cast<CUcontext>(device); }

void make_current(Device *device) {
    thread().context = device;
    if (device) thread().device = device->index;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
    if (runtime().forked) return CUDA_ERROR_NOT_INITIALIZED;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) { return CUresult(cudaDriverGetVersion(version)); }

CUresult cuGetErrorName(CUresult error, const char **name) {
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = driver_error_name(error);
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    *text = error_text(error);
    if (!*text) *text = driver_error_name(error);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- devices

CUresult cuDeviceGetCount(int *count) { return CUresult(cudaGetDeviceCount(count)); }

CUresult cuDeviceGet(CUdevice *device, int index) {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(CUdevice(index))) return CUDA_ERROR_INVALID_DEVICE;
    *device = index;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    Device *found = device_of(device);
    if (!found) return CUDA_ERROR_INVALID_DEVICE;
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    strncpy(name, found->name.c_str(), size_t(length) - 1);
    name[length - 1] = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    Device *found = device_of(device);
    if (!found) return CUDA_ERROR_INVALID_DEVICE;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = found->memory;
    return CUDA_SUCCESS;
}

// The two enumerations have the same numbers for what cards state.
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
    return CUresult(cudaDeviceGetAttribute(value, cudaDeviceAttr(which), device));
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    return CUresult(cudaDeviceCanAccessPeer(can, device, peer));
}

// ---- contexts: each device has one

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return without_context([&](Held &) {
        Device *found = device_of(device);
        if (!found) return cudaErrorInvalidDevice;
        if (!context) return cudaErrorInvalidValue;
        found->primary = true;
        *context = context_of(found);
        return cudaSuccess;
    });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return device_of(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    Device *found = device_of(device);
    if (!found) return CUDA_ERROR_INVALID_DEVICE;
    if (flags) *flags = 0;
    if (active) *active = found->primary;
    return CUDA_SUCCESS;
}

// "Note that this function may also return error codes from previous, asynchronous launches": CUDA
// Driver API, cuCtxGetCurrent.
CUresult cuCtxGetCurrent(CUcontext *context) {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = context_of(thread().context);
    if (!thread().context || runtime().forked) return CUDA_SUCCESS;
    Held held(runtime().lock);
    return CUresult(thread().context->error);
}

CUresult cuCtxSetCurrent(CUcontext context) {
    if (context && !device_of(context)) return CUDA_ERROR_INVALID_CONTEXT;
    make_current(device_of(context));
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    if (!thread().context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = thread().context->index;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned *flags) {
    if (!thread().context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) { return as_runtime(cudaDeviceSynchronize); }

CUresult cuCtxRecordEvent(CUcontext context, CUevent handle) {
    return without_context([&](Held &held) {
        Device *device = device_of(context);
        Event *event = event_of(handle);
        if (!device) return cudaError_t(CUDA_ERROR_INVALID_CONTEXT);
        if (!event) return cudaErrorInvalidResourceHandle;
        return record_device(held, *event, *device);
    });
}

// ---- memory

CUresult cuMemGetInfo(size_t *free, size_t *total) { return as_runtime(cudaMemGetInfo, free, total); }

CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes) {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    return as_runtime(static_cast<cudaError_t (*)(void **, size_t)>(cudaMalloc),
                      reinterpret_cast<void **>(pointer), bytes);
}

CUresult cuMemFree(CUdeviceptr pointer) {
    return as_runtime(cudaFree, reinterpret_cast<void *>(pointer));
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return as_runtime(static_cast<cudaError_t (*)(void **, size_t, cudaStream_t)>(cudaMallocAsync),
                      reinterpret_cast<void **>(pointer), bytes, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return as_runtime(cudaFreeAsync, reinterpret_cast<void *>(pointer), stream);
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return as_runtime(static_cast<cudaError_t (*)(void **, size_t, unsigned)>(cudaHostAlloc), pointer,
                      bytes, flags);
}

CUresult cuMemFreeHost(void *pointer) { return as_runtime(cudaFreeHost, pointer); }

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return as_runtime(cudaMemcpy, reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from),
                      bytes, cudaMemcpyDefault);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return as_runtime(cudaMemcpyAsync, reinterpret_cast<void *>(to),
                      reinterpret_cast<const void *>(from), bytes, cudaMemcpyDefault, stream);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
    return as_runtime(cudaMemcpy, reinterpret_cast<void *>(to), from, bytes, cudaMemcpyHostToDevice);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
    return as_runtime(cudaMemcpy, to, reinterpret_cast<const void *>(from), bytes,
                      cudaMemcpyDeviceToHost);
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return as_runtime(cudaMemcpy, reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from),
                      bytes, cudaMemcpyDeviceToDevice);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return as_runtime(cudaMemcpyAsync, reinterpret_cast<void *>(to), from, bytes,
                      cudaMemcpyHostToDevice, stream);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return as_runtime(cudaMemcpyAsync, to, reinterpret_cast<const void *>(from), bytes,
                      cudaMemcpyDeviceToHost, stream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return as_runtime(cudaMemcpyAsync, reinterpret_cast<void *>(to),
                      reinterpret_cast<const void *>(from), bytes, cudaMemcpyDeviceToDevice, stream);
}

CUresult cuMemsetD8(CUdeviceptr pointer, unsigned char value, size_t count) {
    return with_context([&](Held &held) {
        return fill_elements(held, reinterpret_cast<void *>(pointer), count, value, 1, count, 1,
                             cudaStreamLegacy, true);
    });
}

CUresult cuMemsetD32(CUdeviceptr pointer, unsigned value, size_t count) {
    return with_context([&](Held &held) {
        return fill_elements(held, reinterpret_cast<void *>(pointer), 4 * count, value, 4, count, 1,
                             cudaStreamLegacy, true);
    });
}

CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t count, CUstream stream) {
    return with_context([&](Held &held) {
        return fill_elements(held, reinterpret_cast<void *>(pointer), count, value, 1, count, 1,
                             stream, false);
    });
}

CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t count, CUstream stream) {
    return with_context([&](Held &held) {
        return fill_elements(held, reinterpret_cast<void *>(pointer), 4 * count, value, 4, count, 1,
                             stream, false);
    });
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    return with_context([&](Held &) {
        Allocation *found = find(Address(pointer));
        if (!found || found->freed) return cudaError_t(CUDA_ERROR_NOT_FOUND);
        if (base) *base = found->base;
        if (bytes) *bytes = found->bytes;
        return cudaSuccess;
    });
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr pointer) {
    return with_context([&](Held &) {
        Allocation *found = find(Address(pointer));
        if (!value || !found) return cudaErrorInvalidValue;
        bool host = found->kind == Kind::host || found->kind == Kind::registered;
        bool managed = found->kind == Kind::managed;
        switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *static_cast<CUcontext *>(value) = context_of(found->device);
            return cudaSuccess;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *static_cast<unsigned *>(value) = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            return cudaSuccess;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            *static_cast<CUdeviceptr *>(value) = pointer;
            return cudaSuccess;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (!host && !managed) return cudaErrorInvalidValue;
            *static_cast<CUdeviceptr *>(value) = pointer;
            return cudaSuccess;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            *static_cast<unsigned long long *>(value) = found->id;
            return cudaSuccess;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            *static_cast<unsigned *>(value) = managed;
            return cudaSuccess;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *static_cast<int *>(value) = found->device->index;
            return cudaSuccess;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *static_cast<CUdeviceptr *>(value) = found->base;
            return cudaSuccess;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            *static_cast<size_t *>(value) = found->bytes;
            return cudaSuccess;
        default:
            runtime().missing["cuPointerGetAttribute of attribute " + std::to_string(which)]++;
            return cudaErrorNotSupported;
        }
    });
}

// ---- streams and events

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return as_runtime(cudaStreamCreateWithFlags, stream, flags);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return as_runtime(cudaStreamCreateWithPriority, stream, flags, priority);
}

CUresult cuStreamDestroy(CUstream stream) { return as_runtime(cudaStreamDestroy, stream); }
CUresult cuStreamQuery(CUstream stream) { return as_runtime(cudaStreamQuery, stream); }
CUresult cuStreamSynchronize(CUstream stream) { return as_runtime(cudaStreamSynchronize, stream); }
CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
    return as_runtime(cudaStreamGetId, stream, id);
}
CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
    return as_runtime(cudaStreamGetFlags, stream, flags);
}
CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    return as_runtime(cudaStreamGetPriority, stream, priority);
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    return as_runtime(static_cast<cudaError_t (*)(cudaStream_t, cudaEvent_t, unsigned)>(
        cudaStreamWaitEvent), stream, event, flags);
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    return as_runtime(cudaStreamIsCapturing, stream,
                      reinterpret_cast<cudaStreamCaptureStatus *>(status));
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    return with_context([&](Held &held) {
        Stream *stream = resolve(held, handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (!context) return cudaErrorInvalidValue;
        *context = context_of(stream->device);
        return cudaSuccess;
    });
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument) {
    return as_runtime(cudaLaunchHostFunc, stream, function, argument);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
    return as_runtime(cudaEventCreateWithFlags, event, flags);
}
CUresult cuEventDestroy(CUevent event) { return as_runtime(cudaEventDestroy, event); }
CUresult cuEventQuery(CUevent event) { return as_runtime(cudaEventQuery, event); }
CUresult cuEventSynchronize(CUevent event) { return as_runtime(cudaEventSynchronize, event); }
CUresult cuEventRecord(CUevent event, CUstream stream) {
    return as_runtime(static_cast<cudaError_t (*)(cudaEvent_t, cudaStream_t)>(cudaEventRecord), event,
                      stream);
}
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    return as_runtime(cudaEventElapsedTime, milliseconds, from, to);
}

// ---- functions by name

// Tables of functions that NVIDIA does not document, of which there are none here. NVRTC looks for
// the driver's cache of compiled kernels, and does without. It crashes if this function is absent.
CUresult cuGetExportTable(const void **table, const CUuuid *) {
    if (!table) return CUDA_ERROR_INVALID_VALUE;
    *table = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}

// The newest form of a function that is here; a name without a suffix asks for it.
CUresult cuGetProcAddress(const char *name, void **function, int, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    static void *self = [] {
        Dl_info where;
        dladdr(reinterpret_cast<void *>(&cuInit), &where);
        return dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    *function = nullptr;
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    for (const char *suffix : {"_v4", "_v3", "_v2", ""})
        if (!*function && !per_thread && !strncmp(name, "cu", 2) && strncmp(name, "cuda", 4))
            *function = dlsym(self, (std::string(name) + suffix).c_str());
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}
