// What a text of kernels is compiled with for the server: its kernels take text arguments.
#pragma once

#include <stdlib.h>

#include <type_traits>
#include <vector>

#include "block.h"

// The number of the fault that a text with many (kernel_plants.py) has in this process; 0: none.
inline const int gt_planted = getenv("GT_PLANTED") ? atoi(getenv("GT_PLANTED")) : 0;

namespace hostcuda {

// Ends the process with this sentence.
[[noreturn]] void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct Argument {
  enum Kind { buffer, integer, real, structure } kind;
  void *pointer;
  long long number;
  double value;
  std::vector<char> bytes;
};

struct alignas(16) Parameter {
  char bytes[512];
};

// Writes an argument as the type of a parameter.
typedef void (*Take)(const Argument &argument, void *place);

template <typename P>
P taken(const Argument &argument, P *) {
  if constexpr (std::is_class_v<P>) {
    if (argument.kind != Argument::structure || argument.bytes.size() != sizeof(P))
      refuse("a kernel wants a structure of %zu bytes", sizeof(P));
    P structure;
    memcpy(static_cast<void *>(&structure), argument.bytes.data(), sizeof structure);
    return structure;
  } else {
    if (argument.kind != Argument::integer && argument.kind != Argument::real)
      refuse("a kernel wants a number where an array is given");
    return argument.kind == Argument::real ? static_cast<P>(argument.value)
                                           : static_cast<P>(argument.number);
  }
}

template <typename P>
P *taken(const Argument &argument, P **) {
  if (argument.kind == Argument::buffer) return static_cast<P *>(argument.pointer);
  if (argument.kind != Argument::integer || argument.number != 0)
    refuse("a kernel wants an array or 0 where a number is given");
  return nullptr;
}

template <typename P>
void take(const Argument &argument, void *place) {
  static_assert(sizeof(P) <= sizeof(Parameter), "no place for this type of parameter");
  const P value = taken(argument, static_cast<P *>(nullptr));
  memcpy(place, &value, sizeof value);
}

template <auto Kernel>
struct Taken;

template <typename... P, void (*Kernel)(P...)>
struct Taken<Kernel> {
  static constexpr Take takes[] = {take<P>..., nullptr};
};

// Announces a kernel to the server under the name that the tests call it by; `copy` says which
// copy of the text it is from.
struct Register {
  Register(const char *name, unsigned copy, const Entry &entry, const Take *takes);
};

}  // namespace hostcuda

#define HOSTCUDA_SERVE(id, copy, ...)                                                     \
  static hostcuda::Register hostcuda_register_##id(#__VA_ARGS__, copy,                    \
                                                   hostcuda::Bound<__VA_ARGS__>::entry("", 1024), \
                                                   hostcuda::Taken<__VA_ARGS__>::takes)
