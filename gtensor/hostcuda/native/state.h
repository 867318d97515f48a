// What the stand-in for CUDA consists of: devices, streams, events, work and memory.
//
// One lock guards all of it; a `Held` argument proves that the caller holds it. It is never held while
// work runs or Python is called, because a calling thread may hold the GIL. A thread that waits
// releases both.
//
// Work that was queued is an `Item`: a node of one graph of dependencies over all streams. Whatever
// has no unfinished dependency may run; one thread at a time runs items.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hostcuda.h"
#include "kernel_abi.h"

namespace hostcuda {

using Held = std::unique_lock<std::mutex>;
using Address = uintptr_t;

struct Device;
struct Stream;
struct Item;
struct Node;
using ItemPointer = std::shared_ptr<Item>;

// ---- work

struct Outcome {
    int error = 0;
    std::string sentence;
};

// A kernel's launch as a program that watches is told of it.
struct Launched {
    unsigned long long module = 0;
    std::string function;
    unsigned grid[3] = {}, block[3] = {};
    size_t shared = 0;
    int resident = 0;
    std::vector<unsigned> sizes;
    std::string parameters;
};

struct Noted {
    int kind;
    std::string name;
    size_t bytes;
    std::shared_ptr<const Launched> launched;   // none: it is no kernel
};

// Something to run on a device, once or at each launch of a graph.
struct Work {
    hostcuda_kind kind = HOSTCUDA_OTHER;
    std::string name;   // it is counted under this name; "" is not counted
    size_t bytes = 0;
    std::shared_ptr<const Launched> launched;   // of a kernel, while the program watches
    std::function<Outcome()> run;   // empty: a point in a stream's order
    std::function<bool()> ready;    // in its turn it waits for this; empty: it need not
    std::function<void()> dry;      // takes its place in dry mode; empty: nothing does
    bool programs = false;          // the program's own function: it may wait for the program
    bool always = false;            // it runs after an error that stays, too
};
using WorkPointer = std::shared_ptr<const Work>;

// Work that waits in the queues, or has run.
struct Item {
    WorkPointer work;
    Device *device = nullptr;
    unsigned long long number = 0;   // in the order of enqueueing
    bool done = false;
    double finished = 0;             // seconds of the device's clock, once done
    size_t unmet = 0;                // dependencies that are not done
    std::vector<ItemPointer> dependencies;
    std::vector<Item *> dependents;
    ItemPointer self;                // keeps it while it is pending
};

// ---- capture and graphs

struct Node {
    size_t index = 0;
    WorkPointer work;
    std::vector<Node *> dependencies;
};

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
};

struct Capture {
    std::unique_ptr<Graph> graph;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    Stream *origin = nullptr;
    unsigned long long id = 0;
    bool broken = false;
    bool ended = false;              // no stream takes part any more, and none may
    std::set<Stream *> streams;      // all that take part
};

using Frontier = std::set<Node *>;   // the next node of a stream depends on these

// ---- streams, events, devices

struct Stream {
    Device *device = nullptr;
    unsigned long long id = 0;
    unsigned flags = 0;
    int priority = 0;
    bool legacy = false;
    ItemPointer tail;                // the last item
    std::shared_ptr<Capture> capture;
    Frontier frontier;
    bool blocking() const { return !legacy && !(flags & cudaStreamNonBlocking); }
};

struct Event {
    Device *device = nullptr;
    unsigned flags = 0;
    ItemPointer last;                // done when this is; none: never recorded
    std::shared_ptr<Capture> capture;   // it was last recorded within this one
    Frontier frontier;
};

struct Pool {
    Device *device = nullptr;
    size_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
    uint64_t threshold = 0;
    std::map<int, int> settings;     // the attributes that only have to be remembered
    bool doomed = false;             // destroyed while in use: it goes with its last allocation
};

struct Device {
    int index = 0;
    size_t memory = 0;               // bytes
    size_t allocated = 0;
    size_t pending = 0;              // items
    double clock = 0;                // seconds that it has worked
    std::map<int, int> attributes;   // cudaDeviceAttr -> value
    std::string name;
    Stream legacy;
    std::set<Stream *> streams;      // those made by the program, and the threads' own
    std::vector<std::pair<ItemPointer, bool>> orphans;   // last items of streams that are gone,
                                                         // and whether these were blocking
    Pool default_pool;
    Pool *pool = nullptr;
    std::map<int, size_t> limits;
    std::set<int> peers;
    int error = 0;                   // one that stays until the device is reset
    std::string sentence;            // what it was
    bool primary = false;
};

enum class Kind { device, managed, host, registered, pooled, mapped, global };

struct Physical;

struct Allocation {
    Address base = 0;
    size_t bytes = 0;
    Address span = 0;                // the reserved addresses, guard pages included
    size_t span_bytes = 0;
    Kind kind = Kind::device;
    Device *device = nullptr;
    Pool *pool = nullptr;
    Physical *physical = nullptr;    // what is mapped here
    unsigned flags = 0;
    unsigned long long id = 0;
    bool freed = false;              // a free was called, and has not run
    bool there = false;              // backed by memory, and may be touched
};

struct Tally {
    unsigned long long count = 0, bytes = 0;
    double seconds = 0;              // of the device's clock
};

struct Runtime {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Device> devices;
    bool deferred = false, dry = false;
    bool forked = false;             // this process is the child of one that used CUDA
    size_t longest_queue = 1024;     // of a device; then the oldest work runs
    std::mt19937_64 random;
    // the queues
    std::vector<Item *> ready;
    unsigned long long next_item = 0, next_stream = 1, next_capture = 0, next_allocation = 0;
    size_t pending = 0;
    unsigned running = 0;            // depth: work may call CUDA functions in its turn
    std::thread::id runner;
    std::vector<std::function<void()>> afterwards;   // called without the lock
    std::vector<std::function<void(Held &)>> when_idle;   // frees that came from within work
    // what handles mean
    std::unordered_set<Stream *> streams;
    std::unordered_set<Event *> events;
    std::unordered_set<Pool *> pools;
    std::set<Capture *> captures;
    std::map<Address, Allocation> memory;
    std::map<std::pair<int, std::string>, Tally> tallies;   // kind, name
    std::atomic<unsigned long long> launches{0};   // since the start
    std::map<std::string, unsigned long long> missing;
    bool watched = false;            // what is counted is noted, too
    std::vector<Noted> noted;
    // what others do for us
    decltype(&hostcuda_run) run_kernel = nullptr;
};

Runtime &runtime();

// The state of one thread.
struct Thread {
    Device *context = nullptr;       // the driver's current context
    int device = 0;
    cudaError_t last_error = cudaSuccess;
    bool host_function = false;      // it runs one of the program's
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::map<Device *, Stream *> streams;   // the per-thread default streams
    ~Thread();
};
Thread &thread();

// ---- queue.cpp

void count(int kind, const std::string &name, size_t bytes = 0,
           std::shared_ptr<const Launched> launched = nullptr);
uint64_t random_number();
bool running_here(Held &);           // called from within work
cudaError_t submit(Held &, Stream &, WorkPointer, bool wait = false);
ItemPointer enqueue(Held &, Device &, WorkPointer, std::vector<ItemPointer> dependencies);
cudaError_t advance(Held &, Device &, const ItemPointer &);   // after enqueueing
std::vector<ItemPointer> before(Stream &);   // what the stream's next item has to wait for
cudaError_t wait_for(Held &, const ItemPointer &);
cudaError_t wait_for_all(Held &, const std::vector<ItemPointer> &);
cudaError_t wait_for_device(Held &, Device &);
void glance(Held &);                 // after a query: deferred work may run
double seconds();

// ---- devices.cpp

Device *device_at(int);              // nullptr: no such device
Device &current(Held &);             // the calling thread's device; makes its context current
const char *error_name(int);
const char *driver_error_name(int);
const char *error_text(int);

// ---- streams.cpp

Stream *resolve(Held &, cudaStream_t);   // nullptr: no such stream
cudaError_t record(Held &, Event &, Stream &);
cudaError_t follow(Held &, Stream &, Event &);
cudaError_t record_device(Held &, Event &, Device &);   // behind all work of the device
Event *event_of(cudaEvent_t);        // nullptr: no such event
void retire(Held &, Stream &);       // it is gone, its work is not

// ---- graphs.cpp

cudaError_t add_node(Held &, Stream &, WorkPointer);
cudaError_t refuse_unsafe(Held &);   // a call that no capture allows
cudaError_t refuse_capturing(Held &, Stream &);   // a call on a stream that is captured
cudaError_t refuse_legacy(Held &, Stream &);   // work on the legacy stream during a capture
void break_capture(Capture &);

// Ends a pointer after the lock: the end of work may call Python, which waits for Python's lock.
template <class Pointer> void drop_later(Pointer &pointer) {
    if (!pointer) return;
    runtime().afterwards.push_back([last = std::shared_ptr<const void>(std::move(pointer))] {});
    pointer = nullptr;
}

// ---- memory.cpp

constexpr int PATTERN = 0xFF;        // NaN in every float type, -1 in every integer type

Allocation *find(Address);
Allocation *find(const void *);
Address take_addresses(size_t bytes, size_t alignment);   // 0: there are none
void give_addresses(Address, size_t bytes);
bool whole(const void *, size_t bytes);   // within one allocation, or mapped without a gap
cudaError_t allocate(Held &, Kind, size_t bytes, Device *, Allocation **);
// When work runs; a `reader` is the device that loads and stores there, without one bytes are copied.
Outcome reachable(const void *, size_t bytes, const char *what, const Device *reader = nullptr);
void inspect(Held &, Allocation &);  // what lies around it must be as it was
void inspect(Held &, Device &);
bool commit(Allocation &);           // back the addresses by memory; false: the system has no more
bool close_off(Address, size_t bytes);   // any access faults from now on; false: as `commit`
void forget(Held &, Address base);
void trim_pools(Held &, Device &);

// ---- copies.cpp

cudaError_t copy_bytes(Held &, void *to, const void *from, size_t bytes, cudaMemcpyKind,
                       cudaStream_t, bool wait);
// `width` elements of `size` bytes in each of `height` rows.
cudaError_t fill_elements(Held &, void *, size_t pitch, unsigned value, size_t size, size_t width,
                          size_t height, cudaStream_t, bool wait);

// ---- the frame of every function

// Runs a function of the API under the lock; an error stays the thread's last one.
//
// cudaErrorNotReady "is not considered an error and is therefore not reported by
// cudaPeekAtLastError() or cudaGetLastError()": CUDA C++ Programming Guide, "Error Checking".
// A host function "must not make any CUDA API calls": CUDA Runtime API, cudaLaunchHostFunc and
// cudaStreamAddCallback, which let an implementation answer cudaErrorNotPermitted.
template <class Body> cudaError_t call(Body body, bool sticky = true) noexcept {
    Runtime &all = runtime();
    if (all.forked) return cudaErrorInitializationError;
    if (thread().host_function) return thread().last_error = cudaErrorNotPermitted;
    cudaError_t error;
    std::vector<std::function<void()>> afterwards;
    {
        Held held(all.lock);
        Thread &mine = thread();
        int stuck = sticky ? all.devices[size_t(mine.device)].error : 0;
        try {
            error = stuck ? cudaError_t(stuck) : body(held);
        } catch (const std::bad_alloc &) {
            if (!held.owns_lock()) held.lock();
            error = cudaErrorMemoryAllocation;
        }
        if (error == cudaSuccess && sticky && all.devices[size_t(mine.device)].error
            && !all.devices.empty())
            error = cudaError_t(all.devices[size_t(mine.device)].error);
        if (error != cudaSuccess && error != cudaErrorNotReady) mine.last_error = error;
        if (!all.running || all.runner != std::this_thread::get_id())
            afterwards.swap(all.afterwards);
    }
    for (auto &each : afterwards) each();
    return error;
}

}  // namespace hostcuda
