// One launch over the elements of many tensors: the table of tensors is the kernel's argument.
//
// Layout: contiguous arrays of equal length per tensor, one in each position (parameter, gradient,
// states). A block takes gt_chunk elements of one tensor, which it finds by its number; 16 bytes of
// the widest type at a time where all pointers of the tensor are aligned, else element by element.
// Traffic per element: as the kernel says that includes this.
#pragma once

#include "half.cuh"
#include "reduce.cuh"

constexpr gt_index gt_chunk = 8192;  // elements of a block; `CHUNK` in backend/multi_tensor.py

// Passed by value, so it takes no copy to the device. It is filled by backend/multi_tensor.py, whose
// fields are in this order.
template <int positions, int numbers, int tensors, int rows>
struct gt_table {
  unsigned *ticket;            // 0 between launches; null where nothing is counted
  const float *skip;           // if not null and *skip is not 0, the launch writes nothing
  const double *live[rows];    // the numbers of a row in device memory; null: `own` has them
  double own[rows][numbers];
  long long *steps[tensors];   // per tensor, how many launches have updated it
  gt_index counts[tensors];    // elements
  void *at[positions][tensors];
  int first[tensors];          // number of the tensor's first block
  int row[tensors];            // its row of numbers
  int size;                    // tensors in the table
};

template <typename Table>
__device__ inline bool gt_skips(const Table &table) {
  return table.skip != nullptr && *table.skip != 0.0f;
}

// The tensor that this block belongs to: the last whose first block is not behind it.
template <typename Table>
__device__ inline int gt_tensor_of_block(const Table &table) {
  int low = 0, high = table.size;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.first[middle] <= static_cast<int>(blockIdx.x))
      low = middle;
    else
      high = middle;
  }
  return low;
}

// Number k of a tensor's row.
template <typename Table>
__device__ inline double gt_option(const Table &table, int tensor, int k) {
  const int row = table.row[tensor];
  const double *live = table.live[row];
  return live != nullptr ? live[k] : table.own[row][k];
}

// The largest number of T less some units in the last place (`largest` of ops/define/updates.py).
template <typename T>
__device__ inline double gt_largest();
template <>
__device__ inline double gt_largest<__half>() {
  return 65504.0 * (1 - 4 / 1024.0);
}
template <>
__device__ inline double gt_largest<__nv_bfloat16>() {
  return 3.3895313892515355e38 * (1 - 4 / 128.0);
}
template <>
__device__ inline double gt_largest<float>() {
  return 3.4028234663852886e38 * (1 - 4 / 8388608.0);
}
template <>
__device__ inline double gt_largest<double>() {
  return 1.7976931348623157e308 * (1 - 4 / 4503599627370496.0);
}

// The elements of this block, from `begin` up to `end`.
struct gt_range {
  gt_index begin, end;
};

template <typename Table>
__device__ inline gt_range gt_range_of_block(const Table &table, int tensor) {
  const gt_index count = table.counts[tensor];
  const gt_index begin = (static_cast<gt_index>(blockIdx.x) - table.first[tensor]) * gt_chunk;
  return {begin < count ? begin : count, begin + gt_chunk < count ? begin + gt_chunk : count};
}

// The last block to end counts one step of every tensor. Every thread must call it.
template <typename Table>
__device__ inline void gt_count_steps(const Table &table) {
  if (table.ticket == nullptr || !gt_last_block(table.ticket, gridDim.x)) return;
  for (int tensor = threadIdx.x; tensor < table.size; tensor += blockDim.x)
    *table.steps[tensor] += 1;
  if (threadIdx.x == 0) *table.ticket = 0;
}

// ------------------------------------------------------------------------------------------- packs

template <typename... T>
constexpr int gt_widest() {
  int widest = 0;
  for (const int size : {static_cast<int>(sizeof(T))...}) widest = size > widest ? size : widest;
  return widest;
}

template <int bytes>
struct gt_word_of;
template <>
struct gt_word_of<16> {
  typedef uint4 type;
};
template <>
struct gt_word_of<8> {
  typedef uint2 type;
};
template <>
struct gt_word_of<4> {
  typedef unsigned type;
};

// W elements, read and written at once.
template <typename T, int W>
struct gt_few {
  typedef typename gt_word_of<sizeof(T) * W>::type word;
  T values[W];
  __device__ inline void read(const T *from) {
    const word bits = *reinterpret_cast<const word *>(from);
    memcpy(static_cast<void *>(values), &bits, sizeof bits);
  }
  __device__ inline void write(T *to) const {
    word bits;
    memcpy(&bits, values, sizeof bits);
    *reinterpret_cast<word *>(to) = bits;
  }
};

// Whether W elements from here on are read at once.
template <int W, typename T>
__device__ inline bool gt_aligned(const T *at) {
  return reinterpret_cast<size_t>(at) % (sizeof(T) * W) == 0;
}
