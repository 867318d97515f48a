// Where CUDA threads wait for each other: __syncthreads and its votes, __syncwarp, warp shuffles,
// votes, matches and reductions. Default arguments pass the caller's file and line.
#pragma once

constexpr int warpSize = 32;

#pragma GCC visibility push(default)

namespace hostcuda {

// A place where a thread waits.
struct Site {
  const char *name, *file;
  int line;
};

// The arguments of all lanes of a warp operation.
struct Lanes {
  unsigned present;  // the lanes that took part
  unsigned long long values[warpSize];
};

// Waits for all threads of the block. Returns the number of threads with a true `vote`.
int meet_block(const Site &site, bool vote);

// Waits for the lanes of `mask` that have not ended; `value` is this lane's argument. Orders memory
// if `fence`. The result is valid until this thread's next warp operation.
const Lanes &meet_warp(const Site &site, unsigned mask, unsigned long long value, bool fence);

// The lanes of this thread's warp that have not ended.
unsigned living_lanes();

}  // namespace hostcuda

#pragma GCC visibility pop

namespace hostcuda {

inline unsigned thread_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

inline unsigned lane() { return thread_number() % warpSize; }

template <typename T>
unsigned long long bits_of(T value) {
  static_assert(std::is_arithmetic<T>::value ||
                    is_one_of<T, __half, __half2, __nv_bfloat16, __nv_bfloat162>,
                "CUDA hands no such type from lane to lane");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

template <typename T>
T value_of(unsigned long long bits) {
  T value;
  memcpy(static_cast<void *>(&value), &bits, sizeof value);
  return value;
}

// The value of lane `source`; `source` beyond the segment means one's own.
template <typename T>
T shuffle(const Site &site, unsigned mask, T value, unsigned source, bool inside) {
  const Lanes &lanes = meet_warp(site, mask, bits_of(value), false);
  if (!inside) source = lane();
  if (!(lanes.present >> source & 1))
    fail(HOSTCUDA_LAUNCH_FAILURE, "%s at %s:%d: lane %u reads lane %u, which takes no part",
         site.name, site.file, site.line, lane(), source);
  return value_of<T>(lanes.values[source]);
}

// Reads what other lanes hand over. ThreadSanitizer does not see it: like a shuffle, it orders
// nothing.
#ifdef HOSTCUDA_THREADS
#define HOSTCUDA_UNSEEN __attribute__((noinline, no_sanitize("thread")))
#else
#define HOSTCUDA_UNSEEN
#endif
template <typename T>
HOSTCUDA_UNSEEN void gather(const Lanes &lanes, T (&all)[warpSize]) {
  for (int at = 0; at < warpSize; ++at)
    all[at] = *reinterpret_cast<const T *>(static_cast<uintptr_t>(lanes.values[at]));
}

// Hands `mine`, of any size, to all lanes of the warp, and gets theirs. All lanes must come.
template <typename T>
void exchange(const T &mine, T (&all)[warpSize], const char *file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  const Site site = {__func__, file, line};
  const Lanes &lanes = meet_warp(site, ~0u, reinterpret_cast<uintptr_t>(&mine), false);
  if (lanes.present != ~0u)
    fail(HOSTCUDA_LAUNCH_FAILURE, "exchange at %s:%d: of the warp the lanes %08x take part; wanted "
         "all of them", file, line, lanes.present);
  gather(lanes, all);
  meet_warp(site, ~0u, 0, false);  // `mine` stays until all have read it
}

inline unsigned ballot(const Site &site, unsigned mask, int predicate) {
  const Lanes &lanes = meet_warp(site, mask, predicate != 0, false);
  unsigned votes = 0;
  for (int at = 0; at < warpSize; ++at)
    if (lanes.present >> at & 1) votes |= static_cast<unsigned>(lanes.values[at]) << at;
  return votes;
}

// The lanes with the same bits as argument.
inline unsigned matches(const Site &site, unsigned mask, unsigned long long bits) {
  const Lanes &lanes = meet_warp(site, mask, bits, false);
  unsigned found = 0;
  for (int at = 0; at < warpSize; ++at)
    if (lanes.present >> at & 1 && lanes.values[at] == bits) found |= 1u << at;
  return found;
}

template <typename T, typename Combine>
T reduction(const Site &site, unsigned mask, T value, Combine combine) {
  const Lanes &lanes = meet_warp(site, mask, bits_of(value), false);
  const unsigned self = lane();
  for (int at = 0; at < warpSize; ++at)
    if (lanes.present >> at & 1 && static_cast<unsigned>(at) != self)
      value = combine(value, value_of<T>(lanes.values[at]));
  return value;
}

}  // namespace hostcuda

#define HOSTCUDA_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define HOSTCUDA_SITE \
  { __func__, file, line }

inline void __syncthreads(HOSTCUDA_PLACE) { hostcuda::meet_block(HOSTCUDA_SITE, false); }

inline int __syncthreads_count(int predicate, HOSTCUDA_PLACE) {
  return hostcuda::meet_block(HOSTCUDA_SITE, predicate != 0);
}

inline int __syncthreads_or(int predicate, HOSTCUDA_PLACE) {
  return hostcuda::meet_block(HOSTCUDA_SITE, predicate != 0) != 0;
}

inline int __syncthreads_and(int predicate, HOSTCUDA_PLACE) {
  return hostcuda::meet_block(HOSTCUDA_SITE, predicate == 0) == 0;
}

inline void __syncwarp(unsigned mask = 0xffffffff, HOSTCUDA_PLACE) {
  hostcuda::meet_warp(HOSTCUDA_SITE, mask, 0, true);
}

inline unsigned __activemask() { return hostcuda::living_lanes(); }

inline unsigned __ballot_sync(unsigned mask, int predicate, HOSTCUDA_PLACE) {
  return hostcuda::ballot(HOSTCUDA_SITE, mask, predicate);
}

inline int __any_sync(unsigned mask, int predicate, HOSTCUDA_PLACE) {
  return hostcuda::ballot(HOSTCUDA_SITE, mask, predicate) != 0;
}

inline int __all_sync(unsigned mask, int predicate, HOSTCUDA_PLACE) {
  return hostcuda::ballot(HOSTCUDA_SITE, mask, !predicate) == 0;
}

inline int __uni_sync(unsigned mask, int predicate, HOSTCUDA_PLACE) {
  const unsigned votes = hostcuda::ballot(HOSTCUDA_SITE, mask, predicate);
  return votes == 0 || votes == (mask & hostcuda::living_lanes());
}

template <typename T>
unsigned __match_any_sync(unsigned mask, T value, HOSTCUDA_PLACE) {
  return hostcuda::matches(HOSTCUDA_SITE, mask, hostcuda::bits_of(value));
}

template <typename T>
unsigned __match_all_sync(unsigned mask, T value, int *same, HOSTCUDA_PLACE) {
  const unsigned found = hostcuda::matches(HOSTCUDA_SITE, mask, hostcuda::bits_of(value));
  *same = found == (mask & hostcuda::living_lanes());
  return *same ? found : 0;
}

#define HOSTCUDA_REDUCE(name, expression, ...)                                                    \
  template <typename T>                                                                           \
  hostcuda::If<T, __VA_ARGS__> name(unsigned mask, T value, HOSTCUDA_PLACE) {                     \
    return hostcuda::reduction(HOSTCUDA_SITE, mask, value, [](T a, T b) { return expression; });  \
  }

HOSTCUDA_REDUCE(__reduce_add_sync, static_cast<T>(static_cast<unsigned>(a) + b), int, unsigned)
HOSTCUDA_REDUCE(__reduce_min_sync, a < b ? a : b, int, unsigned)
HOSTCUDA_REDUCE(__reduce_max_sync, a > b ? a : b, int, unsigned)
HOSTCUDA_REDUCE(__reduce_and_sync, a & b, unsigned)
HOSTCUDA_REDUCE(__reduce_or_sync, a | b, unsigned)
HOSTCUDA_REDUCE(__reduce_xor_sync, a ^ b, unsigned)

// Segments of `width` lanes, a power of two, as CUDA cuts a warp.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, HOSTCUDA_PLACE) {
  const unsigned first = hostcuda::lane() & ~(width - 1);
  return hostcuda::shuffle(HOSTCUDA_SITE, mask, value, first | (source & (width - 1)), true);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, HOSTCUDA_PLACE) {
  const unsigned lane = hostcuda::lane();
  const bool inside = (lane & (width - 1)) >= delta;
  return hostcuda::shuffle(HOSTCUDA_SITE, mask, value, lane - delta, inside);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, HOSTCUDA_PLACE) {
  const unsigned lane = hostcuda::lane();
  const bool inside = (lane & (width - 1)) + delta < static_cast<unsigned>(width);
  return hostcuda::shuffle(HOSTCUDA_SITE, mask, value, lane + delta, inside);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = warpSize, HOSTCUDA_PLACE) {
  const unsigned lane = hostcuda::lane();
  const unsigned source = lane ^ with;
  const bool inside = source < (lane & ~(width - 1)) + width;  // earlier segments may be read
  return hostcuda::shuffle(HOSTCUDA_SITE, mask, value, source, inside);
}
