// Atomics and fences, for the types that CUDA has them for.
//
// CUDA's atomics order nothing but themselves; what makes a thread's earlier writes visible to
// whoever sees its atomic is a __threadfence before it. ThreadSanitizer knows no fences, so an
// atomic releases if its thread has called __threadfence, and always acquires (readers of a ticket
// customarily have no fence of their own): a ticket taken without any fence is a data race there.
// A fence in the wrong place, and a __threadfence_block where __threadfence is wanted, go unseen.
#pragma once

namespace gt_host {

extern GT_HOST_PER_THREAD bool fenced;  // this thread has called __threadfence

// A machine that chooses orders may run other threads here.
void turn();

template <typename T, typename... Types>
constexpr bool is_one_of = (std::is_same<T, Types>::value || ...);

template <typename T>
using Same = typename std::common_type<T>::type;  // takes no part in deduction

// Replaces *address by change(*address) in one step; the value before.
template <typename T, typename Change>
T replace(T *address, Change change) {
  turn();
  if (reinterpret_cast<std::size_t>(address) % sizeof(T) != 0)
    fail("misaligned address %p of an atomic of %zu bytes", static_cast<void *>(address),
         sizeof(T));
  T seen, wanted;
  __atomic_load(address, &seen, __ATOMIC_ACQUIRE);
  do wanted = change(seen);
  while (!(fenced ? __atomic_compare_exchange(address, &seen, &wanted, false, __ATOMIC_ACQ_REL,
                                              __ATOMIC_ACQUIRE)
                  : __atomic_compare_exchange(address, &seen, &wanted, false, __ATOMIC_ACQUIRE,
                                              __ATOMIC_ACQUIRE)));
  return seen;
}

}  // namespace gt_host

inline void __threadfence() {
  __asm__ volatile("" ::: "memory");
  gt_host::fenced = true;
}

inline void __threadfence_system() { __threadfence(); }

inline void __threadfence_block() { __threadfence(); }

#define GT_HOST_ATOMIC(name, expression, ...)                                            \
  template <typename T>                                                                  \
  T name(T *address, gt_host::Same<T> value) {                                           \
    static_assert(gt_host::is_one_of<T, __VA_ARGS__>, "CUDA has no such " #name);        \
    return gt_host::replace(address, [=](T old) { return static_cast<T>(expression); }); \
  }

GT_HOST_ATOMIC(atomicAdd, old + value, int, unsigned, unsigned long long, float, double)
GT_HOST_ATOMIC(atomicSub, old - value, int, unsigned)
GT_HOST_ATOMIC(atomicExch, (static_cast<void>(old), value), int, unsigned, unsigned long long,
               float)
GT_HOST_ATOMIC(atomicMin, old < value ? old : value, int, unsigned, long long, unsigned long long)
GT_HOST_ATOMIC(atomicMax, old > value ? old : value, int, unsigned, long long, unsigned long long)
GT_HOST_ATOMIC(atomicAnd, old & value, int, unsigned, unsigned long long)
GT_HOST_ATOMIC(atomicOr, old | value, int, unsigned, unsigned long long)
GT_HOST_ATOMIC(atomicXor, old ^ value, int, unsigned, unsigned long long)
GT_HOST_ATOMIC(atomicInc, old >= value ? 0 : old + 1, unsigned)
GT_HOST_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1, unsigned)

template <typename T>
T atomicCAS(T *address, gt_host::Same<T> compare, gt_host::Same<T> value) {
  static_assert(gt_host::is_one_of<T, int, unsigned, unsigned long long>,
                "CUDA has no such atomicCAS");
  return gt_host::replace(address, [=](T old) { return old == compare ? value : old; });
}
