// A module's kernels: the table behind hostcuda_module_kernel.
#pragma once

#include <dlfcn.h>

namespace hostcuda {

// The linker's: where the module begins, and where its machine code ends.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[], etext[];

struct Entry {
  hostcuda_kernel kernel;
  const void *function;
};

// Of a variable, which a name expression may name: its symbol is enough.
template <auto Named>
struct Bound {
  static Entry entry(const char *, unsigned) { return {}; }
};

template <typename... P, void (*Kernel)(P...)>
struct Bound<Kernel> {
  static constexpr size_t sizes[] = {sizeof(P)..., 0};

  static void thread(void *const *parameters) {
    call(parameters, std::index_sequence_for<P...>());
  }

  static Entry entry(const char *name, unsigned max_threads) {
    return {{name, thread, sizeof...(P), sizes, 0, max_threads, __ehdr_start, etext},
            reinterpret_cast<const void *>(Kernel)};
  }

 private:
  template <size_t... at>
  static void call(void *const *parameters, std::index_sequence<at...>) {
    static_cast<void>(parameters);  // of a kernel without any
    Kernel(*static_cast<std::remove_const_t<P> *>(parameters[at])...);
  }
};

// A list, because the order of a text's kernels is known at its end only.
struct Registered {
  Entry entry;
  Registered *next = nullptr;

  explicit Registered(const Entry &given) : entry(given) {
    if (!given.function) return;
    *last = this;
    last = &next;
  }

  static inline Registered *first = nullptr;
  static inline Registered **last = &first;
};

// Written behind the module's text by kernels/assembly.py; ends with a null.
struct StaticShared {
  const void *function;
  size_t bytes;
};
extern "C" __attribute__((visibility("hidden"))) const StaticShared hostcuda_static_shared[];

// A kernel of C++ linkage is asked for by its mangled name, which the symbol table knows.
inline const char *symbol(const void *function) {
  Dl_info found;
  return dladdr(function, &found) && found.dli_saddr == function ? found.dli_sname : "";
}

inline const hostcuda_kernel *kernel_at(size_t index) {
  Registered *at = Registered::first;
  for (; at && index; --index) at = at->next;
  if (!at) return nullptr;
  if (!at->entry.kernel.name) at->entry.kernel.name = symbol(at->entry.function);
  for (const StaticShared *used = hostcuda_static_shared; used->function; ++used)
    if (used->function == at->entry.function) at->entry.kernel.static_shared_bytes = used->bytes;
  return &at->entry.kernel;
}

}  // namespace hostcuda

#define HOSTCUDA_JOIN(a, b) HOSTCUDA_JOINED(a, b)
#define HOSTCUDA_JOINED(a, b) a##b

// Follows the definition of a kernel that is no template, in its namespace; other functions may have
// its name.
#define HOSTCUDA_KERNEL(function, max_threads, parameters)                  \
  static hostcuda::Registered HOSTCUDA_JOIN(hostcuda_kernel_, __COUNTER__)( \
      hostcuda::Bound<static_cast<void(*) parameters>(function)>::entry(nullptr, max_threads));

// Follows the text: the instance of a template, or any kernel, under the name it was asked for.
#define HOSTCUDA_INSTANCE(name, max_threads, ...)                           \
  static hostcuda::Registered HOSTCUDA_JOIN(hostcuda_kernel_, __COUNTER__)( \
      hostcuda::Bound<__VA_ARGS__>::entry(name, max_threads));

#define HOSTCUDA_MODULE                                                                       \
  extern "C" HOSTCUDA_EXPORTED const hostcuda_kernel *hostcuda_module_kernel(size_t index) { \
    return hostcuda::kernel_at(index);                                                       \
  }
