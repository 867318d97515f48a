// CUB's BlockLoad, as far as CuPy's generated reductions use it.
#pragma once

namespace cub {

enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT,
  BLOCK_LOAD_STRIPED,
  BLOCK_LOAD_VECTORIZE,
  BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};

template <typename T, int BLOCK_DIM_X, int items, BlockLoadAlgorithm ALGORITHM = BLOCK_LOAD_DIRECT>
class BlockLoad {
  static_assert(ALGORITHM == BLOCK_LOAD_DIRECT, "the host device has BLOCK_LOAD_DIRECT only");

 public:
  struct TempStorage {};

  explicit BlockLoad(TempStorage &) {}

  // Each thread's items lie side by side; those from `valid` on are left as they are.
  template <typename From>
  void Load(From from, T (&to)[items], int valid = BLOCK_DIM_X * items) {
    for (int item = 0; item < items; ++item) {
      const int at = hostcuda::thread_number() * items + item;
      if (at < valid) to[item] = from[at];
    }
  }

  template <typename From, typename Default>
  void Load(From from, T (&to)[items], int valid, Default value) {
    for (T &item : to) item = value;
    Load(from, to, valid);
  }
};

}  // namespace cub
