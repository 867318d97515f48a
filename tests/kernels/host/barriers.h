// Where CUDA threads wait for each other: __syncthreads and its votes, __syncwarp, warp shuffles
// and warp votes. The place in the kernel's text comes along through default arguments.
#pragma once

constexpr int warpSize = 32;

namespace gt_host {

// A place where a thread waits.
struct Site {
  const char *name, *file;
  int line;
};

// What a warp operation hands each of its lanes.
struct Lanes {
  unsigned present;  // the lanes that took part
  unsigned long long values[warpSize];
};

// Waits for all threads of the block; the number of those whose `vote` is true.
int meet_block(const Site &site, bool vote);

// Waits for the lanes of `mask` that have not ended, hands `value` in. Orders memory if `fence`.
const Lanes &meet_warp(const Site &site, unsigned mask, unsigned long long value, bool fence);

// The lanes of this thread's warp that have not ended.
unsigned living_lanes();

inline unsigned thread_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

inline unsigned lane() { return thread_number() % warpSize; }

// The value of lane `source`; `source` beyond the segment means one's own.
template <typename T>
T shuffle(const Site &site, unsigned mask, T value, unsigned source, bool inside) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "no type to shuffle");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof value);
  const Lanes &lanes = meet_warp(site, mask, bits, false);
  if (!inside) source = lane();
  if (!(lanes.present >> source & 1))
    fail("%s at %s:%d: lane %u reads lane %u, which takes no part", site.name, site.file, site.line,
         lane(), source);
  memcpy(&value, &lanes.values[source], sizeof value);
  return value;
}

inline unsigned ballot(const Site &site, unsigned mask, int predicate) {
  const Lanes &lanes = meet_warp(site, mask, predicate != 0, false);
  unsigned votes = 0;
  for (int at = 0; at < warpSize; ++at)
    if (lanes.present >> at & 1) votes |= static_cast<unsigned>(lanes.values[at]) << at;
  return votes;
}

}  // namespace gt_host

#define GT_HOST_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define GT_HOST_SITE \
  { __func__, file, line }

inline void __syncthreads(GT_HOST_PLACE) { gt_host::meet_block(GT_HOST_SITE, false); }

inline int __syncthreads_count(int predicate, GT_HOST_PLACE) {
  return gt_host::meet_block(GT_HOST_SITE, predicate != 0);
}

inline int __syncthreads_or(int predicate, GT_HOST_PLACE) {
  return gt_host::meet_block(GT_HOST_SITE, predicate != 0) != 0;
}

inline int __syncthreads_and(int predicate, GT_HOST_PLACE) {
  return gt_host::meet_block(GT_HOST_SITE, predicate == 0) == 0;
}

inline void __syncwarp(unsigned mask = 0xffffffff, GT_HOST_PLACE) {
  gt_host::meet_warp(GT_HOST_SITE, mask, 0, true);
}

inline unsigned __activemask() { return gt_host::living_lanes(); }

inline unsigned __ballot_sync(unsigned mask, int predicate, GT_HOST_PLACE) {
  return gt_host::ballot(GT_HOST_SITE, mask, predicate);
}

inline int __any_sync(unsigned mask, int predicate, GT_HOST_PLACE) {
  return gt_host::ballot(GT_HOST_SITE, mask, predicate) != 0;
}

inline int __all_sync(unsigned mask, int predicate, GT_HOST_PLACE) {
  return gt_host::ballot(GT_HOST_SITE, mask, !predicate) == 0;
}

// Segments of `width` lanes, a power of two, as CUDA cuts a warp.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, GT_HOST_PLACE) {
  const unsigned first = gt_host::lane() & ~(width - 1);
  return gt_host::shuffle(GT_HOST_SITE, mask, value, first | (source & (width - 1)), true);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, GT_HOST_PLACE) {
  const unsigned lane = gt_host::lane();
  const bool inside = (lane & (width - 1)) >= delta;
  return gt_host::shuffle(GT_HOST_SITE, mask, value, lane - delta, inside);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, GT_HOST_PLACE) {
  const unsigned lane = gt_host::lane();
  const bool inside = (lane & (width - 1)) + delta < static_cast<unsigned>(width);
  return gt_host::shuffle(GT_HOST_SITE, mask, value, lane + delta, inside);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = warpSize, GT_HOST_PLACE) {
  const unsigned lane = gt_host::lane();
  const unsigned source = lane ^ with;
  const bool inside = source < (lane & ~(width - 1)) + width;  // earlier segments may be read
  return gt_host::shuffle(GT_HOST_SITE, mask, value, source, inside);
}
