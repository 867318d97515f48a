// The machine that runs a launch on one OS thread: each CUDA thread is a fiber, blocks run one
// after the other. A fiber that ends without having waited takes the next thread that has not
// started, so that a kernel without barriers is a plain loop on one fiber.
//
// SCHEDULE 0 runs blocks and threads first to last, 1 last to first, any other number is the seed
// of random orders of blocks and of threads, which then may also change at each atomic.
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>

#include "block.h"
#include "division.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define HOSTCUDA_SANITIZED 1
#else
#define HOSTCUDA_SANITIZED 0
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// Saves the registers that a call must keep on this stack, and goes on where another stack left.
extern "C" void hostcuda_switch(void **from, void *to);
__asm__(R"(
.text
.type hostcuda_switch, @function
hostcuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hostcuda_switch, . - hostcuda_switch
)");

namespace hostcuda {

bool fenced, turns;

namespace {

const size_t page = 4096, stack_bytes = 256 * 1024;
const size_t most_shared_bytes = 256 * 1024;  // more than any GPU gives a block

struct Fiber {
  void *registers;  // where its stack was left
  char *memory;     // a page without access, then the stack
  unsigned thread;
  uint3 index;      // of that thread
};

std::vector<Fiber *> made, idle;
Fiber *running;
void *scheduler;
const void *scheduler_stack;
size_t scheduler_stack_bytes;

struct Launch {
  const hostcuda_kernel *kernel;
  void *const *parameters;
  unsigned long long schedule;
  unsigned threads;
  size_t shared_bytes;
};

const Launch *current;
std::mt19937_64 randomness;
void *shared_memory;
Block block;
bool met;                     // `block` knows the threads: one has waited
std::vector<unsigned> order;  // of the threads of the block; empty: first to last
unsigned started;             // how many of them have begun
std::vector<Fiber *> fibers;  // of the threads that have begun, once one has waited
std::deque<Fiber *> ready;    // those that may go on
double limit = 120;           // seconds of the CPU's time that a launch may take; 0: any
hostcuda_fault failed;        // 0: not
std::string sentence;

void be_block(size_t number) {
  blockIdx.x = number % gridDim.x;
  blockIdx.y = number / gridDim.x % gridDim.y;
  blockIdx.z = number / gridDim.x / gridDim.y;
}

void be_thread(unsigned thread) {
  threadIdx.x = thread % blockDim.x;
  threadIdx.y = thread / blockDim.x % blockDim.y;
  threadIdx.z = thread / blockDim.x / blockDim.y;
}

void be_next_thread() {
  if (++threadIdx.x < blockDim.x) return;
  threadIdx.x = 0;
  if (++threadIdx.y < blockDim.y) return;
  threadIdx.y = 0;
  ++threadIdx.z;
}

#if HOSTCUDA_SANITIZED
void say_start(void **keep, const void *stack, size_t bytes) {
  __sanitizer_start_switch_fiber(keep, stack, bytes);
}
void say_finish(void *keep, const void **stack, size_t *bytes) {
  __sanitizer_finish_switch_fiber(keep, stack, bytes);
}
#else
void say_start(void **, const void *, size_t) {}
void say_finish(void *, const void **, size_t *) {}
#endif

// Hands over to the scheduler, until it resumes this fiber.
void leave() {
  void *keep;
  say_start(&keep, scheduler_stack, scheduler_stack_bytes);
  hostcuda_switch(&running->registers, scheduler);
  say_finish(keep, &scheduler_stack, &scheduler_stack_bytes);
}

void resume(Fiber *fiber) {
  running = fiber;
  threadIdx = fiber->index;
  void *keep;
  say_start(&keep, fiber->memory + page, stack_bytes);
  hostcuda_switch(&scheduler, fiber->registers);
  say_finish(keep, nullptr, nullptr);
}

void queue_released() {
  if (current->schedule == 1) std::reverse(block.released.begin(), block.released.end());
  for (unsigned thread : block.released) ready.push_back(fibers[thread]);
}

unsigned numbered(unsigned place) { return order.empty() ? place : order[place]; }

// Called when the first thread of a block waits: all that started before it have ended.
void meet() {
  if (!met) {
    met = true;
    block.reset(current->threads);
    for (unsigned place = 0; place + 1 < started; ++place) block.end(numbered(place));
    fibers.assign(current->threads, nullptr);
  }
  fibers[running->thread] = running;
}

void run_threads() {
  while (started < current->threads) {
    const unsigned thread = numbered(started++);
    running->thread = thread;
    if (!order.empty() || started == 1 || met)
      be_thread(thread);
    else
      be_next_thread();
    running->index = threadIdx;
    fenced = false;
    current->kernel->thread(current->parameters);
    if (!met) continue;
    block.end(running->thread);
    queue_released();
  }
}

void fiber_main() {
  say_finish(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  for (;;) {
    run_threads();
    idle.push_back(running);
    leave();
  }
}

// A stack that hostcuda_switch enters fiber_main on. Stacks of the same size would begin in the
// same set of the caches: each has its top at another line of the page.
void enter_main(Fiber *fiber, size_t number) {
  void **top = reinterpret_cast<void **>(fiber->memory + page + stack_bytes - number % 64 * 64);
  *--top = nullptr;  // no caller: the end of a backtrace, and the alignment of a call
  *--top = reinterpret_cast<void *>(fiber_main);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber->registers = top;
}

Fiber *idle_fiber() {
  if (!idle.empty()) {
    Fiber *fiber = idle.back();
    idle.pop_back();
    return fiber;
  }
  void *memory = mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE))
    fail(HOSTCUDA_LAUNCH_FAILURE, "no memory for the stack of a thread");
  Fiber *fiber = new Fiber{nullptr, static_cast<char *>(memory), 0, {}};
  enter_main(fiber, made.size());
  made.push_back(fiber);
  return fiber;
}

Fiber *next_ready() {
  if (current->schedule > 1) std::swap(ready.front(), ready[randomness() % ready.size()]);
  Fiber *fiber = ready.front();
  ready.pop_front();
  return fiber;
}

// Numbers below `count` in the order of the schedule; none of them: first to last.
std::vector<unsigned> ordered(unsigned count) {
  std::vector<unsigned> numbers(current->schedule ? count : 0);
  for (unsigned at = 0; at < numbers.size(); ++at) numbers[at] = count - 1 - at;
  if (current->schedule > 1) std::shuffle(numbers.begin(), numbers.end(), randomness);
  return numbers;
}

void run_block() {
  const unsigned threads = current->threads;
  met = false;
  order = ordered(threads);
  // What a kernel reads there before it writes is no number.
  if (current->shared_bytes) memset(shared_memory, 0xff, current->shared_bytes);
  for (started = 0; !failed && (started < threads || !ready.empty());) {
    const bool begin = ready.empty() || current->schedule <= 1 || randomness() % 2;
    Fiber *fiber = started < threads && begin ? idle_fiber() : next_ready();
    if (!failed) resume(fiber);
    running = nullptr;
  }
}

void run_blocks() {
  randomness.seed(current->schedule);
  turns = current->schedule > 1;
  const size_t blocks = size_t(gridDim.x) * gridDim.y * gridDim.z;
  const std::vector<unsigned> numbers = ordered(blocks);
  for (size_t at = 0; at < blocks && !failed; ++at) {
    be_block(numbers.empty() ? at : numbers[at]);
    run_block();
  }
}

// The fibers of a failed launch are left where they are; their stacks begin again.
void recover() {
  ready.clear();
  idle.clear();
  for (size_t number = 0; number < made.size(); ++number) {
    enter_main(made[number], number);
    idle.push_back(made[number]);
  }
}

void note(hostcuda_fault error, const char *format, va_list values) {
  char text[2000];
  int at = snprintf(text, sizeof text, "kernel %s", current->kernel->name);
  if (running)
    at += snprintf(text + at, sizeof text - at, ", block (%u, %u, %u), thread (%u, %u, %u)",
                   blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  at += snprintf(text + at, sizeof text - at, ": ");
  vsnprintf(text + at, sizeof text - at, format, values);
  sentence = text;
  failed = error;
}

// Dynamic shared memory ends where an access faults: at a page without access, or exactly for a
// sanitizer.
void *make_shared_memory(size_t bytes) {
#if HOSTCUDA_SANITIZED
  void *memory;
  if (posix_memalign(&memory, 16, bytes))
    fail(HOSTCUDA_LAUNCH_FAILURE, "no memory for shared memory");
  return memory;
#else
  static char *const region = [] {
    void *memory = mmap(nullptr, most_shared_bytes + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED || mprotect(static_cast<char *>(memory) + most_shared_bytes, page,
                                            PROT_NONE)
               ? nullptr
               : static_cast<char *>(memory);
  }();
  return region + most_shared_bytes - (bytes + 15) / 16 * 16;
#endif
}

void drop_shared_memory() {
#if HOSTCUDA_SANITIZED
  free(shared_memory);
#endif
}

// ------------------------------------------------------------------------------ faults of the CPU

#if HOSTCUDA_SANITIZED
struct Watch {  // the sanitizer reports them
  Watch() {}
};
#else

thread_local bool watched;  // this OS thread runs a launch

// A launch that takes too long: the timer's signal, which Python programs leave alone.
const int OVERTIME = SIGVTALRM;
const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, OVERTIME};

struct Fault {
  int number, code;
  char *address;
  bool write;
} fault;

void say(hostcuda_fault error, const char *format, ...) {
  va_list values;
  va_start(values, format);
  note(error, format, values);
  va_end(values);
}

// The signal handler continues here, on the fiber whose access faulted: reports the error and
// switches to the scheduler. A stack overflow is an unspecified launch failure: CUDA C++ Programming Guide, "Call Stack".
void land() {
  const char *stack = running->memory;
  if (fault.number == OVERTIME)
    say(HOSTCUDA_LAUNCH_TIMEOUT,
        "it has not ended after %g s, the limit that GTENSOR_HOSTCUDA_KERNEL_SECONDS sets; blocks run "
        "one after the other here, and one that waits for another does not end", limit);
  else if (fault.number == SIGFPE)
    say(HOSTCUDA_LAUNCH_FAILURE, "integer division by zero");
  else if (fault.number == SIGILL)
    say(HOSTCUDA_LAUNCH_FAILURE, "the compiler's trap for what is undefined in C++");
  else if (fault.address >= stack && fault.address < stack + page)
    say(HOSTCUDA_LAUNCH_FAILURE, "stack overflow: more than %zu bytes of local memory", stack_bytes);
  else if (fault.code == SI_KERNEL)
    say(HOSTCUDA_ILLEGAL_ADDRESS, "an address that no memory has, or a misaligned one");
  else
    say(HOSTCUDA_ILLEGAL_ADDRESS, "invalid address %p of a %s", static_cast<void *>(fault.address),
        fault.write ? "write" : "read");
  hostcuda_switch(&running->registers, scheduler);
}

struct sigaction before[std::size(signals)];

// Whether the address lies in the module's machine code. Only there may a launch be aborted: the C
// library and the scheduler may hold locks.
bool in_kernel(greg_t address) {
  return reinterpret_cast<greg_t>(current->kernel->code) <= address &&
         address < reinterpret_cast<greg_t>(current->kernel->code_end);
}

// This OS thread's timer, which counts the time that the thread itself runs.
class Timer {
 public:
  Timer() {
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = OVERTIME;
    event.sigev_value.sival_ptr = &limit;
    event._sigev_un._tid = gettid();
    made_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
  }
  ~Timer() {
    if (made_) timer_delete(timer_);
  }
  // Beyond the limit the signal is repeated every 10 ms, until it arrives in the kernel's own code.
  void start() {
    if (limit > 0) set(limit, 10'000'000);
  }
  void stop() { set(0, 0); }

 private:
  timer_t timer_;
  bool made_;

  void set(double first, long again) {
    itimerspec when = {};
    when.it_value.tv_sec = time_t(first);
    when.it_value.tv_nsec = long((first - double(when.it_value.tv_sec)) * 1e9);
    when.it_interval.tv_nsec = again;
    if (made_) timer_settime(timer_, 0, &when, nullptr);
  }
};

thread_local Timer timer;

bool is_timer(const siginfo_t *information) {
  return information->si_code == SI_TIMER && information->si_value.sival_ptr == &limit;
}

// What the program would have done at this signal.
void hand_on(int number, siginfo_t *information, void *given) {
  const struct sigaction &theirs = before[std::find(signals, std::end(signals), number) - signals];
  if (theirs.sa_flags & SA_SIGINFO) {
    theirs.sa_sigaction(number, information, given);
  } else if (theirs.sa_handler == SIG_DFL) {
    sigaction(number, &theirs, nullptr);
    raise(number);
  } else if (theirs.sa_handler != SIG_IGN) {
    theirs.sa_handler(number);
  }
}

void handle(int number, siginfo_t *information, void *given) {
  if (number == OVERTIME && !is_timer(information)) return hand_on(number, information, given);
  if (number == OVERTIME && (!watched || !running)) return;
  if (!watched || !running) {  // not from a kernel: the access is repeated under the handler from before
    for (size_t at = 0; at < std::size(signals); ++at)
      if (signals[at] == number) sigaction(number, &before[at], nullptr);
    return;
  }
  greg_t *registers = static_cast<ucontext_t *>(given)->uc_mcontext.gregs;
  if (number == OVERTIME && !in_kernel(registers[REG_RIP])) return;
  if (number == SIGFPE && divides_least_number(registers)) return;
  fault = {number, information->si_code, static_cast<char *>(information->si_addr),
           (registers[REG_ERR] & 2) != 0};
  registers[REG_RIP] = reinterpret_cast<greg_t>(land);
  registers[REG_RSP] = reinterpret_cast<greg_t>(running->memory + page + stack_bytes - 8);
}

// While it lives, faults of this OS thread end the launch and not the process.
struct Watch {
  stack_t stack;

  Watch() {
    static char *const memory = new char[64 * 1024];
    stack_t ours = {};
    ours.ss_sp = memory;
    ours.ss_size = 64 * 1024;
    sigaltstack(&ours, &stack);
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (size_t at = 0; at < std::size(signals); ++at)
      sigaction(signals[at], &action, &before[at]);
    watched = true;
    timer.start();
  }

  ~Watch() {
    timer.stop();
    watched = false;
    for (size_t at = 0; at < std::size(signals); ++at)
      sigaction(signals[at], &before[at], nullptr);
    sigaltstack(&stack, nullptr);
  }
};
#endif

// Parameters where their types want them; the caller's may lie anywhere.
class Parameters {
 public:
  Parameters(const hostcuda_kernel &kernel, void *const *given) {
    size_t bytes = 0;
    for (unsigned at = 0; at < kernel.parameter_count; ++at)
      bytes += rounded(kernel.parameter_sizes[at]);
    storage_.resize(bytes / sizeof(Unit) + 1);
    char *place = reinterpret_cast<char *>(storage_.data());
    for (unsigned at = 0; at < kernel.parameter_count; ++at) {
      memcpy(place, given[at], kernel.parameter_sizes[at]);
      places_.push_back(place);
      place += rounded(kernel.parameter_sizes[at]);
    }
  }

  void *const *places() const { return places_.data(); }

 private:
  struct alignas(64) Unit {
    char bytes[64];
  };
  std::vector<Unit> storage_;
  std::vector<void *> places_;

  static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }
};

}  // namespace

void fail(hostcuda_fault error, const char *format, ...) {
  va_list values;
  va_start(values, format);
  note(error, format, values);
  va_end(values);
  if (running) leave();
  fprintf(stderr, "hostcuda: %s\n", sentence.c_str());  // no thread of a launch runs
  abort();
}

void *dynamic_shared_bytes() { return shared_memory; }

void turn() {
  meet();
  ready.push_back(running);
  leave();
}

int meet_block(const Site &site, bool vote) {
  meet();
  const unsigned thread = running->thread;
  block.come_to_block(thread, site, vote);
  queue_released();
  leave();
  return block[thread].votes;
}

const Lanes &meet_warp(const Site &site, unsigned mask, unsigned long long value, bool) {
  meet();
  const unsigned thread = running->thread;
  block.come_to_warp(thread, site, mask, value);
  queue_released();
  leave();
  return *block[thread].lanes;
}

unsigned living_lanes() {
  meet();
  return block.living_lanes(running->thread);
}

}  // namespace hostcuda

extern "C" void hostcuda_limit(double seconds) { hostcuda::limit = seconds; }

extern "C" int hostcuda_run(const hostcuda_kernel *kernel, const unsigned grid[3],
                            const unsigned block[3], size_t dynamic_shared,
                            void *const *parameters, unsigned long long schedule, char *fault,
                            size_t fault_bytes) {
  using namespace hostcuda;
  const Parameters own(*kernel, parameters);
  const Launch launch = {kernel, own.places(), schedule, block[0] * block[1] * block[2],
                         dynamic_shared};
  gridDim = dim3(grid[0], grid[1], grid[2]);
  blockDim = dim3(block[0], block[1], block[2]);
  current = &launch;
  failed = {};
  running = nullptr;
  shared_memory = make_shared_memory(dynamic_shared);
  {
    [[maybe_unused]] const Watch watch;
    run_blocks();
  }
  drop_shared_memory();
  running = nullptr;
  if (!failed) return 0;
  recover();
  snprintf(fault, fault_bytes, "%s", sentence.c_str());
  return failed;
}

#if !HOSTCUDA_SANITIZED
// UBSan's checks of alignment and of array bounds, which modules are compiled with, call these.
// Layouts as in GCC's ubsan.c.
namespace {

struct Location {
  const char *file;
  unsigned line, column;
};

struct Type {
  unsigned short kind, information;
  char name[1];
};

struct Mismatch {
  Location location;
  const Type *type;
  unsigned char log_alignment, access;
};

struct Outside {
  Location location;
  const Type *array, *index;
};

}  // namespace

extern "C" [[noreturn]] HOSTCUDA_EXPORTED void __ubsan_handle_type_mismatch_v1_abort(const Mismatch *what,
                                                                   void *address) {
  hostcuda::fail(HOSTCUDA_MISALIGNED_ADDRESS, "misaligned address %p for type %s at %s:%u", address,
                 what->type->name, what->location.file, what->location.line);
}

extern "C" [[noreturn]] HOSTCUDA_EXPORTED void __ubsan_handle_out_of_bounds_abort(const Outside *what,
                                                                unsigned long index) {
  hostcuda::fail(HOSTCUDA_ILLEGAL_ADDRESS, "index %ld out of bounds for type %s at %s:%u",
                 static_cast<long>(index), what->array->name, what->location.file,
                 what->location.line);
}
#endif
