// Devices, contexts, errors.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace hostcuda {

namespace {

struct Name {
    int value;
    const char *name;
};

const Name runtime_names[] = {
#include "runtime_errors.inc"
};
const Name driver_names[] = {
#include "driver_errors.inc"
};

// The texts of the errors that programs meet; of others, the name says enough.
const Name texts[] = {
    {0, "no error"},
    {1, "invalid argument"},
    {2, "out of memory"},
    {3, "initialization error"},
    {9, "invalid configuration argument"},
    {98, "invalid device function"},
    {100, "no CUDA-capable device is detected"},
    {101, "invalid device ordinal"},
    {200, "device kernel image is invalid"},
    {201, "invalid device context"},
    {400, "invalid resource handle"},
    {401, "the operation cannot be performed in the present state"},
    {500, "named symbol not found"},
    {600, "device not ready"},
    {700, "an illegal memory access was encountered"},
    {701, "too many resources requested for launch"},
    {702, "the launch timed out and was terminated"},
    {710, "device-side assert triggered"},
    {716, "misaligned address"},
    {717, "operation not supported on global/shared address space"},
    {718, "invalid program counter"},
    {719, "unspecified launch failure"},
    {800, "operation not permitted"},
    {801, "operation not supported"},
    {900, "operation not permitted when stream is capturing"},
    {901, "operation failed due to a previous error during capture"},
    {902, "operation would result in a merge of separate capture sequences"},
    {903, "capture was not ended in the same stream as it began"},
    {904, "capturing stream has unjoined work"},
    {905, "dependency created on uncaptured work in another stream"},
    {906, "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "operation not permitted on an event last recorded in a capturing stream"},
    {908, "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "unknown error"},
};

template <size_t N> const char *look_up(const Name (&names)[N], int value) {
    for (const Name &each : names)
        if (each.value == value) return each.name;
    return nullptr;
}

}  // namespace

Device *device_at(int index) {
    auto &devices = runtime().devices;
    return index >= 0 && size_t(index) < devices.size() ? &devices[size_t(index)] : nullptr;
}

const char *error_name(int error) { return look_up(runtime_names, error); }
const char *driver_error_name(int error) { return look_up(driver_names, error); }

// The text of a sticky error includes the sentence about its cause.
const char *error_text(int error) {
    static thread_local std::string whole;
    const char *text = look_up(texts, error);
    if (!text) text = error_name(error);
    if (!text || runtime().forked) return text;
    Held held(runtime().lock);
    const Device &device = runtime().devices[size_t(thread().device)];
    if (!error || device.error != error || device.sentence.empty()) return text;
    whole = std::string(text) + ": " + device.sentence;
    return whole.c_str();
}

Thread &thread() {
    static thread_local Thread mine;
    return mine;
}

Thread::~Thread() {
    if (runtime().forked) return;
    std::vector<std::function<void()>> afterwards;
    Held held(runtime().lock);
    for (auto &each : streams) retire(held, *each.second);
    afterwards.swap(runtime().afterwards);
    held.unlock();
}

Device &current(Held &) {
    Thread &mine = thread();
    Device &device = runtime().devices[size_t(mine.device)];
    mine.context = &device;
    device.primary = true;
    return device;
}

}  // namespace hostcuda

using namespace hostcuda;

namespace {

constexpr int VERSION = 13000;

int attribute(const Device &device, int which) {
    auto found = device.attributes.find(which);
    return found == device.attributes.end() ? 0 : found->second;
}

void describe(const Device &device, cudaDeviceProp &to) {
    memset(&to, 0, sizeof to);
    auto of = [&](cudaDeviceAttr which) { return attribute(device, which); };
    strncpy(to.name, device.name.c_str(), sizeof to.name - 1);
    memcpy(to.uuid.bytes, "hostcuda device", 15);
    to.uuid.bytes[15] = char(device.index);
    to.totalGlobalMem = device.memory;
    to.sharedMemPerBlock = size_t(of(cudaDevAttrMaxSharedMemoryPerBlock));
    to.regsPerBlock = of(cudaDevAttrMaxRegistersPerBlock);
    to.warpSize = of(cudaDevAttrWarpSize);
    to.memPitch = size_t(of(cudaDevAttrMaxPitch));
    to.maxThreadsPerBlock = of(cudaDevAttrMaxThreadsPerBlock);
    for (int axis = 0; axis < 3; axis++) {
        to.maxThreadsDim[axis] = of(cudaDeviceAttr(cudaDevAttrMaxBlockDimX + axis));
        to.maxGridSize[axis] = of(cudaDeviceAttr(cudaDevAttrMaxGridDimX + axis));
    }
    to.totalConstMem = size_t(of(cudaDevAttrTotalConstantMemory));
    to.major = of(cudaDevAttrComputeCapabilityMajor);
    to.minor = of(cudaDevAttrComputeCapabilityMinor);
    to.textureAlignment = size_t(of(cudaDevAttrTextureAlignment));
    to.texturePitchAlignment = size_t(of(cudaDevAttrTexturePitchAlignment));
    to.multiProcessorCount = of(cudaDevAttrMultiProcessorCount);
    to.integrated = of(cudaDevAttrIntegrated);
    to.canMapHostMemory = of(cudaDevAttrCanMapHostMemory);
    to.surfaceAlignment = size_t(of(cudaDevAttrSurfaceAlignment));
    to.concurrentKernels = of(cudaDevAttrConcurrentKernels);
    to.ECCEnabled = of(cudaDevAttrEccEnabled);
    to.pciBusID = of(cudaDevAttrPciBusId) + device.index;
    to.pciDeviceID = of(cudaDevAttrPciDeviceId);
    to.pciDomainID = of(cudaDevAttrPciDomainId);
    to.tccDriver = of(cudaDevAttrTccDriver);
    to.asyncEngineCount = of(cudaDevAttrAsyncEngineCount);
    to.unifiedAddressing = of(cudaDevAttrUnifiedAddressing);
    to.memoryBusWidth = of(cudaDevAttrGlobalMemoryBusWidth);
    to.l2CacheSize = of(cudaDevAttrL2CacheSize);
    to.persistingL2CacheMaxSize = of(cudaDevAttrMaxPersistingL2CacheSize);
    to.maxThreadsPerMultiProcessor = of(cudaDevAttrMaxThreadsPerMultiProcessor);
    to.streamPrioritiesSupported = of(cudaDevAttrStreamPrioritiesSupported);
    to.globalL1CacheSupported = of(cudaDevAttrGlobalL1CacheSupported);
    to.localL1CacheSupported = of(cudaDevAttrLocalL1CacheSupported);
    to.sharedMemPerMultiprocessor = size_t(of(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
    to.regsPerMultiprocessor = of(cudaDevAttrMaxRegistersPerMultiprocessor);
    to.managedMemory = of(cudaDevAttrManagedMemory);
    to.hostNativeAtomicSupported = of(cudaDevAttrHostNativeAtomicSupported);
    to.pageableMemoryAccess = of(cudaDevAttrPageableMemoryAccess);
    to.concurrentManagedAccess = of(cudaDevAttrConcurrentManagedAccess);
    to.computePreemptionSupported = of(cudaDevAttrComputePreemptionSupported);
    to.canUseHostPointerForRegisteredMem = of(cudaDevAttrCanUseHostPointerForRegisteredMem);
    to.cooperativeLaunch = of(cudaDevAttrCooperativeLaunch);
    to.sharedMemPerBlockOptin = size_t(of(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    to.maxBlocksPerMultiProcessor = of(cudaDevAttrMaxBlocksPerMultiprocessor);
    to.accessPolicyMaxWindowSize = of(cudaDevAttrMaxAccessPolicyWindowSize);
    to.reservedSharedMemPerBlock = size_t(of(cudaDevAttrReservedSharedMemoryPerBlock));
    to.hostRegisterSupported = of(cudaDevAttrHostRegisterSupported);
    to.memoryPoolsSupported = of(cudaDevAttrMemoryPoolsSupported);
    to.clusterLaunch = of(cudaDevAttrClusterLaunch);
}

}  // namespace

extern "C" {

// ---- which device

cudaError_t cudaGetDeviceCount(int *count) {
    return call([&](Held &) {
        if (!count) return cudaErrorInvalidValue;
        *count = int(runtime().devices.size());
        return cudaSuccess;
    }, false);
}

cudaError_t cudaGetDevice(int *device) {
    return call([&](Held &) {
        if (!device) return cudaErrorInvalidValue;
        *device = thread().device;
        return cudaSuccess;
    }, false);
}

cudaError_t cudaSetDevice(int device) {
    return call([&](Held &held) {
        if (!device_at(device)) return cudaErrorInvalidDevice;
        thread().device = device;
        current(held);
        return cudaSuccess;
    }, false);
}

cudaError_t cudaDeviceSynchronize(void) {
    return call([&](Held &held) {
        if (cudaError_t refused = refuse_unsafe(held)) return refused;
        for (Capture *capture : std::set<Capture *>(runtime().captures))
            if (capture->origin->device == &current(held)) {
                break_capture(*capture);
                return cudaErrorStreamCaptureUnsupported;
            }
        count(HOSTCUDA_OTHER, "synchronize device");
        Device &device = current(held);
        cudaError_t error = wait_for_device(held, device);
        inspect(held, device);
        return error ? error : cudaError_t(device.error);
    });
}

cudaError_t cudaDeviceReset(void) { return cudaError_t(hostcuda_missing("cudaDeviceReset")); }

// ---- what it is

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    return call([&](Held &) {
        if (!properties) return cudaErrorInvalidValue;
        Device *found = device_at(device);
        if (!found) return cudaErrorInvalidDevice;
        describe(*found, *properties);
        return cudaSuccess;
    }, false);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int device) {
    return call([&](Held &) {
        Device *found = device_at(device);
        if (!found) return cudaErrorInvalidDevice;
        if (!value || !found->attributes.count(which)) return cudaErrorInvalidValue;
        *value = attribute(*found, which);
        if (which == cudaDevAttrPciBusId) *value += device;
        return cudaSuccess;
    }, false);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    return call([&](Held &) {
        Device *found = device_at(device);
        if (!found) return cudaErrorInvalidDevice;
        if (!text || length < 13) return cudaErrorInvalidValue;
        snprintf(text, size_t(length), "%04X:%02X:%02X.0", attribute(*found, cudaDevAttrPciDomainId),
                 attribute(*found, cudaDevAttrPciBusId) + device,
                 attribute(*found, cudaDevAttrPciDeviceId));
        return cudaSuccess;
    }, false);
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
    return call([&](Held &) {
        unsigned domain = 0, bus = 0, slot = 0;
        if (!device || !text) return cudaErrorInvalidValue;
        if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return cudaErrorInvalidDevice;
        for (Device &each : runtime().devices)
            if (int(domain) == attribute(each, cudaDevAttrPciDomainId)
                && int(bus) == attribute(each, cudaDevAttrPciBusId) + each.index
                && int(slot) == attribute(each, cudaDevAttrPciDeviceId)) {
                *device = each.index;
                return cudaSuccess;
            }
        return cudaErrorInvalidDevice;
    }, false);
}

cudaError_t cudaDeviceGetLimit(size_t *value, cudaLimit limit) {
    return call([&](Held &held) {
        auto &limits = current(held).limits;
        if (!value) return cudaErrorInvalidValue;
        if (!limits.count(limit)) return cudaErrorUnsupportedLimit;
        *value = limits[limit];
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
    return call([&](Held &held) {
        auto &limits = current(held).limits;
        if (!limits.count(limit)) return cudaErrorUnsupportedLimit;
        limits[limit] = value;
        return cudaSuccess;
    });
}

cudaError_t cudaDriverGetVersion(int *version) {
    return call([&](Held &) {
        if (!version) return cudaErrorInvalidValue;
        *version = VERSION;
        return cudaSuccess;
    }, false);
}

cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

cudaError_t cudaProfilerStart(void) {
    return call([&](Held &held) { current(held); return cudaSuccess; });
}
cudaError_t cudaProfilerStop(void) { return cudaProfilerStart(); }

// ---- peers

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    return call([&](Held &) {
        if (!can) return cudaErrorInvalidValue;
        if (!device_at(device) || !device_at(peer)) return cudaErrorInvalidDevice;
        *can = device != peer;
        return cudaSuccess;
    }, false);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    return call([&](Held &held) {
        Device &mine = current(held);
        if (flags) return cudaErrorInvalidValue;
        if (!device_at(peer) || peer == mine.index) return cudaErrorInvalidDevice;
        return mine.peers.insert(peer).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
    });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    return call([&](Held &held) {
        return current(held).peers.erase(peer) ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
    });
}

// ---- errors

cudaError_t cudaGetLastError(void) {
    cudaError_t error = cudaPeekAtLastError();
    thread().last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    if (runtime().forked) return cudaErrorInitializationError;
    Held held(runtime().lock);
    Thread &mine = thread();
    int stuck = runtime().devices[size_t(mine.device)].error;
    return stuck ? cudaError_t(stuck) : mine.last_error;
}

const char *cudaGetErrorName(cudaError_t error) {
    const char *name = error_name(error);
    return name ? name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    const char *text = error_text(error);
    return text ? text : "unrecognized error code";
}

// ---- for the Python side

// Devices are made once, before any other call.
void hostcuda_add_device(const char *name, size_t memory, const int *attributes, size_t count) {
    Runtime &all = runtime();
    Held held(all.lock);
    Device &device = all.devices.emplace_back();
    device.index = int(all.devices.size()) - 1;
    device.name = name;
    device.memory = memory;
    for (size_t place = 0; place < count; place++)
        device.attributes[attributes[2 * place]] = attributes[2 * place + 1];
    device.legacy.device = &device;
    device.legacy.legacy = true;
    device.legacy.id = all.next_stream++;
    device.default_pool.device = &device;
    device.pool = &device.default_pool;
    all.pools.insert(&device.default_pool);
    device.limits = {{cudaLimitStackSize, 1024}, {cudaLimitPrintfFifoSize, 1 << 20},
                     {cudaLimitMallocHeapSize, 8 << 20}, {cudaLimitMaxL2FetchGranularity, 64},
                     {cudaLimitPersistingL2CacheSize, 0}};
}

void hostcuda_configure(int deferred, int dry, unsigned long long seed) {
    Runtime &all = runtime();
    if (all.forked) return;
    Held held(all.lock);
    for (Device &device : all.devices) wait_for_device(held, device);
    all.deferred = deferred;
    all.dry = dry;
    all.random.seed(seed);
}

void hostcuda_set_memory(int device, size_t memory) {
    Held held(runtime().lock);
    runtime().devices[size_t(device)].memory = memory;
}

// From now on the current device answers this error, as after a fault of a kernel. One that it
// answers already stays.
void hostcuda_lose_device(int error, const char *sentence) {
    if (runtime().forked) return;
    Held held(runtime().lock);
    Device &device = current(held);
    if (!device.error) {
        device.error = error;
        device.sentence = sentence;
    }
    runtime().changed.notify_all();   // work that waits need not wait any more
}

// Clears sticky errors, which CUDA has no function for; only tests call it.
void hostcuda_forgive(void) {
    if (runtime().forked) return;
    Held held(runtime().lock);
    for (Device &device : runtime().devices) {
        wait_for_device(held, device);
        device.error = 0;
        device.sentence.clear();
    }
    thread().last_error = cudaSuccess;
}

int hostcuda_missing(const char *name) {
    return call([&](Held &) {
        runtime().missing[name]++;
        return cudaErrorNotSupported;
    }, false);
}

// Calls `take(argument, kind, name, count, bytes, seconds)` for each line of the counters; kind -1
// are the functions that were called and are not there.
void hostcuda_counters(void (*take)(void *, int, const char *, unsigned long long,
                                    unsigned long long, double), void *argument) {
    Runtime &all = runtime();
    if (all.forked) return;
    Held held(all.lock);
    auto tallies = all.tallies;
    auto missing = all.missing;
    held.unlock();
    for (auto &[key, tally] : tallies)
        take(argument, key.first, key.second.c_str(), tally.count, tally.bytes, tally.seconds);
    for (auto &[name, times] : missing) take(argument, -1, name.c_str(), times, 0, 0);
}

void hostcuda_reset_counters(void) {
    Held held(runtime().lock);
    runtime().tallies.clear();
}

void hostcuda_watch(int on) {
    Held held(runtime().lock);
    runtime().watched = on;
    runtime().noted.clear();
}

void hostcuda_watched(void (*take)(void *, const hostcuda_event *), void *argument) {
    std::vector<Noted> noted;
    {
        Held held(runtime().lock);
        noted.swap(runtime().noted);
    }
    for (const Noted &each : noted) {
        hostcuda_event event{};
        event.kind = each.kind;
        event.name = each.name.c_str();
        event.bytes = each.bytes;
        if (const Launched *launched = each.launched.get()) {
            event.module = launched->module;
            event.function = launched->function.c_str();
            std::copy_n(launched->grid, 3, event.grid);
            std::copy_n(launched->block, 3, event.block);
            event.shared = launched->shared;
            event.resident = launched->resident;
            event.parameter_count = unsigned(launched->sizes.size());
            event.parameter_sizes = launched->sizes.data();
            event.parameters = reinterpret_cast<const unsigned char *>(launched->parameters.data());
        }
        take(argument, &event);
    }
}

unsigned long long hostcuda_launches(void) { return runtime().launches; }

}
