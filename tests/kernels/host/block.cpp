#include "block.h"

#include <string>

namespace gt_host {
namespace {

bool same(const Site &one, const Site &other) {
  return one.line == other.line && strcmp(one.file, other.file) == 0 &&
         strcmp(one.name, other.name) == 0;
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

void Block::come_to_warp(unsigned thread, const Site &site, unsigned mask,
                         unsigned long long value) {
  if (!(mask >> thread % warpSize & 1))
    fail("%s at %s:%d: lane %u is not in its own mask %08x", site.name, site.file, site.line,
         thread % warpSize, mask);
  come(thread, Waiter::at_warp, site, mask, value);
}

void Block::come(unsigned thread, Waiter::State state, const Site &site, unsigned mask,
                 unsigned long long value) {
  Waiter &self = threads[thread];
  self.state = state;
  self.site = site;
  self.mask = mask;
  self.value = value;
  --running_;
  released.clear();
  if (state == Waiter::at_warp) try_warp(thread);
  if (running_ == 0) try_block();
}

void Block::end(unsigned thread) {
  threads[thread].state = Waiter::ended;
  --running_;
  released.clear();
  // Lanes that have ended are not waited for.
  const unsigned first = thread / warpSize * warpSize;
  for (unsigned at = first; at < first + warpSize && at < threads.size(); ++at)
    if (threads[at].state == Waiter::at_warp) try_warp(at);
  if (running_ == 0) try_block();
}

unsigned Block::living_lanes(unsigned thread) const {
  const unsigned first = thread / warpSize * warpSize;
  unsigned lanes = 0;
  for (unsigned at = 0; at < warpSize && first + at < threads.size(); ++at)
    if (threads[first + at].state != Waiter::ended) lanes |= 1u << at;
  return lanes;
}

const Waiter *Block::lacking(unsigned thread) const {
  const Waiter &self = threads[thread];
  const unsigned first = thread / warpSize * warpSize;
  const unsigned wanted = self.mask & living_lanes(thread);
  for (unsigned at = 0; at < warpSize; ++at) {
    if (!(wanted >> at & 1)) continue;
    const Waiter &other = threads[first + at];
    if (other.state != Waiter::at_warp || other.mask != self.mask || !same(other.site, self.site))
      return &other;
  }
  return nullptr;
}

void Block::try_warp(unsigned thread) {
  if (lacking(thread)) return;
  const unsigned first = thread / warpSize * warpSize;
  Lanes lanes = {threads[thread].mask & living_lanes(thread), {}};
  for (unsigned at = 0; at < warpSize; ++at)
    if (lanes.present >> at & 1) lanes.values[at] = threads[first + at].value;
  for (unsigned at = 0; at < warpSize; ++at) {
    if (!(lanes.present >> at & 1)) continue;
    threads[first + at].lanes = lanes;
    threads[first + at].state = Waiter::running;
    released.push_back(first + at);
    ++running_;
  }
}

// Nobody runs: all have ended, or all wait at one barrier, or the kernel is wrong.
void Block::try_block() {
  std::size_t ended = 0;
  int votes = 0;
  for (const Waiter &waiter : threads) {
    if (waiter.state == Waiter::ended) ++ended;
    votes += waiter.value != 0;
  }
  if (ended == threads.size()) return;
  for (const Waiter &waiter : threads)
    if (waiter.state != Waiter::at_block || !same(waiter.site, threads[0].site)) explain();
  for (unsigned thread = 0; thread < threads.size(); ++thread) {
    threads[thread].votes = votes;
    threads[thread].state = Waiter::running;
    released.push_back(thread);
  }
  running_ = threads.size();
}

void Block::explain() const {
  for (unsigned thread = 0; thread < threads.size(); ++thread)
    if (threads[thread].state == Waiter::at_warp) {
      const Waiter *other = lacking(thread);
      fail("divergent shuffle or vote: thread %u %s, and thread %zu %s", thread,
           text(threads[thread]).c_str(), other - threads.data(), text(*other).c_str());
    }
  std::size_t ended = 0;
  const Waiter *first = nullptr;
  for (const Waiter &waiter : threads) {
    if (waiter.state == Waiter::ended)
      ++ended;
    else if (!first)
      first = &waiter;
    else if (!same(first->site, waiter.site))
      fail("divergent barrier: a thread of the block %s and another one %s", text(*first).c_str(),
           text(waiter).c_str());
  }
  fail("divergent barrier: %zu threads wait at %s:%d and %zu have ended", threads.size() - ended,
       first->site.file, first->site.line, ended);
}

}  // namespace gt_host
