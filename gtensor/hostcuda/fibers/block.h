// The state of each thread of a running block: running, waiting at which barrier or warp operation,
// or ended. Both machines (OS threads, fibers) use it.
#pragma once

#include <memory>
#include <vector>

#include "device.h"

namespace hostcuda {

struct Waiter {
  enum State { running, at_block, at_warp, ended } state;
  Site site;
  unsigned mask;             // of a warp operation
  unsigned long long value;  // its argument
  std::shared_ptr<const Lanes> lanes;  // the result of its last warp operation
  int votes;                           // the result of its last barrier
};

// Not synchronized: a machine with OS threads holds a lock. Threads that a call releases are in the
// state `running` when it returns, and `released` has their numbers.
class Block {
 public:
  std::vector<unsigned> released;

  // Starts a new block: all threads are in the state `running`.
  void reset(unsigned count);

  const Waiter &operator[](unsigned thread) const { return threads_[thread]; }

  void come_to_block(unsigned thread, const Site &site, bool vote) {
    come(thread, Waiter::at_block, site, 0, vote);
  }

  void come_to_warp(unsigned thread, const Site &site, unsigned mask, unsigned long long value);

  void end(unsigned thread);

  unsigned living_lanes(unsigned thread) const { return warps_[thread / warpSize].living; }

 private:
  struct Warp {
    unsigned living;   // lanes that have not ended
    unsigned waiting;  // lanes at a warp operation
  };

  std::vector<Waiter> threads_;
  std::vector<Warp> warps_;
  unsigned running_;

  void come(unsigned thread, Waiter::State state, const Site &site, unsigned mask,
            unsigned long long value);
  void try_warp(unsigned thread);
  void try_block();
  // `thread` waits at a warp operation: the first lane of its mask that is not there, or null.
  const Waiter *lacking(unsigned thread) const;
  [[noreturn]] void explain() const;
};

}  // namespace hostcuda
