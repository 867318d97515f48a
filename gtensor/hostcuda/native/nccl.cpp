// NCCL's functions, for ranks in processes of one machine (or in one process).
//
// Its rules are those of NCCL 2.27 with NCCL_CHECK_POINTERS=1 ("Environment Variables"), which
// looks where buffers lie. Collectives of one communicator run in the order of the calls, whatever
// their streams; streams of a capture are ordered within it. What NCCL leaves undefined (ranks that
// call different collectives) is an error that stays, with a sentence.
#include <cuda_runtime_api.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "hostcuda.h"
#include "nccl.h"

using namespace nccl;

// ncclConfig_t of NCCL 2.27: the attributes at its front, which are those that are read here.
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

namespace {

constexpr int VERSION = 22707;
constexpr unsigned CONFIG_MAGIC = 0xcafebeef;   // NCCL_API_MAGIC
constexpr int UNDEFINED = std::numeric_limits<int>::min();   // NCCL_CONFIG_UNDEF_INT
constexpr int NO_COLOR = -1;         // NCCL_SPLIT_NOCOLOR
constexpr int SECONDS = 120;         // that ranks wait for each other where no stream does

}  // namespace

struct ncclComm {
    Segment segment;
    int rank = 0, ranks = 0, device = 0;
    std::atomic<int> error{SUCCESS};      // ncclCommGetAsyncError
    std::atomic<bool> aborted{false}, ended{false};
    std::atomic<long> pending{0};    // collectives that are queued, without those in graphs
    std::mutex order;                // of calls
    cudaEvent_t last = nullptr;      // behind the last collective
    cudaEvent_t captured = nullptr;  // the same within the last capture
    unsigned long long capture = 0;  // which that was
    std::vector<int> peers;          // descriptors of the other ranks' processes
    std::thread watcher;

    Shared &shared() { return *segment.shared; }
    Rank &mine() { return shared().rank[rank]; }
    ~ncclComm();
};

using CommPointer = std::shared_ptr<ncclComm>;

namespace {

std::mutex lock;                     // of what follows
auto &comms = *new std::map<ncclComm *, CommPointer>;   // never destroyed: exit() ends no thread

CommPointer find(ncclComm *handle) {
    std::lock_guard held(lock);
    auto found = comms.find(handle);
    return found == comms.end() ? nullptr : found->second;
}

// ---- waiting, outside of streams

// Waits until something holds for all ranks; false after SECONDS.
template <class Holds> bool wait_for(Shared &shared, Holds holds) {
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(SECONDS);
    for (;;) {
        uint32_t seen = shared.changes;
        if (holds()) return true;
        if (std::chrono::steady_clock::now() > end) return false;
        shared.wait(seen, 100);
    }
}

template <class Holds> bool all_of(ncclComm &comm, Holds holds) {
    for (int rank = 0; rank < comm.ranks; rank++)
        if (!holds(comm.shared().rank[rank])) return false;
    return true;
}

// ---- the thread of a communicator

// Whether no other rank waits for this one.
int is_level(void *argument) {
    auto &comm = *static_cast<ncclComm *>(argument);
    uint64_t mine = comm.mine().finished;
    return comm.aborted || all_of(comm, [&](Rank &rank) { return rank.posted <= mine; });
}

void look_at_peers(ncclComm &comm) {
    for (int rank = 0; rank < comm.ranks; rank++) {
        pollfd polled{comm.peers[size_t(rank)], POLLIN, 0};
        if (polled.fd >= 0 && poll(&polled, 1, 0) == 1 && !comm.shared().rank[rank].left) {
            int none = SUCCESS;
            comm.error.compare_exchange_strong(none, REMOTE_ERROR);
        }
    }
}

// As a GPU does by itself, it runs what other ranks wait for, and wakes threads that wait for them.
void watch(ncclComm &comm) {
    Shared &shared = comm.shared();
    uint32_t seen = shared.changes - 1;
    while (!comm.ended) {
        uint32_t now = shared.changes;
        if (now != seen || !is_level(&comm)) hostcuda_drive(is_level, &comm);
        look_at_peers(comm);
        seen = now;
        if (shared.changes == now) shared.wait(now, is_level(&comm) ? 100 : 1);
    }
}

void start(const CommPointer &comm) {
    for (int rank = 0; rank < comm->ranks; rank++) {
        int process = comm->shared().rank[rank].process;
        comm->peers.push_back(process == getpid() ? -1 : int(syscall(SYS_pidfd_open, process, 0)));
    }
    if (comm->ranks > 1) comm->watcher = std::thread([it = comm.get()] { watch(*it); });
}

void stop(ncclComm &comm) {
    comm.ended = true;
    comm.shared().change();
    if (comm.watcher.joinable()) comm.watcher.join();
}

// ---- one collective

struct Collective {
    CommPointer comm;
    Call call;
    const char *send;
    char *receive;
    size_t in = 0, out = 0;          // bytes read of `send` and written to `receive`
    bool counted = false;            // in `pending`
    uint64_t number = 0;             // among the communicator's, once posted
    ~Collective() {
        if (counted) comm->pending--;
    }
};

Collective &collective(void *argument) {
    return **static_cast<std::shared_ptr<Collective> *>(argument);
}

// The rank's slot is free once all ranks have read it.
int may_post(void *argument) {
    ncclComm &comm = *collective(argument).comm;
    uint64_t posted = comm.mine().posted;
    return comm.aborted || all_of(comm, [&](Rank &rank) { return rank.finished >= posted; });
}

void post(void *argument) {
    Collective &it = collective(argument);
    ncclComm &comm = *it.comm;
    if (comm.aborted) return;
    if (it.in && hostcuda_reach(it.send, it.in, "NCCL")) return;
    memcpy(comm.segment.slot(comm.rank), it.send, it.in);
    comm.mine().call = it.call;
    it.number = ++comm.mine().posted;
    comm.shared().change();
}

int may_finish(void *argument) {
    Collective &it = collective(argument);
    return it.comm->aborted
           || all_of(*it.comm, [&](Rank &rank) { return rank.posted >= it.number; });
}

bool agree(ncclComm &comm, const Call &call) {
    for (int rank = 0; rank < comm.ranks; rank++) {
        const Call &other = comm.shared().rank[rank].call;
        if (other == call) continue;
        std::string text = "NCCL: rank " + std::to_string(comm.rank) + " calls " + described(call)
                           + " and rank " + std::to_string(rank) + " " + described(other)
                           + ", which is undefined";
        hostcuda_fail(cudaErrorLaunchFailure, text.c_str());
        comm.error = INVALID_USAGE;
        return false;
    }
    return true;
}

void write(Collective &it) {
    ncclComm &comm = *it.comm;
    const Call &call = it.call;
    const char *first = comm.segment.slot(0);
    size_t part = call.count * size_of(call.type);
    auto reduced = [&](size_t offset) {
        nccl::reduce(it.receive, first + offset, SLOT, comm.ranks, call.count, call.type, call.op);
    };
    switch (call.what) {
    case REDUCE: case ALL_REDUCE: return reduced(0);
    case REDUCE_SCATTER: return reduced(size_t(comm.rank) * part);
    case BROADCAST: memcpy(it.receive, comm.segment.slot(call.root), part); return;
    case ALL_GATHER:
        for (int rank = 0; rank < comm.ranks; rank++)
            memcpy(it.receive + size_t(rank) * part, comm.segment.slot(rank), part);
    }
}

void finish(void *argument) {
    Collective &it = collective(argument);
    ncclComm &comm = *it.comm;
    if (comm.aborted) return;
    if (agree(comm, it.call) && it.out && !hostcuda_reach(it.receive, it.out, "NCCL")) write(it);
    comm.mine().finished = it.number;
    comm.shared().change();
}

void drop(void *argument) { delete static_cast<std::shared_ptr<Collective> *>(argument); }

// ---- calls

struct Group {
    int depth = 0;
    Result error = SUCCESS;
    std::vector<std::pair<std::shared_ptr<Collective>, cudaStream_t>> collectives;
    std::vector<CommPointer> joining;
};
thread_local Group group;

// The device of a communicator is current as long as this lives.
struct OnDevice {
    int before = 0;
    explicit OnDevice(int device) {
        cudaGetDevice(&before);
        cudaSetDevice(device);
    }
    ~OnDevice() { cudaSetDevice(before); }
};

const char *name_of(const Call &call) {
    static const char *const names[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast",
                                        "ncclReduceScatter", "ncclAllGather"};
    return names[call.what];
}

// The stream runs behind the communicator's collectives so far; `event` is what has to be recorded
// behind the next one.
bool follow(ncclComm &comm, cudaStream_t stream, cudaEvent_t *&event, bool &captured) {
    cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    if (cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr))
        return false;
    captured = status != cudaStreamCaptureStatusNone;
    event = captured ? &comm.captured : &comm.last;
    bool fresh = captured && comm.capture != id;
    if (captured) comm.capture = id;
    if (!*event) return !cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    return fresh || !cudaStreamWaitEvent(stream, *event, 0);
}

Result launch(const std::shared_ptr<Collective> &it, cudaStream_t stream) {
    ncclComm &comm = *it->comm;
    OnDevice on(comm.device);
    std::lock_guard held(comm.order);
    cudaEvent_t *event;
    bool captured;
    if (!follow(comm, stream, event, captured)) return UNHANDLED_CUDA_ERROR;
    it->counted = !captured && !hostcuda_is_dry();
    if (it->counted) comm.pending++;
    auto queue = [&](auto ready, auto run, const char *name) {
        return !hostcuda_enqueue_when(stream, ready, run, drop, new std::shared_ptr(it),
                                      HOSTCUDA_LIBRARY, name);
    };
    return queue(may_post, post, name_of(it->call)) && queue(may_finish, finish, "")
                   && !cudaEventRecord(*event, stream)
        ? SUCCESS : UNHANDLED_CUDA_ERROR;
}

// CudaPtrCheck of NCCL's argcheck.cc: memory of the communicator's device, or of the host if it
// is pinned.
bool is_buffer(const void *pointer, const ncclComm &comm) {
    cudaPointerAttributes found;
    if (cudaPointerGetAttributes(&found, pointer) || !found.devicePointer) return false;
    return found.type != cudaMemoryTypeDevice || found.device == comm.device;
}

Result checked(Collective &it, cudaStream_t stream) {
    if (!it.comm) return INVALID_ARGUMENT;
    ncclComm &comm = *it.comm;
    if (comm.error) return Result(comm.error.load());
    Call &call = it.call;
    if (call.root < 0 || call.root >= comm.ranks) return INVALID_ARGUMENT;
    if (call.type < 0 || call.type >= TYPES || call.op < 0 || call.op >= OPS)
        return INVALID_ARGUMENT;
    bool root = comm.rank == call.root, reduces = call.what != BROADCAST && call.what != ALL_GATHER;
    bool sends = call.what != BROADCAST || root, receives = call.what != REDUCE || root;
    if (sends && !is_buffer(it.send, comm)) return INVALID_ARGUMENT;
    if (receives && !is_buffer(it.receive, comm)) return INVALID_ARGUMENT;
    if (reduces && call.type >= FLOAT8E4M3) {   // it needs a GPU that has them
        hostcuda_missing("NCCL's reductions of float8");
        return INVALID_ARGUMENT;
    }
    int device = 0;
    OnDevice on(comm.device);
    if (cudaStreamGetDevice(stream, &device) || device != comm.device) return UNHANDLED_CUDA_ERROR;
    size_t part = call.count * size_of(call.type), all = part * size_t(comm.ranks);
    it.in = !sends ? 0 : call.what == REDUCE_SCATTER ? all : part;
    it.out = !receives ? 0 : call.what == ALL_GATHER ? all : part;
    return it.in > SLOT ? INTERNAL_ERROR : SUCCESS;
}

// An error within a group is the group's, too.
Result answer(Result result) {
    if (group.depth && result && !group.error) group.error = result;
    return result;
}

Result call(What what, const void *send, void *receive, size_t count, int type, int op, int root,
            ncclComm *comm, cudaStream_t stream) {
    auto it = std::make_shared<Collective>();
    it->comm = find(comm);
    it->call = {what, type, op, root, count};
    it->send = static_cast<const char *>(send);
    it->receive = static_cast<char *>(receive);
    if (Result refused = checked(*it, stream)) return answer(refused);
    if (!count) return SUCCESS;   // taskAppend of NCCL's enqueue.cc: nothing is launched
    if (!group.depth) return launch(it, stream);
    group.collectives.emplace_back(it, stream);
    return SUCCESS;
}

// ---- communicators

// Takes the rank's place; `finish_joining` waits for the others.
Result join(CommPointer &made, int ranks, const UniqueId &id, int rank) {
    made = std::make_shared<ncclComm>();
    if (ranks < 1 || ranks > MOST || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    if (cudaGetDevice(&made->device)) return UNHANDLED_CUDA_ERROR;
    made->rank = rank;
    made->ranks = ranks;
    if (Result failed = made->segment.open(id, ranks)) return failed;
    Rank &mine = made->mine();
    uint32_t free = 0;
    if (!mine.joined.compare_exchange_strong(free, 1)) return INTERNAL_ERROR;   // twice this rank
    mine.process = getpid();
    mine.device = made->device;
    mine.joined = 2;
    made->shared().change();
    return SUCCESS;
}

Result finish_joining(const CommPointer &comm) {
    if (!wait_for(comm->shared(), [&] {
            return all_of(*comm, [](Rank &rank) { return rank.joined == 2; });
        }))
        return SYSTEM_ERROR;
    for (int rank = 0; rank < comm->ranks; rank++) {   // "Duplicate GPU detected", NCCL's init.cc
        const Rank &other = comm->shared().rank[rank], &mine = comm->mine();
        if (rank != comm->rank && other.process == mine.process && other.device == mine.device)
            return INVALID_USAGE;
    }
    start(comm);
    return SUCCESS;
}

ncclComm *keep(const CommPointer &comm) {
    std::lock_guard held(lock);
    comms[comm.get()] = comm;
    return comm.get();
}

Result make(ncclComm **to, int ranks, const UniqueId &id, int rank) {
    if (!to) return INVALID_ARGUMENT;
    CommPointer comm;
    if (Result failed = join(comm, ranks, id, rank)) return failed;
    if (group.depth) {
        group.joining.push_back(comm);
    } else if (Result failed = finish_joining(comm)) {
        return failed;
    }
    *to = keep(comm);
    return SUCCESS;
}

void leave(ncclComm *handle) {
    CommPointer comm = find(handle);
    std::unique_lock held(lock);
    comms.erase(handle);
    held.unlock();
    comm->mine().left = 1;
    stop(*comm);
}

int has_ended(void *argument) { return static_cast<ncclComm *>(argument)->pending == 0; }

Result split(ncclComm &comm, int color, int key, ncclComm **to) {
    Rank &mine = comm.mine();
    mine.color = color;
    mine.key = key;
    uint64_t number = ++mine.splits;
    comm.shared().change();
    if (!wait_for(comm.shared(), [&] {
            return comm.aborted || all_of(comm, [&](Rank &rank) { return rank.splits >= number; });
        }))
        return SYSTEM_ERROR;
    std::vector<std::pair<int, int>> members;   // key, rank
    for (int rank = 0; rank < comm.ranks; rank++)
        if (comm.shared().rank[rank].color == color)
            members.emplace_back(comm.shared().rank[rank].key, rank);
    std::sort(members.begin(), members.end());
    bool none = color == NO_COLOR, first = !none && members[0].second == comm.rank;
    Result failed = first ? make_id(mine.id) : SUCCESS;
    mine.named = number;
    comm.shared().change();
    // Nobody writes its color for the next split before all have read them.
    if (!wait_for(comm.shared(), [&] {
            return comm.aborted || all_of(comm, [&](Rank &rank) { return rank.named >= number; });
        }))
        return SYSTEM_ERROR;
    *to = nullptr;
    if (comm.aborted) return INTERNAL_ERROR;
    if (failed || none) return failed;
    size_t place = 0;
    while (members[place].second != comm.rank) place++;
    OnDevice on(comm.device);
    return make(to, int(members.size()), comm.shared().rank[members[0].second].id, int(place));
}

Result end_group() {
    Group ended = std::exchange(group, {});
    Result result = ended.error;
    for (const CommPointer &comm : ended.joining)
        if (!result) result = finish_joining(comm);
    for (const auto &[it, stream] : ended.collectives)
        if (!result) result = launch(it, stream);
    return result;
}

template <class Body> Result with_comm(ncclComm *handle, Body body) {
    CommPointer comm = find(handle);
    return comm ? body(*comm) : INVALID_ARGUMENT;
}

Result read(ncclComm *handle, int *to, int ncclComm::*value) {
    return with_comm(handle, [&](ncclComm &comm) {
        if (!to) return INVALID_ARGUMENT;
        *to = comm.*value;
        return SUCCESS;
    });
}

Result missing(const char *name) {
    hostcuda_missing(name);
    return answer(INVALID_USAGE);
}

}  // namespace

ncclComm::~ncclComm() {
    for (int peer : peers)
        if (peer >= 0) close(peer);
    if (last) cudaEventDestroy(last);
    if (captured) cudaEventDestroy(captured);
}

extern "C" {

const char *ncclGetErrorString(Result result) {
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return result >= 0 && result < RESULTS ? texts[result] : "unknown result code";
}

Result ncclGetVersion(int *version) {
    if (!version) return INVALID_ARGUMENT;
    *version = VERSION;
    return SUCCESS;
}

Result ncclGetUniqueId(UniqueId *id) { return id ? make_id(*id) : INVALID_ARGUMENT; }

Result ncclCommInitRankConfig(ncclComm **comm, int ranks, UniqueId id, int rank, Config *config) {
    if (config && (config->magic != CONFIG_MAGIC || config->size < sizeof(Config)))
        return answer(INVALID_ARGUMENT);
    if (config && config->blocking != UNDEFINED && config->blocking != 1)
        return missing("ncclCommInitRankConfig without blocking");
    return answer(make(comm, ranks, id, rank));
}

Result ncclCommInitRank(ncclComm **comm, int ranks, UniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

Result ncclCommInitAll(ncclComm **made, int count, const int *devices) {
    int there = 0;
    if (!made || count < 1 || cudaGetDeviceCount(&there)) return INVALID_ARGUMENT;
    UniqueId id;
    if (Result failed = make_id(id)) return failed;
    group.depth++;
    for (int rank = 0; rank < count; rank++) {
        int device = devices ? devices[rank] : rank;
        OnDevice on(device);
        answer(device < 0 || device >= there ? UNHANDLED_CUDA_ERROR
                                             : make(made + rank, count, id, rank));
    }
    return --group.depth ? SUCCESS : end_group();
}

Result ncclCommSplit(ncclComm *handle, int color, int key, ncclComm **to, Config *) {
    return answer(with_comm(handle, [&](ncclComm &comm) {
        if (!to || color < NO_COLOR) return INVALID_ARGUMENT;
        if (group.depth) return missing("ncclCommSplit within a group");
        return split(comm, color, key, to);
    }));
}

// Waits for what is queued: ncclCommDestroy of NCCL's init.cc.
Result ncclCommDestroy(ncclComm *handle) {
    if (!handle) return SUCCESS;
    return with_comm(handle, [&](ncclComm &comm) {
        while (!has_ended(&comm)) {
            uint32_t seen = comm.shared().changes;
            hostcuda_drive(has_ended, &comm);
            if (!has_ended(&comm)) comm.shared().wait(seen, 10);
        }
        leave(handle);
        return SUCCESS;
    });
}

Result ncclCommAbort(ncclComm *handle) {
    if (!handle) return SUCCESS;
    return with_comm(handle, [&](ncclComm &comm) {
        comm.aborted = true;
        hostcuda_drive(has_ended, &comm);
        leave(handle);
        return SUCCESS;
    });
}

Result ncclCommGetAsyncError(ncclComm *handle, Result *error) {
    return with_comm(handle, [&](ncclComm &comm) {
        if (!error) return INVALID_ARGUMENT;
        *error = Result(comm.error.load());
        return SUCCESS;
    });
}

Result ncclCommCount(ncclComm *handle, int *to) { return read(handle, to, &ncclComm::ranks); }
Result ncclCommCuDevice(ncclComm *handle, int *to) { return read(handle, to, &ncclComm::device); }
Result ncclCommUserRank(ncclComm *handle, int *to) { return read(handle, to, &ncclComm::rank); }

Result ncclGroupStart() {
    group.depth++;
    return SUCCESS;
}

Result ncclGroupEnd() {
    if (!group.depth) return INVALID_USAGE;
    return --group.depth ? SUCCESS : end_group();
}

Result ncclAllReduce(const void *send, void *receive, size_t count, int type, int op, ncclComm *comm,
                     cudaStream_t stream) {
    return call(ALL_REDUCE, send, receive, count, type, op, 0, comm, stream);
}

Result ncclReduce(const void *send, void *receive, size_t count, int type, int op, int root,
                  ncclComm *comm, cudaStream_t stream) {
    return call(REDUCE, send, receive, count, type, op, root, comm, stream);
}

Result ncclBroadcast(const void *send, void *receive, size_t count, int type, int root,
                     ncclComm *comm, cudaStream_t stream) {
    return call(BROADCAST, send, receive, count, type, SUM, root, comm, stream);
}

Result ncclBcast(void *both, size_t count, int type, int root, ncclComm *comm, cudaStream_t stream) {
    return ncclBroadcast(both, both, count, type, root, comm, stream);
}

Result ncclReduceScatter(const void *send, void *receive, size_t count, int type, int op,
                         ncclComm *comm, cudaStream_t stream) {
    return call(REDUCE_SCATTER, send, receive, count, type, op, 0, comm, stream);
}

Result ncclAllGather(const void *send, void *receive, size_t count, int type, ncclComm *comm,
                     cudaStream_t stream) {
    return call(ALL_GATHER, send, receive, count, type, SUM, 0, comm, stream);
}

Result ncclSend(const void *, size_t, int, int, ncclComm *, cudaStream_t) {
    return missing("ncclSend");
}

Result ncclRecv(void *, size_t, int, int, ncclComm *, cudaStream_t) { return missing("ncclRecv"); }

// The process ends: no thread of this library runs any more.
void hostcuda_nccl_end() {
    std::map<ncclComm *, CommPointer> left;
    {
        std::lock_guard held(lock);
        left = comms;
    }
    for (auto &[handle, comm] : left) stop(*comm);
}

}
