// The machine behind cuda_host.h: a fiber scheduler, and a loop that serves launches from standard
// input.
//
// A request is text lines and raw bytes:
//     NAME GX GY GZ BX BY BZ SCHEDULE ARGUMENTS
//     b NBYTES (and the bytes) | r INDEX (the buffer of an earlier argument) | i INTEGER | d REAL
// The answer is "ok" and a newline, then the bytes of every b argument after the launch. On a fault
// the process writes the reason to standard error and exits; sanitizers do the same.
// SCHEDULE 0 runs the threads of a block first to last, 1 last to first, any other number is the
// seed of a new random order after each barrier.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <sanitizer/common_interface_defs.h>

#include "cuda_host.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace gt_host {
namespace {

const std::size_t stack_bytes = 256 * 1024;

// Made once and kept: an idle fiber takes the next thread that has not started, and goes on to
// another one when that ends without having met a barrier.
struct Fiber {
  ucontext_t context;
  char *stack;
  unsigned thread;
  bool waiting;
  const char *file;  // where it waits
  int line;
};

struct Kernel {
  Invoke invoke;
  std::size_t parameters;
};

std::map<std::string, Kernel> &kernels() {
  static std::map<std::string, Kernel> table;
  return table;
}

std::vector<Fiber *> idle;
Fiber *running;
ucontext_t scheduler;
const void *scheduler_stack;
std::size_t scheduler_stack_bytes;

Invoke current_kernel;
const Argument *current_arguments;
std::vector<unsigned> order;  // the threads of the block, as this round runs them
std::size_t started;          // how many of them have begun

// Hands over to the scheduler, until it resumes this fiber.
void leave() {
  Fiber *self = running;
  void *keep;
  __sanitizer_start_switch_fiber(&keep, scheduler_stack, scheduler_stack_bytes);
  swapcontext(&self->context, &scheduler);
  __sanitizer_finish_switch_fiber(keep, &scheduler_stack, &scheduler_stack_bytes);
}

void be_thread(unsigned thread) {
  running->thread = thread;
  threadIdx.x = thread % blockDim.x;
  threadIdx.y = thread / blockDim.x % blockDim.y;
  threadIdx.z = thread / blockDim.x / blockDim.y;
}

void fiber_main() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  for (;;) {
    while (started < order.size()) {
      be_thread(order[started++]);
      current_kernel(current_arguments);
    }
    idle.push_back(running);
    leave();
  }
}

void resume(Fiber *fiber) {
  running = fiber;
  if (fiber->waiting) be_thread(fiber->thread);
  fiber->waiting = false;
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

// All threads have had a turn and some wait: then all must wait, and at one barrier.
void check_barrier(const std::vector<Fiber *> &waiting) {
  const Fiber *first = waiting.front();
  for (const Fiber *fiber : waiting)
    if (first->line != fiber->line || strcmp(first->file, fiber->file) != 0)
      fail("divergent barrier: threads of one block wait at %s:%d and at %s:%d", first->file,
           first->line, fiber->file, fiber->line);
  if (waiting.size() != order.size())
    fail("divergent barrier: %zu threads wait at %s:%d and %zu have ended", waiting.size(),
         first->file, first->line, order.size() - waiting.size());
}

void run_block(unsigned threads, unsigned long long schedule, std::mt19937_64 &random) {
  order.resize(threads);
  for (unsigned t = 0; t < threads; ++t) order[t] = schedule == 1 ? threads - 1 - t : t;
  if (schedule > 1) std::shuffle(order.begin(), order.end(), random);
  std::vector<Fiber *> waiting;
  for (started = 0; started < threads;) {
    Fiber *fiber = idle_fiber();
    resume(fiber);
    if (fiber->waiting) waiting.push_back(fiber);
  }
  while (!waiting.empty()) {
    check_barrier(waiting);
    if (schedule > 1) std::shuffle(waiting.begin(), waiting.end(), random);
    std::vector<Fiber *> again;
    for (Fiber *fiber : waiting) {
      resume(fiber);
      if (fiber->waiting) again.push_back(fiber);
    }
    waiting.swap(again);
  }
}

void launch(unsigned long long schedule) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  if (threads == 0 || threads > 1024) fail("%u threads in a block; CUDA wants 1 to 1024", threads);
  std::mt19937_64 random(schedule);
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx.x = x;
        blockIdx.y = y;
        blockIdx.z = z;
        run_block(threads, schedule, random);
      }
}

typedef std::vector<std::pair<void *, std::size_t>> Buffers;

// Reads the arguments after the request line; `owned` gets the buffers to answer with and to free.
std::vector<Argument> read_arguments(int count, Buffers &owned) {
  std::vector<Argument> arguments;
  for (int at = 0; at < count; ++at) {
    char kind;
    std::cin >> kind;
    Argument argument = {Argument::integer, nullptr, 0, 0};
    if (kind == 'b') {
      std::size_t bytes;
      std::cin >> bytes;
      std::cin.get();  // the newline
      argument.kind = Argument::buffer;
      // Exactly as many bytes as the array has: the sanitizer sees the first one past it.
      if (posix_memalign(&argument.pointer, 64, bytes)) fail("no memory for %zu bytes", bytes);
      std::cin.read(static_cast<char *>(argument.pointer), bytes);
      owned.emplace_back(argument.pointer, bytes);
    } else if (kind == 'r') {
      std::size_t index;
      std::cin >> index;
      argument = arguments.at(index);
    } else if (kind == 'i') {
      std::cin >> argument.number;
    } else {
      argument.kind = Argument::real;
      std::string text;
      std::cin >> text;
      argument.value = strtod(text.c_str(), nullptr);  // also reads hexadecimal, inf and nan
    }
    arguments.push_back(argument);
  }
  return arguments;
}

}  // namespace

void fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  fputs("gt_host: ", stderr);
  vfprintf(stderr, format, values);
  fputc('\n', stderr);
  fflush(stderr);
  _Exit(70);
}

void barrier(const char *file, int line) {
  running->waiting = true;
  running->file = file;
  running->line = line;
  leave();
}

Register::Register(const char *name, Invoke invoke, std::size_t parameters) {
  kernels()[name] = {invoke, parameters};
}

}  // namespace gt_host

int main() {
  using namespace gt_host;
  std::ios::sync_with_stdio(false);
  std::string name;
  while (std::cin >> name) {
    unsigned long long schedule;
    int count;
    std::cin >> gridDim.x >> gridDim.y >> gridDim.z >> blockDim.x >> blockDim.y >> blockDim.z >>
        schedule >> count;
    Buffers owned;
    const std::vector<Argument> arguments = read_arguments(count, owned);
    if (!std::cin) fail("the request for %s ends early", name.c_str());
    const auto kernel = kernels().find(name);
    if (kernel == kernels().end()) fail("no kernel %s", name.c_str());
    if (kernel->second.parameters != arguments.size())
      fail("%zu arguments for %s; wanted %zu", arguments.size(), name.c_str(),
           kernel->second.parameters);
    current_kernel = kernel->second.invoke;
    current_arguments = arguments.data();
    launch(schedule);
    std::cout << "ok\n";
    for (auto &[pointer, bytes] : owned) {
      std::cout.write(static_cast<char *>(pointer), bytes);
      free(pointer);
    }
    std::cout.flush();
  }
  return 0;
}
