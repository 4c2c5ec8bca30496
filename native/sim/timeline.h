// Virtual time: events in the order of their instants, and of their posting where those are equal.
// The only clock of sim/. Single-threaded, deterministic. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace hoplite::sim {

class Timeline {
 public:
  [[nodiscard]] Instant now() const { return now_; }

  // Runs `what` at `when`, or now where that has passed, behind all that was posted for the same
  // instant.
  void at(Instant when, std::function<void()> what) {
    events_.push_back({std::max(when, now_), next_++, std::move(what)});
    std::push_heap(events_.begin(), events_.end(), Later{});
  }
  void after(Duration delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }

  [[nodiscard]] std::optional<Instant> next_at() const {
    if (events_.empty()) return std::nullopt;
    return events_.front().when;
  }

  // Runs one event. REQUIRES: next_at() has a value.
  void step() {
    std::pop_heap(events_.begin(), events_.end(), Later{});
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.when;
    event.what();
  }

  // Lets time pass up to `when`. REQUIRES: no event is due before.
  void advance(Instant when) { now_ = std::max(now_, when); }

 private:
  struct Event {
    Instant when;
    std::uint64_t order = 0;
    std::function<void()> what;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };
  Instant now_{1};  // not zero: an Instant that was never set shows
  std::uint64_t next_ = 0;
  std::vector<Event> events_;
};

}  // namespace hoplite::sim
