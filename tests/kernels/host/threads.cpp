// The machine that runs each CUDA thread as an OS thread, for ThreadSanitizer; some blocks run at
// the same time, each in its own copy of the kernels' text, because shared memory is static there.
//
// ThreadSanitizer is told exactly what orders memory: __syncthreads, __syncwarp, fences together
// with atomics (atomics.h), the start and the end of the launch. All else that happens here is
// hidden from it, or the locks of this machine would order what the kernel leaves unordered. In
// particular shuffles and votes order nothing, as in CUDA.
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include <sanitizer/tsan_interface.h>

#include "server.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char *, int);
void AnnotateIgnoreReadsEnd(const char *, int);
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
void AnnotateIgnoreSyncBegin(const char *, int);
void AnnotateIgnoreSyncEnd(const char *, int);
}

thread_local uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace hostcuda {

thread_local bool fenced;
bool turns;

namespace {

const unsigned copies = 2;

struct Launch {
  const hostcuda_kernel *kernels;  // one of each copy
  void *const *parameters;
  unsigned long long schedule;
  std::size_t shared_bytes;

  unsigned threads() const { return blockDim.x * blockDim.y * blockDim.z; }

  // Numbers below `count` in the order of the schedule: 0 first to last, 1 last to first, any other
  // number is the seed of random orders.
  std::vector<unsigned> order(unsigned count, std::mt19937_64 &random) const {
    std::vector<unsigned> numbers(count);
    for (unsigned at = 0; at < count; ++at) numbers[at] = schedule == 1 ? count - 1 - at : at;
    if (schedule > 1) std::shuffle(numbers.begin(), numbers.end(), random);
    return numbers;
  }
};

void be_block(unsigned block) {
  blockIdx.x = block % gridDim.x;
  blockIdx.y = block / gridDim.x % gridDim.y;
  blockIdx.z = block / gridDim.x / gridDim.y;
}

void be_thread(unsigned thread) {
  threadIdx.x = thread % blockDim.x;
  threadIdx.y = thread / blockDim.x % blockDim.y;
  threadIdx.z = thread / blockDim.x / blockDim.y;
}

// While it lives, ThreadSanitizer does not look at this thread.
struct Hidden {
  Hidden() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Hidden() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
};

// Two tokens, taken in turn: who comes to the next barrier early must not order a slow thread that
// still leaves this one.
typedef char Tokens[2];

struct Running {
  Block block;
  std::mutex lock;
  std::vector<std::condition_variable> released;  // of each thread
  std::vector<char> shared;
  Tokens block_tokens = {};
  std::vector<Tokens> warp_tokens;  // of each thread

  Running(unsigned threads, std::size_t shared_bytes)
      : released(threads), shared(shared_bytes, '\xff'), warp_tokens(threads) {
    block.reset(threads);
  }

  // The lock is held.
  void wake() {
    for (unsigned thread : block.released) released[thread].notify_one();
  }
};

thread_local Running *current;
thread_local unsigned self, block_phase, warp_phase;

// Comes to a meeting by `come`, and waits until the block lets this thread go on.
template <typename Come>
void meet(Come come) {
  Hidden hidden;
  std::unique_lock<std::mutex> hold(current->lock);
  come();
  current->wake();
  current->released[self].wait(
      hold, [] { return current->block[self].state == Waiter::running; });
}

void run_thread(const Launch &launch, unsigned copy, unsigned block, unsigned thread,
                Running *running) {
  current = running;
  self = thread;
  be_block(block);
  be_thread(thread);
  launch.kernels[copy].thread(launch.parameters);
  Hidden hidden;
  std::lock_guard<std::mutex> hold(current->lock);
  current->block.end(self);
  current->wake();
}

// An OS thread that runs one CUDA thread of each block of a copy: ThreadSanitizer takes a
// millisecond to start one. Its semaphores order memory as its start and its end would: the blocks
// of one copy run one after the other in any case.
struct Worker {
  const Launch *launch;
  Running *running;
  unsigned copy, block, thread;
  sem_t begin, *ended;

  explicit Worker(sem_t *ended) : ended(ended) {
    sem_init(&begin, 0, 0);
    std::thread([this] {
      for (;;) {
        wait(&begin);
        block_phase = warp_phase = 0;
        run_thread(*launch, copy, block, thread, running);
        sem_post(this->ended);
      }
    }).detach();
  }

  static void wait(sem_t *semaphore) {
    while (sem_wait(semaphore)) {
    }
  }
};

// Of one copy. It stays until the process ends, because its threads do.
struct Workers {
  sem_t ended;
  std::deque<Worker> all;  // none of them moves

  Workers() { sem_init(&ended, 0, 0); }

  void run(const Launch &launch, unsigned copy, unsigned block,
           const std::vector<unsigned> &threads) {
    Running running(launch.threads(), launch.shared_bytes);
    while (all.size() < threads.size()) all.emplace_back(&ended);
    for (std::size_t at = 0; at < threads.size(); ++at) {
      Worker &worker = all[at];
      worker.launch = &launch;
      worker.running = &running;
      worker.copy = copy;
      worker.block = block;
      worker.thread = threads[at];
      sem_post(&worker.begin);
    }
    for (std::size_t at = 0; at < threads.size(); ++at) Worker::wait(&ended);
  }
};

Workers *const workers = new Workers[copies];

void run_blocks(const Launch &launch, unsigned copy, const std::vector<unsigned> &blocks) {
  std::mt19937_64 random(launch.schedule + copy);
  for (std::size_t at = copy; at < blocks.size(); at += copies)
    workers[copy].run(launch, copy, blocks[at], launch.order(launch.threads(), random));
}

}  // namespace

void *dynamic_shared_bytes() { return current->shared.data(); }

void turn() {}

int meet_block(const Site &site, bool vote) {
  char *token = &current->block_tokens[block_phase++ % 2];
  __tsan_release(token);
  meet([&] { current->block.come_to_block(self, site, vote); });
  __tsan_acquire(token);
  return current->block[self].votes;
}

const Lanes &meet_warp(const Site &site, unsigned mask, unsigned long long value, bool fence) {
  if (fence) {
    value = warp_phase++ % 2;  // no __syncwarp hands anything else in
    __tsan_release(&current->warp_tokens[self][value]);
  }
  meet([&] { current->block.come_to_warp(self, site, mask, value); });
  const Lanes &lanes = *current->block[self].lanes;
  const unsigned first = self / warpSize * warpSize;
  for (unsigned at = 0; fence && at < warpSize; ++at)
    if (lanes.present >> at & 1)
      __tsan_acquire(&current->warp_tokens[first + at][lanes.values[at]]);
  return lanes;
}

unsigned living_lanes() {
  Hidden hidden;
  std::lock_guard<std::mutex> hold(current->lock);
  return current->block.living_lanes(self);
}

void fail(hostcuda_fault, const char *format, ...) {
  char text[1000];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  refuse("%s", text);
}

}  // namespace hostcuda

// `kernel` is the first of `copies`.
extern "C" int hostcuda_run(const hostcuda_kernel *kernel, const unsigned grid[3],
                            const unsigned block[3], size_t dynamic_shared,
                            void *const *parameters, unsigned long long schedule, char *, size_t) {
  using namespace hostcuda;
  gridDim = dim3(grid[0], grid[1], grid[2]);
  blockDim = dim3(block[0], block[1], block[2]);
  const Launch launch = {kernel, parameters, schedule, dynamic_shared};
  std::mt19937_64 random(launch.schedule);
  const std::vector<unsigned> blocks = launch.order(gridDim.x * gridDim.y * gridDim.z, random);
  std::vector<std::thread> runners;
  for (unsigned copy = 0; copy < copies; ++copy)
    runners.emplace_back(run_blocks, std::cref(launch), copy, std::cref(blocks));
  for (std::thread &runner : runners) runner.join();
  return 0;
}
