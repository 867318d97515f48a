// Memory: addresses, device and host allocations, CUDA's pools, virtual memory.
//
// Device memory is host memory in a reserved range of addresses. Each allocation lies between pages
// without access rights. It ends less than ALIGNMENT bytes before the second of them; `inspect` checks
// the bytes in between. An access to that page or to freed memory faults: addresses are reused only
// after all others of the range.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "state.h"

namespace hostcuda {

namespace {

constexpr size_t PAGE = 4096;
// Of cudaMalloc: CUDA C++ Programming Guide, "Device Memory Accesses".
constexpr size_t ALIGNMENT = 256;
constexpr size_t PATTERN_BYTES = 8 << 20;

constexpr size_t SPACE = size_t(64) << 40;   // addresses

size_t up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

void *at(Address address) { return reinterpret_cast<void *>(address); }

// ---- addresses

struct Addresses {
    Address next = 0, end = 0;
    std::deque<std::pair<Address, size_t>> freed;   // the oldest first

    Address take(size_t bytes, size_t alignment) {
        if (!end) {
            size_t size = SPACE;
            void *got = MAP_FAILED;
            for (; got == MAP_FAILED && size >= (size_t(1) << 36); size /= 2)
                got = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                           0);
            if (got == MAP_FAILED) return 0;
            next = Address(got);
            end = next + size * 2;
        }
        Address start = up(next, alignment);
        if (start + bytes <= end) {
            next = start + bytes;
            return start;
        }
        for (auto place = freed.begin(); place != freed.end(); ++place) {
            start = up(place->first, alignment);
            Address stop = place->first + place->second;
            if (start + bytes > stop) continue;
            freed.erase(place);
            if (start + bytes < stop) freed.emplace_back(start + bytes, stop - start - bytes);
            return start;
        }
        return 0;
    }

    void give(Address start, size_t bytes) { freed.emplace_back(start, bytes); }
};

Addresses addresses;

int pattern_file() {
    static int file = [] {
        int made = memfd_create("hostcuda pattern", MFD_CLOEXEC);
        if (made < 0 || ftruncate(made, PATTERN_BYTES)) return -1;
        void *page = mmap(nullptr, PATTERN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
        if (page == MAP_FAILED) return -1;
        memset(page, PATTERN, PATTERN_BYTES);
        munmap(page, PATTERN_BYTES);
        return made;
    }();
    return file;
}

constexpr int READ_WRITE = PROT_READ | PROT_WRITE;
constexpr int PRIVATE = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;

bool on_device(const Allocation &allocation) {
    return allocation.kind == Kind::device || allocation.kind == Kind::managed;
}

}  // namespace

Allocation *find(Address address) {
    auto &memory = runtime().memory;
    auto next = memory.upper_bound(address);
    if (next == memory.begin()) return nullptr;
    Allocation &found = std::prev(next)->second;
    return address < found.base + found.bytes ? &found : nullptr;
}

Allocation *find(const void *address) { return find(Address(address)); }

bool whole(const void *pointer, size_t bytes) {
    Address from = Address(pointer), to = from + bytes;
    while (from < to) {
        Allocation *found = find(from);
        if (!found || found->freed || (found->kind == Kind::mapped && !found->there)) return false;
        if (found->kind != Kind::mapped) return to <= found->base + found->bytes;
        from = found->base + found->bytes;
    }
    return true;
}

namespace {

// Memory of another device is a peer's to read (cudaDeviceEnablePeerAccess), that of its pools is not
// (cudaMemPoolSetAccess is not there); where it is mapped, cuMemSetAccess says so.
bool allowed(const Allocation &there, const Device &reader) {
    if (there.device == &reader) return true;
    return there.kind == Kind::device ? reader.peers.count(there.device->index)
                                      : there.kind != Kind::pooled;
}

}  // namespace

Outcome reachable(const void *pointer, size_t bytes, const char *what, const Device *reader) {
    Held held(runtime().lock);
    size_t done = 0;
    while (done < bytes) {
        Address from = Address(pointer) + done;
        Allocation *found = find(from);
        if (!found || !found->there || (reader && !allowed(*found, *reader))) {
            char sentence[200];
            snprintf(sentence, sizeof sentence,
                     "%s touched %#zx, %zu bytes behind the start of its %zu bytes, where the device has "
                     "no memory when it runs", what, size_t(from), done, bytes);
            return {cudaErrorIllegalAddress, sentence};
        }
        done += found->base + found->bytes - from;
    }
    return {};
}

// An allocation ends less than ALIGNMENT bytes before its last page does and begins within its first
// page; what else these pages hold is the pattern for as long as no program writes there.
void inspect(Held &, Allocation &allocation) {
    if (!allocation.there || allocation.kind == Kind::host || !allocation.span || pattern_file() < 0)
        return;
    const Address end = allocation.base + allocation.bytes;
    const std::pair<Address, Address> around[] = {
        {allocation.span + PAGE, allocation.base},
        {end, allocation.span + allocation.span_bytes - PAGE}};
    for (auto [start, stop] : around) {
        auto *first = static_cast<unsigned char *>(at(start));
        auto *last = static_cast<unsigned char *>(at(stop));
        size_t bytes = stop - start;
        if (!bytes || (*first == PATTERN && !memcmp(first, first + 1, bytes - 1))) continue;
        auto *found = std::find_if(first, last, [](unsigned char byte) { return byte != PATTERN; });
        Device &device = *allocation.device;
        bool behind = start == end;
        size_t distance = behind ? Address(found) - end : allocation.base - Address(found);
        if (!device.error) {
            char sentence[200];
            snprintf(sentence, sizeof sentence,
                     "something wrote %zu bytes %s of the %zu bytes allocated at %#zx", distance,
                     behind ? "behind the end" : "before the start", allocation.bytes,
                     size_t(allocation.base));
            device.error = cudaErrorIllegalAddress;
            device.sentence = sentence;
        }
        memset(first, PATTERN, bytes);
    }
}

void inspect(Held &held, Device &device) {
    for (auto &[base, allocation] : runtime().memory)
        if (allocation.device == &device) inspect(held, allocation);
}

// Pages that hold the pattern until they are written; they cost nothing before.
bool commit(Allocation &allocation) {
    Address start = allocation.base / PAGE * PAGE, stop = up(allocation.base + allocation.bytes, PAGE);
    int file = pattern_file();
    if (file < 0) {
        void *page = mmap(at(start), stop - start, READ_WRITE, PRIVATE | MAP_ANONYMOUS, -1, 0);
        return allocation.there = page != MAP_FAILED;
    }
    for (; start < stop; start += PATTERN_BYTES)
        if (mmap(at(start), std::min(PATTERN_BYTES, stop - start), READ_WRITE, PRIVATE, file, 0)
            == MAP_FAILED)
            return false;
    return allocation.there = true;
}

bool close_off(Address start, size_t bytes) {
    constexpr int CLOSED = MAP_PRIVATE | MAP_NORESERVE | MAP_ANONYMOUS;
    if (mmap(at(start), bytes, PROT_NONE, CLOSED | MAP_FIXED, -1, 0) != MAP_FAILED) return true;
    // A process above the system's number of mappings makes none in place of another: first one less.
    munmap(at(start), bytes);
    void *page = mmap(at(start), bytes, PROT_NONE, CLOSED | MAP_FIXED_NOREPLACE, -1, 0);
    return page != MAP_FAILED;
}

Address take_addresses(size_t bytes, size_t alignment) { return addresses.take(bytes, alignment); }
void give_addresses(Address start, size_t bytes) { addresses.give(start, bytes); }

cudaError_t allocate(Held &, Kind kind, size_t bytes, Device *device, Allocation **made) {
    Runtime &all = runtime();
    size_t rounded = up(std::max(bytes, size_t(1)), ALIGNMENT);
    if (device && (rounded > device->memory || device->allocated > device->memory - rounded))
        return cudaErrorMemoryAllocation;
    size_t pages = up(rounded, PAGE);
    Address span = addresses.take(pages + 2 * PAGE, PAGE);
    if (!span) return cudaErrorMemoryAllocation;
    Allocation allocation;
    allocation.base = span + PAGE + pages - rounded;
    allocation.bytes = bytes;
    allocation.span = span;
    allocation.span_bytes = pages + 2 * PAGE;
    allocation.kind = kind;
    allocation.device = device;
    allocation.id = ++all.next_allocation;
    if (device) device->allocated += rounded;
    *made = &(all.memory[allocation.base] = allocation);
    return cudaSuccess;
}

void forget(Held &, Address base) {
    Runtime &all = runtime();
    auto found = all.memory.find(base);
    Allocation &allocation = found->second;
    if (on_device(allocation))
        allocation.device->allocated -= up(std::max(allocation.bytes, size_t(1)), ALIGNMENT);
    if (close_off(allocation.span, allocation.span_bytes))   // else these addresses are never reused
        addresses.give(allocation.span, allocation.span_bytes);
    all.memory.erase(found);
}

}  // namespace hostcuda

using namespace hostcuda;

namespace {

// Returns unused bytes of the pool above `to` to the device.
void shrink(Pool &pool, size_t to) {
    size_t least = std::max(pool.used, to);
    if (pool.reserved <= least) return;
    pool.device->allocated -= pool.reserved - least;
    pool.reserved = least;
}

void give_back(const Allocation &allocation) {
    Pool *pool = allocation.pool;
    pool->used -= allocation.bytes;
    if (!pool->doomed) return;
    shrink(*pool, 0);
    if (!pool->used) delete pool;
}

cudaError_t obtain(Held &held, Kind kind, void **pointer, size_t bytes, unsigned flags) {
    if (!pointer) return cudaErrorInvalidValue;
    if (cudaError_t refused = refuse_unsafe(held)) return refused;
    Device &device = current(held);
    if (!bytes) {
        *pointer = nullptr;
        return cudaSuccess;
    }
    Allocation *made = nullptr;
    cudaError_t error = allocate(held, kind, bytes, kind == Kind::host ? nullptr : &device, &made);
    if (error) return error;
    made->device = &device;
    made->flags = flags;
    if (!commit(*made)) {
        forget(held, made->base);
        return cudaErrorMemoryAllocation;
    }
    count(HOSTCUDA_OTHER, kind == Kind::host ? "allocate host" : "allocate", bytes);
    *pointer = at(made->base);
    return cudaSuccess;
}

cudaError_t release(Held &held, void *pointer, bool host) {
    Device &device = current(held);
    if (!pointer) return cudaSuccess;
    if (cudaError_t refused = refuse_unsafe(held)) return refused;
    Runtime &all = runtime();
    auto found = all.memory.find(Address(pointer));
    if (found == all.memory.end() || found->second.freed
        || (host ? found->second.kind != Kind::host
                 : !on_device(found->second) && found->second.kind != Kind::pooled))
        return cudaErrorInvalidValue;
    count(HOSTCUDA_OTHER, host ? "free host" : "free");
    Device &owner = found->second.device ? *found->second.device : device;
    found->second.freed = true;
    auto finish = [base = found->first](Held &held) {
        auto found = runtime().memory.find(base);
        inspect(held, found->second);
        if (found->second.pool) give_back(found->second);
        forget(held, base);
    };
    if (running_here(held)) {   // the caller's own work runs: wait for the device after it
        all.when_idle.push_back([finish, &owner](Held &held) {
            wait_for_device(held, owner);
            finish(held);
        });
        return cudaSuccess;
    }
    cudaError_t error = wait_for_device(held, owner);
    finish(held);
    return error;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    return call([&](Held &held) { return obtain(held, Kind::device, pointer, bytes, 0); });
}

cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    return call([&](Held &held) {
        if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) return cudaErrorInvalidValue;
        if (!bytes) return cudaErrorInvalidValue;
        return obtain(held, Kind::managed, pointer, bytes, flags);
    });
}

cudaError_t cudaFree(void *pointer) {
    return call([&](Held &held) { return release(held, pointer, false); });
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return call([&](Held &held) {
        unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
        if (flags & ~known) return cudaErrorInvalidValue;
        return obtain(held, Kind::host, pointer, bytes, flags);
    });
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *pointer) {
    return call([&](Held &held) { return release(held, pointer, true); });
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    return call([&](Held &held) {
        Runtime &all = runtime();
        if (!pointer || !bytes) return cudaErrorInvalidValue;
        if (cudaError_t refused = refuse_unsafe(held)) return refused;
        Address base = Address(pointer);
        auto next = all.memory.lower_bound(base);
        if (find(base) || (next != all.memory.end() && next->first < base + bytes))
            return cudaErrorHostMemoryAlreadyRegistered;
        Allocation made;
        made.base = base;
        made.bytes = bytes;
        made.kind = Kind::registered;
        made.device = &current(held);
        made.flags = flags;
        made.there = true;
        made.id = ++all.next_allocation;
        all.memory[base] = made;
        return cudaSuccess;
    });
}

cudaError_t cudaHostUnregister(void *pointer) {
    return call([&](Held &held) {
        Runtime &all = runtime();
        if (cudaError_t refused = refuse_unsafe(held)) return refused;
        auto found = all.memory.find(Address(pointer));
        if (found == all.memory.end() || found->second.kind != Kind::registered)
            return cudaErrorHostMemoryNotRegistered;
        for (Device &device : all.devices)
            if (cudaError_t error = wait_for_device(held, device)) return error;
        all.memory.erase(Address(pointer));
        return cudaSuccess;
    });
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    return call([&](Held &held) {
        Device &device = current(held);
        if (!free || !total) return cudaErrorInvalidValue;
        *total = device.memory;
        *free = device.memory - std::min(device.memory, device.allocated);
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *to, const void *pointer) {
    return call([&](Held &held) {
        current(held);
        if (!to) return cudaErrorInvalidValue;
        Allocation *found = find(pointer);
        *to = {};
        to->device = -2;   // cudaInvalidDeviceId
        if (!found) {
            to->type = cudaMemoryTypeUnregistered;
            to->hostPointer = const_cast<void *>(pointer);
            return cudaSuccess;
        }
        bool host = found->kind == Kind::host || found->kind == Kind::registered;
        to->type = host ? cudaMemoryTypeHost
                   : found->kind == Kind::managed ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
        to->device = found->device->index;
        to->devicePointer = const_cast<void *>(pointer);
        to->hostPointer = host || found->kind == Kind::managed ? const_cast<void *>(pointer) : nullptr;
        return cudaSuccess;
    });
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    return call([&](Held &) {
        Allocation *found = find(host);
        if (!device || flags || !found
            || (found->kind != Kind::host && found->kind != Kind::registered))
            return cudaErrorInvalidValue;
        *device = host;
        return cudaSuccess;
    });
}

// Moves nothing: a program cannot see where the driver keeps managed memory.
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, cudaMemLocation, unsigned flags,
                                 cudaStream_t handle) {
    return call([&](Held &held) {
        Allocation *found = find(pointer);
        if (!resolve(held, handle)) return cudaErrorInvalidResourceHandle;
        return found && found->kind == Kind::managed && whole(pointer, bytes) && !flags
                   ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, cudaMemoryAdvise, cudaMemLocation) {
    return call([&](Held &held) {
        current(held);
        Allocation *found = find(pointer);
        return found && found->kind == Kind::managed && whole(pointer, bytes)
                   ? cudaSuccess : cudaErrorInvalidValue;
    });
}

int hostcuda_is_device_memory(const void *address, size_t bytes) {
    Held held(runtime().lock);
    Allocation *found = find(address);
    return found && found->kind != Kind::host && found->kind != Kind::registered
           && whole(address, bytes);
}

}

// ---- CUDA's own pools: cudaMallocAsync and cudaFreeAsync

namespace {

void note(Pool &pool) {
    pool.used_high = std::max(pool.used_high, pool.used);
    if (pool.used > pool.reserved) {
        pool.device->allocated += pool.used - pool.reserved;
        pool.reserved = pool.used;
    }
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
}

cudaError_t draw(Held &held, void **pointer, size_t bytes, Pool &pool, Stream &stream) {
    if (!pointer) return cudaErrorInvalidValue;
    if (!bytes) {
        *pointer = nullptr;
        return cudaSuccess;
    }
    Device &device = *pool.device;
    size_t room = device.memory - std::min(device.memory, device.allocated) + pool.reserved
                  - pool.used;
    if (bytes > room) {
        if (cudaError_t error = wait_for_device(held, device)) return error;
        room = device.memory - std::min(device.memory, device.allocated) + pool.reserved - pool.used;
        if (bytes > room) return cudaErrorMemoryAllocation;
    }
    Allocation *made = nullptr;
    if (cudaError_t error = allocate(held, Kind::pooled, bytes, nullptr, &made)) return error;
    made->device = &device;
    made->pool = &pool;
    pool.used += bytes;
    note(pool);
    *pointer = at(made->base);
    auto work = std::make_shared<Work>();
    work->name = "allocate in stream";
    work->bytes = bytes;
    work->run = [base = made->base] {
        Held held(runtime().lock);
        if (commit(runtime().memory[base])) return Outcome{};
        return Outcome{cudaErrorMemoryAllocation, "the system gives this process no more memory"};
    };
    return submit(held, stream, std::move(work));
}

}  // namespace

void hostcuda::trim_pools(Held &, Device &device) {
    for (Pool *pool : runtime().pools)
        if (pool->device == &device) shrink(*pool, pool->threshold);
}

namespace {

Pool *pool_of(cudaMemPool_t handle) {
    auto *pool = reinterpret_cast<Pool *>(handle);
    return runtime().pools.count(pool) ? pool : nullptr;
}

cudaMemPool_t handle_of(Pool *pool) { return reinterpret_cast<cudaMemPool_t>(pool); }

template <class Body> cudaError_t with_pool(cudaMemPool_t handle, Body body) {
    return call([&](Held &held) {
        current(held);
        Pool *pool = pool_of(handle);
        return pool ? body(held, *pool) : cudaErrorInvalidValue;
    });
}

cudaError_t refuse_graph_memory(Stream &stream) {
    if (!stream.capture) return cudaSuccess;
    break_capture(*stream.capture);   // memory nodes of graphs are not there
    runtime().missing["cudaMallocAsync or cudaFreeAsync within a capture"]++;
    return cudaErrorNotSupported;
}

}  // namespace

extern "C" {

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t handle) {
    return call([&](Held &held) {
        Stream *stream = resolve(held, handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (cudaError_t refused = refuse_graph_memory(*stream)) return refused;
        return draw(held, pointer, bytes, *stream->device->pool, *stream);
    });
}

cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t handle) {
    return with_pool(pool, [&](Held &held, Pool &found) {
        Stream *stream = resolve(held, handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (cudaError_t refused = refuse_graph_memory(*stream)) return refused;
        return draw(held, pointer, bytes, found, *stream);
    });
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t handle) {
    return call([&](Held &held) {
        Stream *stream = resolve(held, handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (!pointer) return cudaSuccess;
        if (cudaError_t refused = refuse_graph_memory(*stream)) return refused;
        auto found = runtime().memory.find(Address(pointer));
        if (found == runtime().memory.end() || found->second.kind != Kind::pooled
            || found->second.freed)
            return cudaErrorInvalidValue;
        found->second.freed = true;
        give_back(found->second);
        auto work = std::make_shared<Work>();
        work->name = "free in stream";
        work->run = [base = found->first] {
            Held held(runtime().lock);
            inspect(held, runtime().memory[base]);
            forget(held, base);
            return Outcome{};
        };
        return submit(held, *stream, std::move(work));
    });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    return call([&](Held &) {
        Device *found = device_at(device);
        if (!found) return cudaErrorInvalidDevice;
        if (!pool) return cudaErrorInvalidValue;
        *pool = handle_of(&found->default_pool);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
    return call([&](Held &) {
        Device *found = device_at(device);
        if (!found) return cudaErrorInvalidDevice;
        if (!pool) return cudaErrorInvalidValue;
        *pool = handle_of(found->pool);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    return with_pool(pool, [&](Held &, Pool &found) {
        Device *which = device_at(device);
        if (!which) return cudaErrorInvalidDevice;
        if (found.device != which) return cudaErrorInvalidValue;
        which->pool = &found;
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *wanted) {
    return call([&](Held &held) {
        current(held);
        if (!pool || !wanted || wanted->allocType != cudaMemAllocationTypePinned
            || wanted->location.type != cudaMemLocationTypeDevice)
            return cudaErrorInvalidValue;
        Device *device = device_at(wanted->location.id);
        if (!device) return cudaErrorInvalidValue;
        if (wanted->handleTypes != cudaMemHandleTypeNone) return cudaErrorNotSupported;
        auto *made = new Pool;
        made->device = device;
        runtime().pools.insert(made);
        *pool = handle_of(made);
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    return with_pool(pool, [&](Held &, Pool &found) {
        Device &device = *found.device;
        if (&found == &device.default_pool) return cudaErrorInvalidValue;
        shrink(found, 0);
        if (device.pool == &found) device.pool = &device.default_pool;
        runtime().pools.erase(&found);
        if (found.used) found.doomed = true;
        else delete &found;
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
    return with_pool(pool, [&](Held &, Pool &found) {
        shrink(found, bytes);
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void *value) {
    return with_pool(pool, [&](Held &, Pool &found) {
        if (!value) return cudaErrorInvalidValue;
        auto *large = static_cast<uint64_t *>(value);
        switch (which) {
        case cudaMemPoolReuseFollowEventDependencies:
        case cudaMemPoolReuseAllowOpportunistic:
        case cudaMemPoolReuseAllowInternalDependencies:
            *static_cast<int *>(value) = found.settings.count(which) ? found.settings[which] : 1;
            return cudaSuccess;
        case cudaMemPoolAttrReleaseThreshold: *large = found.threshold; return cudaSuccess;
        case cudaMemPoolAttrReservedMemCurrent: *large = found.reserved; return cudaSuccess;
        case cudaMemPoolAttrReservedMemHigh: *large = found.reserved_high; return cudaSuccess;
        case cudaMemPoolAttrUsedMemCurrent: *large = found.used; return cudaSuccess;
        case cudaMemPoolAttrUsedMemHigh: *large = found.used_high; return cudaSuccess;
        default: return cudaErrorInvalidValue;
        }
    });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void *value) {
    return with_pool(pool, [&](Held &, Pool &found) {
        if (!value) return cudaErrorInvalidValue;
        uint64_t large = which < cudaMemPoolAttrReleaseThreshold ? 0 : *static_cast<uint64_t *>(value);
        switch (which) {
        case cudaMemPoolReuseFollowEventDependencies:
        case cudaMemPoolReuseAllowOpportunistic:
        case cudaMemPoolReuseAllowInternalDependencies:
            found.settings[which] = *static_cast<int *>(value);
            return cudaSuccess;
        case cudaMemPoolAttrReleaseThreshold: found.threshold = large; return cudaSuccess;
        case cudaMemPoolAttrReservedMemHigh:   // a high mark can only be set to 0: to what is now
            if (large) return cudaErrorInvalidValue;
            found.reserved_high = found.reserved;
            return cudaSuccess;
        case cudaMemPoolAttrUsedMemHigh:
            if (large) return cudaErrorInvalidValue;
            found.used_high = found.used;
            return cudaSuccess;
        default: return cudaErrorInvalidValue;
        }
    });
}

}
