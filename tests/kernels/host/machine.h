// What a machine is to the server: it runs launches.
#pragma once

#include <random>
#include <vector>

#include "cuda_host.h"

namespace gt_host {

// Copies of the kernels' text that a machine wants; as many blocks run at the same time.
extern const unsigned copies;

struct Launch {
  std::vector<Invoke> kernels;  // one of each copy
  const Argument *arguments;
  unsigned long long schedule;
  std::size_t shared_bytes;

  unsigned threads() const { return blockDim.x * blockDim.y * blockDim.z; }

  // Numbers below `count` in the order of the schedule: 0 first to last, 1 last to first, any other
  // number is the seed of random orders.
  std::vector<unsigned> order(unsigned count, std::mt19937_64 &random) const {
    std::vector<unsigned> numbers(count);
    for (unsigned at = 0; at < count; ++at) numbers[at] = schedule == 1 ? count - 1 - at : at;
    if (schedule > 1) std::shuffle(numbers.begin(), numbers.end(), random);
    return numbers;
  }
};

void run(const Launch &launch);  // gridDim and blockDim are set

inline void be_block(unsigned block) {
  blockIdx.x = block % gridDim.x;
  blockIdx.y = block / gridDim.x % gridDim.y;
  blockIdx.z = block / gridDim.x / gridDim.y;
}

inline void be_thread(unsigned thread) {
  threadIdx.x = thread % blockDim.x;
  threadIdx.y = thread / blockDim.x % blockDim.y;
  threadIdx.z = thread / blockDim.x / blockDim.y;
}

}  // namespace gt_host
