// Serves launches from standard input, on the machine that it is linked with.
//
// It says "ready" and a newline. A request is text lines and raw bytes:
//     NAME
//     GX GY GZ BX BY BZ SCHEDULE SHARED_BYTES ARGUMENTS
//     b NBYTES (and the bytes) | r INDEX (the buffer of an earlier argument) | i INTEGER | d REAL |
//     s NBYTES (and the bytes of a structure that is passed by value)
// The answer is "ok" and a newline, then the bytes of every b argument after the launch. On a fault
// the process writes the reason to standard error and exits; sanitizers do the same.
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <string>

#include "server.h"

namespace hostcuda {
namespace {

const std::size_t most_shared_bytes = 227 << 10;  // the most that any GPU gives a block

// That one launch may take.
unsigned seconds() {
  const char *text = getenv("GT_HOST_SECONDS");
  return text ? atoi(text) : 100;
}

struct Kernel {
  std::vector<hostcuda_kernel> copies;
  const Take *takes;
};

std::map<std::string, Kernel> &kernels() {
  static std::map<std::string, Kernel> table;
  return table;
}

void out_of_time(int) {
  const char text[] =
      "hostcuda: a launch takes too long: a loop without end, or a wait for another block, which "
      "never ends where blocks run one after the other\n";
  if (write(STDERR_FILENO, text, sizeof text - 1)) _Exit(70);
  _Exit(70);
}

typedef std::vector<std::pair<void *, std::size_t>> Buffers;

void read_bytes(void *to, std::size_t bytes) {
  std::cin.get();  // the newline
  std::cin.read(static_cast<char *>(to), bytes);
}

// Reads the arguments after the request line; `owned` gets the buffers to answer with and to free.
std::vector<Argument> read_arguments(int count, Buffers &owned) {
  std::vector<Argument> arguments;
  for (int at = 0; at < count; ++at) {
    char kind;
    std::cin >> kind;
    Argument argument = {};
    argument.kind = Argument::integer;
    if (kind == 'b') {
      std::size_t bytes;
      std::cin >> bytes;
      argument.kind = Argument::buffer;
      // Exactly as many bytes as the array has: the sanitizer sees the first one past it.
      if (posix_memalign(&argument.pointer, 64, bytes)) refuse("no memory for %zu bytes", bytes);
      read_bytes(argument.pointer, bytes);
      owned.emplace_back(argument.pointer, bytes);
    } else if (kind == 'r') {
      std::size_t index;
      std::cin >> index;
      argument = arguments.at(index);
    } else if (kind == 's') {
      std::size_t bytes;
      std::cin >> bytes;
      argument.kind = Argument::structure;
      argument.bytes.resize(bytes);
      read_bytes(argument.bytes.data(), bytes);
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

void serve(const std::string &name) {
  unsigned grid[3], block[3];
  unsigned long long schedule;
  std::size_t shared_bytes;
  int count;
  for (unsigned &size : grid) std::cin >> size;
  for (unsigned &size : block) std::cin >> size;
  std::cin >> schedule >> shared_bytes >> count;
  Buffers owned;
  const std::vector<Argument> arguments = read_arguments(count, owned);
  if (!std::cin) refuse("the request for %s ends early", name.c_str());
  const auto found = kernels().find(name);
  if (found == kernels().end()) refuse("no kernel %s", name.c_str());
  const Kernel &kernel = found->second;
  const unsigned wanted = kernel.copies[0].parameter_count;
  if (wanted != arguments.size())
    refuse("%zu arguments for %s; wanted %u", arguments.size(), name.c_str(), wanted);
  const unsigned threads = block[0] * block[1] * block[2];
  if (threads == 0 || threads > 1024)
    refuse("%u threads in a block; CUDA wants 1 to 1024", threads);
  if (shared_bytes > most_shared_bytes)
    refuse("%zu bytes of dynamic shared memory; a GPU has at most %zu for a block", shared_bytes,
           most_shared_bytes);
  std::vector<Parameter> storage(wanted);
  std::vector<void *> parameters;
  for (unsigned at = 0; at < wanted; ++at) {
    kernel.takes[at](arguments[at], storage[at].bytes);
    parameters.push_back(storage[at].bytes);
  }
  char fault[2000];
  alarm(seconds());
  if (hostcuda_run(kernel.copies.data(), grid, block, shared_bytes, parameters.data(), schedule,
                   fault, sizeof fault))
    refuse("%s", fault);
  alarm(0);
  std::cout << "ok\n";
  for (auto &[pointer, bytes] : owned) {
    std::cout.write(static_cast<char *>(pointer), bytes);
    free(pointer);
  }
  std::cout.flush();
}

}  // namespace

void refuse(const char *format, ...) {
  va_list values;
  va_start(values, format);
  fputs("hostcuda: ", stderr);
  vfprintf(stderr, format, values);
  fputc('\n', stderr);
  fflush(stderr);
  _Exit(70);
}

Register::Register(const char *name, unsigned copy, const Entry &entry, const Take *takes) {
  Kernel &kernel = kernels()[name];
  kernel.copies.resize(std::max<std::size_t>(kernel.copies.size(), copy + 1));
  kernel.copies[copy] = entry.kernel;
  kernel.copies[copy].name = name;
  kernel.takes = takes;
}

}  // namespace hostcuda

int main() {
  signal(SIGALRM, hostcuda::out_of_time);
  std::ios::sync_with_stdio(false);
  std::cout << "ready\n" << std::flush;
  std::string name;
  while (std::getline(std::cin >> std::ws, name)) hostcuda::serve(name);
  return 0;
}
