// CUB's BlockReduce, as far as CuPy's generated reductions use it: CUB's own is inline PTX.
#pragma once

namespace cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS
};

template <typename T, int BLOCK_DIM_X,
          BlockReduceAlgorithm ALGORITHM = BLOCK_REDUCE_WARP_REDUCTIONS, int BLOCK_DIM_Y = 1,
          int BLOCK_DIM_Z = 1>
class BlockReduce {
  static const int threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

 public:
  struct TempStorage {
    alignas(T) char bytes[threads * sizeof(T)];
  };

  explicit BlockReduce(TempStorage &storage) : cells_(reinterpret_cast<T *>(storage.bytes)) {}

  // As in CUB the result is thread 0's; the other threads get their own value.
  template <typename Combine>
  T Reduce(T value, Combine combine, int valid = threads) {
    const int thread = hostcuda::thread_number();
    memcpy(static_cast<void *>(cells_ + thread), &value, sizeof value);
    __syncthreads();
    return thread == 0 ? tree(cells_, valid, combine) : value;
  }

  template <int items, typename Combine>
  T Reduce(T (&values)[items], Combine combine) {
    T value = values[0];
    for (int item = 1; item < items; ++item) value = combine(value, values[item]);
    return Reduce(value, combine);
  }

  T Sum(T value, int valid = threads) { return Reduce(value, Plus(), valid); }

  template <int items>
  T Sum(T (&values)[items]) {
    return Reduce(values, Plus());
  }

 private:
  T *cells_;

  struct Plus {
    T operator()(const T &a, const T &b) const { return a + b; }
  };

  template <typename Combine>
  static T tree(const T *cells, int count, Combine combine) {
    if (count == 1) return cells[0];
    const int half = (count + 1) / 2;
    return combine(tree(cells, half, combine), tree(cells + half, count - half, combine));
  }
};

}  // namespace cub
