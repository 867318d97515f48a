// Atomics and fences, for the types that CUDA has them for.
//
// CUDA's atomics are relaxed: they order no other access. A __threadfence before an atomic makes the
// thread's earlier writes visible to threads that read its result. ThreadSanitizer does not model
// fences. So here an atomic releases if its thread has called __threadfence before, and always
// acquires, because kernels that take a ticket have no fence behind it. A ticket taken without any
// fence is then reported as a data race. Not detected: a fence in the wrong place, and a
// __threadfence_block where a __threadfence is needed.
#pragma once

#pragma GCC visibility push(default)

namespace hostcuda {

extern HOSTCUDA_PER_THREAD bool fenced;  // this thread has called __threadfence
extern bool turns;                       // at an atomic, other threads may run first

void turn();

}  // namespace hostcuda

#pragma GCC visibility pop

namespace hostcuda {

template <typename T, typename... Types>
constexpr bool is_one_of = (std::is_same<T, Types>::value || ...);

template <typename T, typename... Types>
using If = std::enable_if_t<is_one_of<T, Types...>, T>;

template <typename T>
using Same = typename std::common_type<T>::type;  // takes no part in deduction

// Replaces *address by change(*address) in one step; the value before.
template <typename T, typename Change>
T replace(T *address, Change change) {
  if (turns) turn();
  if (reinterpret_cast<size_t>(address) % sizeof(T) != 0)
    fail(HOSTCUDA_MISALIGNED_ADDRESS, "misaligned address %p of an atomic of %zu bytes",
         static_cast<void *>(address), sizeof(T));
  T seen, wanted;
  __atomic_load(address, &seen, __ATOMIC_ACQUIRE);
  do wanted = change(seen);
  while (!(fenced ? __atomic_compare_exchange(address, &seen, &wanted, false, __ATOMIC_ACQ_REL,
                                              __ATOMIC_ACQUIRE)
                  : __atomic_compare_exchange(address, &seen, &wanted, false, __ATOMIC_ACQUIRE,
                                              __ATOMIC_ACQUIRE)));
  return seen;
}

}  // namespace hostcuda

inline void __threadfence() {
  __asm__ volatile("" ::: "memory");
  hostcuda::fenced = true;
}

inline void __threadfence_system() { __threadfence(); }

inline void __threadfence_block() { __threadfence(); }

#define HOSTCUDA_SCOPED_ATOMIC(name, expression, ...)                                     \
  template <typename T>                                                                   \
  hostcuda::If<T, __VA_ARGS__> name(T *address, hostcuda::Same<T> value) {                \
    return hostcuda::replace(address, [=](T old) { return static_cast<T>(expression); }); \
  }

// The scope of a fence or an atomic is not looked at.
#define HOSTCUDA_ATOMIC(name, expression, ...)                    \
  HOSTCUDA_SCOPED_ATOMIC(name, expression, __VA_ARGS__)           \
  HOSTCUDA_SCOPED_ATOMIC(name##_block, expression, __VA_ARGS__)   \
  HOSTCUDA_SCOPED_ATOMIC(name##_system, expression, __VA_ARGS__)

HOSTCUDA_ATOMIC(atomicAdd, old + value, int, unsigned, unsigned long long, float, double, __half,
                __nv_bfloat16)
HOSTCUDA_ATOMIC(atomicSub, old - value, int, unsigned)
HOSTCUDA_ATOMIC(atomicExch, (static_cast<void>(old), value), int, unsigned, unsigned long long,
                float)
HOSTCUDA_ATOMIC(atomicMin, old < value ? old : value, int, unsigned, long long, unsigned long long)
HOSTCUDA_ATOMIC(atomicMax, old > value ? old : value, int, unsigned, long long, unsigned long long)
HOSTCUDA_ATOMIC(atomicAnd, old & value, int, unsigned, unsigned long long)
HOSTCUDA_ATOMIC(atomicOr, old | value, int, unsigned, unsigned long long)
HOSTCUDA_ATOMIC(atomicXor, old ^ value, int, unsigned, unsigned long long)
HOSTCUDA_ATOMIC(atomicInc, old >= value ? 0 : old + 1, unsigned)
HOSTCUDA_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1, unsigned)

#define HOSTCUDA_COMPARE(name)                                                                 \
  template <typename T>                                                                        \
  hostcuda::If<T, int, unsigned, unsigned long long, unsigned short> name(                     \
      T *address, hostcuda::Same<T> compare, hostcuda::Same<T> value) {                        \
    return hostcuda::replace(address, [=](T old) { return old == compare ? value : old; });    \
  }

HOSTCUDA_COMPARE(atomicCAS)
HOSTCUDA_COMPARE(atomicCAS_block)
HOSTCUDA_COMPARE(atomicCAS_system)

// Two halves: CUDA promises each of them, not the pair, in one step.
#define HOSTCUDA_PAIR(Pair, Half)                                           \
  inline Pair atomicAdd(Pair *address, Pair value) {                        \
    if (reinterpret_cast<size_t>(address) % sizeof(Pair) != 0)              \
      hostcuda::fail(HOSTCUDA_MISALIGNED_ADDRESS,                           \
                     "misaligned address %p of an atomic of %zu bytes",     \
                     static_cast<void *>(address), sizeof(Pair));           \
    Half *halves = reinterpret_cast<Half *>(address);                       \
    Pair old;                                                               \
    old.x = atomicAdd(halves, static_cast<Half>(value.x));                  \
    old.y = atomicAdd(halves + 1, static_cast<Half>(value.y));              \
    return old;                                                             \
  }

HOSTCUDA_PAIR(__half2, __half)
HOSTCUDA_PAIR(__nv_bfloat162, __nv_bfloat16)
