// Several elements at once: 16 bytes where pointers allow it.
//
// Layout: contiguous; gt_gather and gt_scatter take any stride. Traffic: that of the caller.
#pragma once

#include "number.cuh"

// W elements, read and written at once.
template <typename T, int W>
struct gt_pack {
  T values[W];
};

// Elements of T in 16 bytes.
template <typename T>
constexpr int gt_width = 16 / sizeof(T);

template <int number>
struct gt_constant {
  static constexpr int value = number;
};

__device__ inline size_t gt_address(const void *pointer) {
  return reinterpret_cast<size_t>(pointer);
}

// The type of one access to so many bytes.
template <int bytes>
struct gt_access;

template <>
struct gt_access<4> {
  typedef unsigned type;
};

template <>
struct gt_access<8> {
  typedef uint2 type;
};

template <>
struct gt_access<16> {
  typedef uint4 type;
};

// W elements at an address that is a multiple of their size.
template <int W, typename T>
__device__ inline gt_pack<T, W> gt_load(const T *from) {
  gt_pack<T, W> pack;
  if constexpr (W == 1) {
    pack.values[0] = *from;
  } else {
    typedef typename gt_access<sizeof pack>::type bits_type;
    const bits_type bits = *reinterpret_cast<const bits_type *>(from);
    memcpy(static_cast<void *>(&pack), &bits, sizeof pack);
  }
  return pack;
}

template <int W, typename T>
__device__ inline void gt_store(T *to, const gt_pack<T, W> &pack) {
  if constexpr (W == 1) {
    *to = pack.values[0];
  } else {
    typename gt_access<sizeof pack>::type bits;
    memcpy(&bits, &pack, sizeof bits);
    *reinterpret_cast<decltype(bits) *>(to) = bits;
  }
}

// Calls visit(W) with the constant W, the elements of a pack: gt_width if rows of `row` elements
// are made of such packs and the pointers, whose bits are in `address`, are aligned; else 1.
template <typename T, typename Visit>
__device__ inline void gt_by_width(gt_index row, size_t address, Visit visit) {
  if (row % gt_width<T> == 0 && address % 16 == 0)
    visit(gt_constant<gt_width<T>>());
  else
    visit(gt_constant<1>());
}

// W elements that are `step` apart, at once where they lie so; zeros for those from `count` on.
template <int W, typename T>
__device__ inline gt_pack<T, W> gt_gather(const T *from, gt_index step, int count) {
  if (count >= W && step == 1 && gt_address(from) % sizeof(gt_pack<T, W>) == 0)
    return gt_load<W>(from);
  gt_pack<T, W> pack;
#pragma unroll
  for (int w = 0; w < W; ++w, from += step)
    pack.values[w] = w < count ? *from : gt_down<T>(gt_float<T>(0));
  return pack;
}

// An intrinsic, because compilers split an assignment into single elements here.
template <int W, typename T>
__device__ inline void gt_scatter(T *to, gt_index step, int count, const gt_pack<T, W> &pack) {
  if constexpr (W > 1) {
    if (count >= W && step == 1 && gt_address(to) % sizeof pack == 0) {
      typename gt_access<sizeof pack>::type bits;
      memcpy(&bits, &pack, sizeof bits);
      __stwb(reinterpret_cast<decltype(bits) *>(to), bits);
      return;
    }
  }
#pragma unroll
  for (int w = 0; w < W; ++w, to += step)
    if (w < count) *to = pack.values[w];
}
