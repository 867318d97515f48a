// The queues: which work may run, which thread runs it, and how a thread waits for it.
#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "state.h"

namespace hostcuda {

namespace {

// While Python exits, a daemon thread that acquires the GIL is ended by unwinding its stack. Unwinding
// through functions of the API is not allowed, so such a thread sleeps until the process ends.
[[noreturn]] void sleep_for_ever() {
    for (;;) pause();
}

// The GIL, if this process runs Python. A waiting thread releases it, because the work that it waits
// for may be a Python function.
struct Python {
    int (*holds)() = nullptr;
    void *(*release)() = nullptr;
    void (*take)(void *) = nullptr;
    int (*alive)() = nullptr;
    Python() {
        holds = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
        release = reinterpret_cast<void *(*)()>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
        take = reinterpret_cast<void (*)(void *)>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
        alive = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
    }
    bool held() const { return holds && release && take && alive && alive() && holds(); }
};

void wait_for_change(Held &held) {
    static const Python python;
    void *mine = python.held() ? python.release() : nullptr;
    runtime().changed.wait(held);
    if (mine) {
        held.unlock();
        try {
            python.take(mine);
        } catch (abi::__forced_unwind &) {
            sleep_for_ever();
        }
        held.lock();
    }
}

bool bad(const Device &device) { return device.error != 0; }

thread_local const Device *working;   // on which the work runs that this thread runs

void run(Held &held, Item &item) {
    Runtime &all = runtime();
    WorkPointer work = item.work;
    bool dry = work && all.dry && work->kind != HOSTCUDA_OTHER;
    double took = 0;
    if (work && (dry ? bool(work->dry) : bool(work->run))
        && (work->always || !bad(*item.device))) {
        std::thread::id before = all.runner;
        const Device *outer = std::exchange(working, item.device);
        all.runner = std::this_thread::get_id();
        all.running++;
        held.unlock();
        Outcome outcome;
        double began = seconds();
        try {
            thread().host_function = work->programs;
            if (dry) work->dry();
            else outcome = work->run();
            took = seconds() - began;
        } catch (abi::__forced_unwind &) {   // the others go on; this work is never done
            held.lock();
            all.running--;
            all.runner = before;
            all.changed.notify_all();
            held.unlock();
            sleep_for_ever();
        } catch (const std::bad_alloc &) {
            outcome = {cudaErrorMemoryAllocation, "the system gives this process no more memory"};
        }
        thread().host_function = false;
        working = outer;
        held.lock();
        all.running--;
        all.runner = before;
        if (outcome.error && !item.device->error) {
            item.device->error = outcome.error;
            item.device->sentence = outcome.sentence;
        }
    }
    if (work && work->kind != HOSTCUDA_OTHER) {   // the device's clock: it stands between two works
        item.device->clock += took;
        auto tally = all.tallies.find({work->kind, work->name});
        if (tally != all.tallies.end()) tally->second.seconds += took;
    }
    item.done = true;
    item.finished = item.device->clock;
    item.device->pending--;
    all.pending--;
    for (Item *next : item.dependents)
        if (--next->unmet == 0) all.ready.push_back(next);
    item.dependents.clear();
    item.work.reset();
    if (work) all.afterwards.push_back([work = std::move(work)] {});   // its end may call Python
    item.dependencies.clear();
    ItemPointer last = std::move(item.self);
    all.changed.notify_all();
}

Item *take(size_t place) {
    auto &ready = runtime().ready;
    Item *item = ready[place];
    ready[place] = ready.back();
    ready.pop_back();
    return item;
}

Item *take(Item *item) {
    auto &ready = runtime().ready;
    for (size_t place = 0; place < ready.size(); place++)
        if (ready[place] == item) return take(place);
    return nullptr;
}

// An item that has to run before the goal can, or the goal itself; it may be running.
Item *towards(const ItemPointer &goal) {
    Item *at = goal.get();
    while (at->unmet) {
        std::vector<Item *> open;
        for (const ItemPointer &each : at->dependencies)
            if (!each->done) open.push_back(each.get());
        at = open[random_number() % open.size()];
    }
    return at;
}

// Whether it may run now: what will not run need not wait either.
bool open(const Item &item) {
    const WorkPointer &work = item.work;
    return !work || !work->ready || runtime().dry || bad(*item.device) || work->ready();
}

template <class Wanted> std::vector<size_t> places(Wanted wanted) {
    std::vector<size_t> found;
    for (size_t place = 0; place < runtime().ready.size(); place++)
        if (wanted(*runtime().ready[place])) found.push_back(place);
    return found;
}

// What runs next. Eager: the oldest. Deferred: any that may, or one that the goal waits for.
Item *pick(const ItemPointer *goal) {
    Runtime &all = runtime();
    std::vector<size_t> found = places(open);
    if (found.empty()) return nullptr;
    if (!all.deferred)
        return take(*std::min_element(found.begin(), found.end(), [&](size_t one, size_t other) {
            return all.ready[one]->number < all.ready[other]->number;
        }));
    if (goal && random_number() % 2) {
        Item *item = towards(*goal);
        if (open(*item) && (item = take(item))) return item;
    }
    return take(found[random_number() % found.size()]);
}

void free_when_idle(Held &held) {
    Runtime &all = runtime();
    if (all.running || all.when_idle.empty()) return;
    auto frees = std::move(all.when_idle);
    all.when_idle.clear();
    for (auto &each : frees) each(held);
}

// One step: run an item, or wait until another thread has, or until one is ready if `patient`.
// False where none of these can help.
bool step(Held &held, const ItemPointer *goal, bool patient = true) {
    Runtime &all = runtime();
    if (all.running && all.runner != std::this_thread::get_id()) {
        wait_for_change(held);
        return true;
    }
    Item *item = pick(goal);
    if (!item) {
        if (all.ready.empty() || !patient) return false;
        wait_for_change(held);
        return true;
    }
    run(held, *item);
    free_when_idle(held);
    return true;
}

}  // namespace

Runtime &runtime() {
    static Runtime *all = [] {
        // No other thread holds the lock at the fork: the child has no thread to give it back.
        pthread_atfork([] { runtime().lock.lock(); }, [] { runtime().lock.unlock(); }, [] {
            for (Device &device : runtime().devices)
                if (device.primary) runtime().forked = true;
            runtime().lock.unlock();
        });
        return new Runtime;   // never destroyed: threads may outlive main
    }();
    return *all;
}

double seconds() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

uint64_t random_number() { return runtime().random(); }

bool running_here(Held &) {
    return runtime().running && runtime().runner == std::this_thread::get_id();
}

void count(int kind, const std::string &name, size_t bytes,
           std::shared_ptr<const Launched> launched) {
    if (name.empty()) return;
    Tally &tally = runtime().tallies[{kind, name}];
    if (kind == HOSTCUDA_KERNEL || kind == HOSTCUDA_LIBRARY
        || (kind == HOSTCUDA_COPY && name == "device to device"))
        runtime().launches++;
    tally.count++;
    tally.bytes += bytes;
    if (runtime().watched)
        runtime().noted.push_back({kind, name, bytes, std::move(launched)});
}

std::vector<ItemPointer> before(Stream &stream) {
    std::vector<ItemPointer> found;
    auto add = [&](const ItemPointer &item) {
        if (item && !item->done) found.push_back(item);
    };
    Device &device = *stream.device;
    add(stream.tail);
    if (stream.legacy) {
        for (Stream *other : device.streams)
            if (other->blocking()) add(other->tail);
        for (const auto &[orphan, blocking] : device.orphans)
            if (blocking) add(orphan);
    } else if (stream.blocking()) {
        add(device.legacy.tail);
    }
    return found;
}

ItemPointer enqueue(Held &, Device &device, WorkPointer work,
                    std::vector<ItemPointer> dependencies) {
    Runtime &all = runtime();
    auto item = std::make_shared<Item>();
    item->work = std::move(work);
    item->device = &device;
    item->number = all.next_item++;
    item->self = item;
    for (const ItemPointer &each : dependencies) {
        if (each->done) continue;
        each->dependents.push_back(item.get());
        item->dependencies.push_back(each);
        item->unmet++;
    }
    if (!item->unmet) all.ready.push_back(item.get());
    all.pending++;
    device.pending++;
    if (item->work)
        count(item->work->kind, item->work->name, item->work->bytes, item->work->launched);
    return item;
}

cudaError_t advance(Held &held, Device &device, const ItemPointer &item) {
    Runtime &all = runtime();
    if (running_here(held)) return cudaSuccess;   // it runs after the work that called
    if (!all.deferred) {
        for (ItemPointer goal = item; !goal->done;)
            if (!step(held, &goal, false))   // behind work that waits for another process, or itself
                return all.ready.empty() ? cudaErrorNotPermitted : cudaSuccess;
        return cudaError_t(device.error);
    }
    while (device.pending > all.longest_queue && step(held, nullptr)) {}
    return cudaSuccess;
}

cudaError_t submit(Held &held, Stream &stream, WorkPointer work, bool wait) {
    if (stream.capture) return add_node(held, stream, std::move(work));
    if (cudaError_t refused = refuse_legacy(held, stream)) return refused;
    ItemPointer item = enqueue(held, *stream.device, std::move(work), before(stream));
    stream.tail = item;
    return wait ? wait_for(held, item) : advance(held, *stream.device, item);
}

cudaError_t wait_for(Held &held, const ItemPointer &item) {
    ItemPointer goal = item;
    while (!goal->done)
        if (!step(held, &goal)) return cudaErrorNotPermitted;   // it waits for work that waits for it
    return cudaError_t(goal->device->error);
}

cudaError_t wait_for_all(Held &held, const std::vector<ItemPointer> &items) {
    for (const ItemPointer &item : std::vector<ItemPointer>(items))   // theirs may change meanwhile
        if (item)
            if (cudaError_t error = wait_for(held, item)) return error;
    return cudaSuccess;
}

cudaError_t wait_for_device(Held &held, Device &device) {
    while (device.pending > 0)
        if (!step(held, nullptr)) return cudaErrorNotPermitted;
    trim_pools(held, device);
    return cudaError_t(device.error);
}

void glance(Held &held) {
    Runtime &all = runtime();
    if (!all.deferred) return;
    // A question waits for nothing: neither for work that runs, nor for what the program's own
    // functions wait for.
    for (uint64_t steps = random_number() % 3; steps > 0 && !all.running; steps--) {
        std::vector<size_t> found = places([](const Item &item) {
            return open(item) && (!item.work || !item.work->programs);
        });
        if (found.empty()) return;
        run(held, *take(found[random_number() % found.size()]));
        if (!all.pending) free_when_idle(held);   // they wait for their devices
    }
}

}  // namespace hostcuda

using namespace hostcuda;

namespace {

thread_local Outcome failing;   // set by the work that this thread runs
std::atomic<bool> ended{false};   // the libraries' functions are not there any more

}

extern "C" {

int hostcuda_enqueue(cudaStream_t handle, void (*run)(void *), void (*drop)(void *), void *argument,
                     int kind, const char *name) {
    return hostcuda_enqueue_when(handle, nullptr, run, drop, argument, kind, name);
}

int hostcuda_enqueue_when(cudaStream_t handle, int (*ready)(void *), void (*run)(void *),
                          void (*drop)(void *), void *argument, int kind, const char *name) {
    auto work = std::make_shared<Work>();
    work->kind = hostcuda_kind(kind);
    work->name = name;
    if (ended) return cudaErrorCudartUnloading;
    std::shared_ptr<void> kept(argument, [drop](void *it) {
        try {
            if (drop && !ended) drop(it);
        } catch (abi::__forced_unwind &) {
            sleep_for_ever();
        }
    });
    if (ready) work->ready = [ready, argument] { return ready(argument) != 0; };
    work->run = [run, kept] {
        if (!ended) run(kept.get());
        return std::exchange(failing, {});
    };
    return call([&](Held &held) {
        Stream *stream = resolve(held, handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        return submit(held, *stream, work);   // a copy: its end may call Python, after the lock
    });
}

void hostcuda_drive(int (*enough)(void *), void *argument) {
    call([&](Held &held) {
        Runtime &all = runtime();
        while (!(all.deferred && enough(argument)) && step(held, nullptr, false)) {}
        all.changed.notify_all();
        return cudaSuccess;
    }, false);
}

void hostcuda_end(void) { ended = true; }

void hostcuda_fail(int error, const char *sentence) { failing = {error, sentence}; }

int hostcuda_reach(const void *address, size_t bytes, const char *what) {
    Outcome outcome = reachable(address, bytes, what, working);
    if (outcome.error) failing = outcome;
    return outcome.error;
}

unsigned long long hostcuda_random(void) {
    Held held(runtime().lock);
    return random_number();
}

int hostcuda_is_dry(void) { return runtime().dry; }

}
