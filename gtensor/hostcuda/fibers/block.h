// Who waits where in a running block, and who may go on: shared by the machines.
#pragma once

#include <memory>
#include <vector>

#include "device.h"

namespace hostcuda {

struct Waiter {
  enum State { running, at_block, at_warp, ended } state;
  Site site;
  unsigned mask;             // of a warp operation
  unsigned long long value;  // what it hands in
  std::shared_ptr<const Lanes> lanes;  // what the last warp operation gave it
  int votes;                           // what the last barrier gave it
};

// Not synchronized: a machine with OS threads holds a lock. Threads that a call lets go on are
// running when it returns, and `released` names them.
class Block {
 public:
  std::vector<unsigned> released;

  // A new block, all of whose threads run.
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
  // The first thread that those who wait with `thread` for the lanes of its mask still lack.
  const Waiter *lacking(unsigned thread) const;
  [[noreturn]] void explain() const;
};

}  // namespace hostcuda
