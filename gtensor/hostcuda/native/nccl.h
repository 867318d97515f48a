// The stand-in for NCCL: what its parts share.
//
// A communicator is memory that the processes of its ranks share: per rank what it does and where
// it stands, and a slot for its contribution to one collective. A collective is two pieces of work
// on its stream: `post` copies the contribution into the rank's slot, `finish` reads all slots. Both
// wait in their turn until the other ranks are far enough; other streams go on meanwhile.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace nccl {

// nccl.h
enum Result { SUCCESS, UNHANDLED_CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT,
              INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS, RESULTS };
enum Type { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16,
            FLOAT8E4M3, FLOAT8E5M2, TYPES };
enum Op { SUM, PROD, MAX, MIN, AVG, OPS };
struct UniqueId { char bytes[128]; };

enum What { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER };

// A collective as all ranks have to call it.
struct Call {
    int what = 0, type = 0, op = 0, root = 0;
    size_t count = 0;                // elements, as in the function's argument
    bool operator==(const Call &) const = default;
};

size_t size_of(int type);
std::string described(const Call &);

// `to` becomes the `ranks` arrays at `from` + rank * `apart`, reduced in the order of the ranks in
// their own type; an average of floats multiplies first, as NCCL's does.
bool reduce(void *to, const char *from, size_t apart, int ranks, size_t count, int type, int op);

// ---- nccl_shared.cpp

constexpr int MOST = 64;             // ranks

struct Rank {
    std::atomic<uint32_t> joined, left;
    int process, device;
    std::atomic<uint64_t> posted;    // collectives to which it has contributed
    std::atomic<uint64_t> finished;  // of which it has its result
    Call call;                       // the last one posted
    std::atomic<uint64_t> splits;    // in how many splits it takes part
    int color, key;
    std::atomic<uint64_t> named;     // in how many its group's first rank has named the new one
    UniqueId id;
};

struct Shared {
    std::atomic<uint32_t> changes;   // a futex: all ranks wait for changes of anything here
    std::atomic<uint32_t> ranks;
    uint64_t token;
    Rank rank[MOST];
    void change();                   // tell all ranks
    void wait(uint32_t seen, int milliseconds);   // until `changes` is not `seen` any more
};

Result make_id(UniqueId &);

// The shared memory of the communicator with this id, which `ranks` ranks use.
struct Segment {
    Shared *shared = nullptr;
    char *slots = nullptr;
    size_t mapped = 0;
    Result open(const UniqueId &, int ranks);
    char *slot(int rank) const;
    ~Segment();
};
constexpr size_t SLOT = size_t(1) << 32;   // bytes of addresses, not of memory

}  // namespace nccl
