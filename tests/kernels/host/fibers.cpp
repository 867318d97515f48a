// The machine that runs a kernel on one OS thread: each CUDA thread is a fiber (ucontext), blocks
// run one after the other.
//
// SCHEDULE 0 runs blocks and threads first to last, 1 last to first, any other number is the seed
// of random orders of blocks and of threads, which then may also change at each atomic.
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <deque>

#include <sanitizer/common_interface_defs.h>

#include "block.h"

uint3 threadIdx, blockIdx;

namespace gt_host {

const unsigned copies = 1;
bool fenced;

namespace {

const std::size_t stack_bytes = 256 * 1024;

// Made once and kept: an idle fiber takes the next thread that has not started, and goes on to
// another one when that ends without having waited.
struct Fiber {
  ucontext_t context;
  char *stack;
  unsigned thread;
};

std::vector<Fiber *> idle;
Fiber *running;
ucontext_t scheduler;
const void *scheduler_stack;
std::size_t scheduler_stack_bytes;

const Launch *current;
std::mt19937_64 randomness;
void *shared_memory;
Block *block;
std::vector<unsigned> order;  // of the threads of the block
std::size_t started;          // how many of them have begun
std::vector<Fiber *> fibers;  // of the threads that have begun
std::deque<Fiber *> ready;    // those that may go on

// Hands over to the scheduler, until it resumes this fiber.
void leave() {
  Fiber *self = running;
  void *keep;
  __sanitizer_start_switch_fiber(&keep, scheduler_stack, scheduler_stack_bytes);
  swapcontext(&self->context, &scheduler);
  __sanitizer_finish_switch_fiber(keep, &scheduler_stack, &scheduler_stack_bytes);
}

void queue_released() {
  if (current->schedule == 1) std::reverse(block->released.begin(), block->released.end());
  for (unsigned thread : block->released) ready.push_back(fibers[thread]);
}

void fiber_main() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  for (;;) {
    while (started < order.size()) {
      const unsigned thread = order[started++];
      running->thread = thread;
      fibers[thread] = running;
      be_thread(thread);
      current->kernels[0](current->arguments);
      block->end(running->thread);
      queue_released();
    }
    idle.push_back(running);
    leave();
  }
}

void resume(Fiber *fiber) {
  running = fiber;
  be_thread(fiber->thread);
  void *keep;
  __sanitizer_start_switch_fiber(&keep, fiber->stack, stack_bytes);
  swapcontext(&scheduler, &fiber->context);
  __sanitizer_finish_switch_fiber(keep, nullptr, nullptr);
}

// getcontext returns a second time only to where nobody goes: makecontext replaces the place.
#pragma GCC diagnostic ignored "-Wclobbered"

Fiber *idle_fiber() {
  if (!idle.empty()) {
    Fiber *fiber = idle.back();
    idle.pop_back();
    return fiber;
  }
  Fiber *fiber = new Fiber();
  void *memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for the stack of a fiber");
  fiber->stack = static_cast<char *>(memory);
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = stack_bytes;
  makecontext(&fiber->context, fiber_main, 0);
  // AddressSanitizer would clear the shadow of the whole named stack at every switch: slow, and it
  // would forget the redzones of the fiber's own variables. A switch needs the registers only.
  fiber->context.uc_stack.ss_size = 0;
  return fiber;
}

Fiber *next_ready() {
  if (current->schedule > 1) std::swap(ready.front(), ready[randomness() % ready.size()]);
  Fiber *fiber = ready.front();
  ready.pop_front();
  return fiber;
}

void run_block() {
  const unsigned threads = current->threads();
  Block here(threads);
  block = &here;
  order = current->order(threads, randomness);
  fibers.assign(threads, nullptr);
  // What a kernel reads there before it writes is no number.
  memset(shared_memory, 0xff, current->shared_bytes);
  for (started = 0; started < threads || !ready.empty();) {
    const bool begin = ready.empty() || (current->schedule > 1 ? randomness() % 2 : 1);
    resume(started < threads && begin ? idle_fiber() : next_ready());
  }
}

}  // namespace

void *dynamic_shared_bytes() { return shared_memory; }

void turn() {
  if (current->schedule <= 1) return;
  ready.push_back(running);
  leave();
}

int meet_block(const Site &site, bool vote) {
  const unsigned thread = running->thread;
  block->come_to_block(thread, site, vote);
  queue_released();
  leave();
  return block->threads[thread].votes;
}

const Lanes &meet_warp(const Site &site, unsigned mask, unsigned long long value, bool) {
  const unsigned thread = running->thread;
  block->come_to_warp(thread, site, mask, value);
  queue_released();
  leave();
  return block->threads[thread].lanes;
}

unsigned living_lanes() { return block->living_lanes(running->thread); }

void run(const Launch &launch) {
  current = &launch;
  randomness.seed(launch.schedule);
  // Exactly as many bytes as the launch asks for: the sanitizer sees the first one past them.
  if (posix_memalign(&shared_memory, 16, launch.shared_bytes)) fail("no memory for shared memory");
  for (unsigned number : launch.order(gridDim.x * gridDim.y * gridDim.z, randomness)) {
    be_block(number);
    run_block();
  }
  free(shared_memory);
}

}  // namespace gt_host
