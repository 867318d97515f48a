// Virtual memory: addresses that are reserved, memory that is made, and what is mapped where.
//
// All of it is one file in memory, of which each allocation is a part: a part that is mapped at two
// addresses is the same memory, as on a device.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "driver.h"

namespace hostcuda {

struct Physical {
    Device *device = nullptr;
    size_t bytes = 0;
    off_t offset = 0;
    unsigned handles = 1;            // not released
    unsigned mappings = 0;
};

namespace {

constexpr size_t GRANULARITY = 2 << 20;
constexpr size_t FILLED = size_t(1) << 30;   // of the memory that exists, so much holds the pattern

struct File {
    int descriptor = -1;
    off_t next = 0;
    std::map<size_t, std::vector<off_t>> freed;   // by size
    size_t filled = 0;
    std::unordered_set<Physical *> parts;
    std::map<Address, size_t> reserved;
};

File &file() {
    static File *all = new File;
    return *all;
}

cudaError_t make(Held &, Device &device, size_t bytes, Physical **made) {
    File &all = file();
    if (bytes > device.memory || device.allocated > device.memory - bytes)
        return cudaErrorMemoryAllocation;
    if (all.descriptor < 0) all.descriptor = memfd_create("hostcuda memory", MFD_CLOEXEC);
    auto *part = new Physical;
    auto &freed = all.freed[bytes];
    if (freed.empty()) {
        part->offset = all.next;
        if (all.descriptor < 0 || ftruncate(all.descriptor, all.next + off_t(bytes))) {
            delete part;
            return cudaErrorMemoryAllocation;
        }
        all.next += off_t(bytes);
    } else {
        part->offset = freed.front();
        freed.erase(freed.begin());
    }
    part->device = &device;
    part->bytes = bytes;
    device.allocated += bytes;
    all.parts.insert(part);
    count(HOSTCUDA_OTHER, "allocate pages", bytes);
    *made = part;
    if (runtime().dry || all.filled + bytes > FILLED) return cudaSuccess;
    void *page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, all.descriptor, part->offset);
    if (page != MAP_FAILED) {
        memset(page, PATTERN, bytes);
        munmap(page, bytes);
        all.filled += bytes;
    }
    return cudaSuccess;
}

void release_if_unused(Physical *part) {
    if (part->handles || part->mappings) return;
    File &all = file();
    fallocate(all.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, part->offset,
              off_t(part->bytes));
    all.freed[part->bytes].push_back(part->offset);
    all.filled -= std::min(all.filled, part->bytes);
    part->device->allocated -= part->bytes;
    count(HOSTCUDA_OTHER, "free pages");
    all.parts.erase(part);
    delete part;
}

Physical *part_of(CUmemGenericAllocationHandle handle) {
    auto *part = reinterpret_cast<Physical *>(handle);
    return file().parts.count(part) ? part : nullptr;
}

bool is_reserved(Address from, size_t bytes) {
    auto &reserved = file().reserved;
    auto next = reserved.upper_bound(from);
    if (next == reserved.begin()) return false;
    auto [start, size] = *std::prev(next);
    return from + bytes <= start + size;
}

// The mappings that make up exactly these addresses; none if they do not.
std::vector<Allocation *> mappings(Address from, size_t bytes) {
    std::vector<Allocation *> found;
    for (Address address = from; address < from + bytes;) {
        Allocation *each = find(address);
        if (!each || each->kind != Kind::mapped || each->base != address
            || each->base + each->bytes > from + bytes)
            return {};
        found.push_back(each);
        address += each->bytes;
    }
    return found;
}

bool usual(const CUmemAllocationProp *wanted) {
    return wanted && wanted->type == CU_MEM_ALLOCATION_TYPE_PINNED
           && wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE && wanted->location.id >= 0
           && size_t(wanted->location.id) < runtime().devices.size();
}

}  // namespace

}  // namespace hostcuda

using namespace hostcuda;

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *wanted,
                                       CUmemAllocationGranularity_flags) {
    return without_context([&](Held &) {
        if (!size || !usual(wanted)) return cudaErrorInvalidValue;
        *size = GRANULARITY;
        return cudaSuccess;
    });
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
    return without_context([&](Held &) {
        if (!pointer || !bytes || bytes % GRANULARITY || flags || (alignment & (alignment - 1)))
            return cudaErrorInvalidValue;
        Address start = take_addresses(bytes, std::max(alignment, GRANULARITY));
        if (!start) return cudaErrorMemoryAllocation;
        file().reserved[start] = bytes;
        *pointer = start;
        return cudaSuccess;
    });
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    return without_context([&](Held &) {
        auto &reserved = file().reserved;
        auto found = reserved.find(pointer);
        if (found == reserved.end() || found->second != bytes) return cudaErrorInvalidValue;
        auto next = runtime().memory.lower_bound(pointer);
        if (next != runtime().memory.end() && next->first < pointer + bytes)
            return cudaErrorInvalidValue;   // something is mapped there
        reserved.erase(found);
        give_addresses(pointer, bytes);
        return cudaSuccess;
    });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *wanted, unsigned long long flags) {
    return without_context([&](Held &held) {
        if (!handle || !usual(wanted) || !bytes || bytes % GRANULARITY || flags)
            return cudaErrorInvalidValue;
        if (wanted->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return cudaErrorNotSupported;
        Physical *made = nullptr;
        Device &device = runtime().devices[size_t(wanted->location.id)];
        if (cudaError_t error = make(held, device, bytes, &made)) return error;
        *handle = reinterpret_cast<CUmemGenericAllocationHandle>(made);
        return cudaSuccess;
    });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return without_context([&](Held &) {
        Physical *part = part_of(handle);
        if (!part || !part->handles) return cudaErrorInvalidValue;
        part->handles--;
        release_if_unused(part);
        return cudaSuccess;
    });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer) {
    return without_context([&](Held &) {
        Allocation *found = find(pointer);
        if (!handle || !found || found->kind != Kind::mapped) return cudaErrorInvalidValue;
        found->physical->handles++;
        *handle = reinterpret_cast<CUmemGenericAllocationHandle>(found->physical);
        return cudaSuccess;
    });
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return without_context([&](Held &) {
        Physical *part = part_of(handle);
        Runtime &all = runtime();
        if (!part || !part->handles || flags || offset || bytes != part->bytes
            || pointer % GRANULARITY || !is_reserved(pointer, bytes))
            return cudaErrorInvalidValue;
        auto next = all.memory.lower_bound(pointer);
        if (find(pointer) || (next != all.memory.end() && next->first < pointer + bytes))
            return cudaErrorInvalidValue;
        void *page = mmap(reinterpret_cast<void *>(pointer), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                          file().descriptor, part->offset);
        if (page == MAP_FAILED) return cudaErrorMemoryAllocation;
        Allocation made;
        made.base = pointer;
        made.bytes = bytes;
        made.kind = Kind::mapped;
        made.device = part->device;
        made.physical = part;
        made.id = ++all.next_allocation;
        part->mappings++;
        all.memory[pointer] = made;
        return cudaSuccess;
    });
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *wanted,
                        size_t count) {
    return without_context([&](Held &) {
        auto found = mappings(pointer, bytes);
        if (found.empty() || !wanted || !count) return cudaErrorInvalidValue;
        int access = PROT_NONE;
        for (size_t place = 0; place < count; place++) {
            if (wanted[place].location.type != CU_MEM_LOCATION_TYPE_DEVICE
                || size_t(wanted[place].location.id) >= runtime().devices.size())
                return cudaErrorInvalidValue;
            access |= wanted[place].flags & CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : 0;
            if (wanted[place].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                access |= PROT_READ | PROT_WRITE;
        }
        for (Allocation *each : found) {
            if (mprotect(reinterpret_cast<void *>(each->base), each->bytes, access))
                return cudaErrorMemoryAllocation;
            each->flags = unsigned(access);
            each->there = access & PROT_READ;
        }
        return cudaSuccess;
    });
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                        CUdeviceptr pointer) {
    return without_context([&](Held &) {
        Allocation *found = find(pointer);
        if (!flags || !location || !found || found->kind != Kind::mapped)
            return cudaErrorInvalidValue;
        *flags = found->flags & PROT_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : found->flags & PROT_READ ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                            : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        return cudaSuccess;
    });
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    return without_context([&](Held &) {
        auto found = mappings(pointer, bytes);
        if (found.empty()) return cudaErrorInvalidValue;
        for (Allocation *each : found) {
            Physical *part = each->physical;
            if (!close_off(each->base, each->bytes)) return cudaErrorMemoryAllocation;
            runtime().memory.erase(each->base);
            part->mappings--;
            release_if_unused(part);
        }
        return cudaSuccess;
    });
}

}
