#include "block.h"

#include <string>

namespace hostcuda {
namespace {

// A thread that has ended is not waited for at a barrier, as since compute capability 7.0. gtensor's
// own kernels do without that.
#ifdef HOSTCUDA_ALL_COME
const bool all_come = true;
#else
const bool all_come = false;
#endif

bool same(const char *one, const char *other) { return one == other || strcmp(one, other) == 0; }

bool same(const Site &one, const Site &other) {
  return one.line == other.line && same(one.file, other.file) && same(one.name, other.name);
}

std::string text(const Waiter &waiter) {
  if (waiter.state == Waiter::ended) return "has ended";
  std::string result = std::string("waits in ") + waiter.site.name + " at " + waiter.site.file +
                       ":" + std::to_string(waiter.site.line);
  char lanes[32];
  snprintf(lanes, sizeof lanes, " for lanes %08x", waiter.mask);
  return waiter.state == Waiter::at_warp ? result + lanes : result;
}

}  // namespace

void Block::reset(unsigned count) {
  threads_.resize(count);
  for (Waiter &waiter : threads_) waiter = Waiter();
  warps_.resize((count + warpSize - 1) / warpSize);
  for (Warp &warp : warps_) warp = {~0u, 0};
  if (count % warpSize) warps_.back().living = (1u << count % warpSize) - 1;
  running_ = count;
  released.clear();
}

void Block::come_to_warp(unsigned thread, const Site &site, unsigned mask,
                         unsigned long long value) {
  if (!(mask >> thread % warpSize & 1))
    fail(HOSTCUDA_LAUNCH_FAILURE, "%s at %s:%d: lane %u is not in its own mask %08x", site.name,
         site.file, site.line, thread % warpSize, mask);
  come(thread, Waiter::at_warp, site, mask, value);
}

void Block::come(unsigned thread, Waiter::State state, const Site &site, unsigned mask,
                 unsigned long long value) {
  Waiter &self = threads_[thread];
  self.state = state;
  self.site = site;
  self.mask = mask;
  self.value = value;
  --running_;
  released.clear();
  if (state == Waiter::at_warp) {
    warps_[thread / warpSize].waiting |= 1u << thread % warpSize;
    try_warp(thread);
  }
  if (running_ == 0) try_block();
}

void Block::end(unsigned thread) {
  threads_[thread].state = Waiter::ended;
  --running_;
  released.clear();
  // Lanes that have ended are not waited for.
  Warp &warp = warps_[thread / warpSize];
  warp.living &= ~(1u << thread % warpSize);
  for (unsigned lane = 0; lane < warpSize && warp.waiting; ++lane)
    if (warp.waiting >> lane & 1) try_warp(thread / warpSize * warpSize + lane);
  if (running_ == 0) try_block();
}

const Waiter *Block::lacking(unsigned thread) const {
  const Waiter &self = threads_[thread];
  const unsigned first = thread / warpSize * warpSize;
  const unsigned wanted = self.mask & living_lanes(thread);
  for (unsigned at = 0; at < warpSize; ++at) {
    if (!(wanted >> at & 1)) continue;
    const Waiter &other = threads_[first + at];
    if (other.state != Waiter::at_warp || other.mask != self.mask || !same(other.site, self.site))
      return &other;
  }
  return nullptr;
}

void Block::try_warp(unsigned thread) {
  Warp &warp = warps_[thread / warpSize];
  const unsigned present = threads_[thread].mask & warp.living;
  if (present & ~warp.waiting || lacking(thread)) return;
  const unsigned first = thread / warpSize * warpSize;
  const auto lanes = std::make_shared<Lanes>();
  lanes->present = present;
  for (unsigned at = 0; at < warpSize; ++at)
    if (present >> at & 1) lanes->values[at] = threads_[first + at].value;
  for (unsigned at = 0; at < warpSize; ++at) {
    if (!(present >> at & 1)) continue;
    threads_[first + at].lanes = lanes;
    threads_[first + at].state = Waiter::running;
    released.push_back(first + at);
    ++running_;
  }
  warp.waiting &= ~present;
}

// Called when no thread runs: all have ended, or all wait at one barrier, or the kernel is wrong.
void Block::try_block() {
  const Waiter *first = nullptr;
  int votes = 0;
  bool ended = false;
  for (const Waiter &waiter : threads_) {
    if (waiter.state == Waiter::ended) {
      ended = true;
      continue;
    }
    if (!first) first = &waiter;
    if (waiter.state != Waiter::at_block || !same(waiter.site, first->site)) explain();
    votes += waiter.value != 0;
  }
  if (!first) return;
  if (ended && all_come) explain();
  for (unsigned thread = 0; thread < threads_.size(); ++thread) {
    if (threads_[thread].state == Waiter::ended) continue;
    threads_[thread].votes = votes;
    threads_[thread].state = Waiter::running;
    released.push_back(thread);
    ++running_;
  }
}

void Block::explain() const {
  for (unsigned thread = 0; thread < threads_.size(); ++thread)
    if (threads_[thread].state == Waiter::at_warp) {
      const Waiter *other = lacking(thread);
      fail(HOSTCUDA_LAUNCH_FAILURE, "divergent shuffle or vote: thread %u %s, and thread %zu %s",
           thread, text(threads_[thread]).c_str(), other - threads_.data(), text(*other).c_str());
    }
  std::size_t ended = 0;
  const Waiter *first = nullptr;
  for (const Waiter &waiter : threads_) {
    if (waiter.state == Waiter::ended)
      ++ended;
    else if (!first)
      first = &waiter;
    else if (!same(first->site, waiter.site))
      fail(HOSTCUDA_LAUNCH_FAILURE, "divergent barrier: a thread of the block %s and another one %s",
           text(*first).c_str(), text(waiter).c_str());
  }
  fail(HOSTCUDA_LAUNCH_FAILURE, "divergent barrier: %zu threads wait at %s:%d and %zu have ended",
       threads_.size() - ended, first->site.file, first->site.line, ended);
}

}  // namespace hostcuda
