// SPDX-License-Identifier: Apache-2.0
// Virtual time. Events run in the order of their instants, and of their posting at equal instants.
// For sim/runs/explore.h they run in any order that they could come in.
// The only clock of sim/. Single-threaded, deterministic.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace hoplite::sim {

// The kind of an event and its two ends. Events of one stream come in the order of their posting.
// Events of different streams come in any order when all orders are tried.
struct Stream {
  enum class Kind : std::uint8_t {
    kTimer,   // when its time has come and nothing is under way
    kAtOnce,  // follows from another event: there is no order to try
    kControl,
    kBulk,
    kNotice,   // of the network to `to`, about `from`
    kCommand,  // of a client
    kReport,   // to the view's keeper
    kView,
  };
  Kind kind = Kind::kTimer;
  std::uint64_t from = 0;
  std::uint64_t to = 0;  // whose state the event changes
  auto operator<=>(const Stream&) const = default;
};

class Timeline {
 public:
  [[nodiscard]] Instant now() const { return now_; }

  // Runs `what` at `when`, or now where that has passed, behind all that was posted for the same
  // instant.
  void at(Instant when, std::function<void()> what, Stream stream = {});
  void after(Duration delay, std::function<void()> what, Stream stream = {}) {
    at(now_ + delay, std::move(what), stream);
  }

  // ---- in the order of time ----
  [[nodiscard]] std::optional<Instant> next_at() const;
  // Runs one event. REQUIRES: next_at() has a value.
  void step();
  // Lets time pass up to `when`. REQUIRES: no event is due before.
  void advance(Instant when) { now_ = std::max(now_, when); }

  // ---- in any order. Time stands still but for timers, so that an order is all there is. ----
  // The streams that have an event, sorted; none where only timers are left. Runs all kAtOnce.
  [[nodiscard]] std::vector<Stream> streams_in_flight();
  // Runs the first event of a stream; of the timers the next one that is due.
  void step(const Stream& stream);

 private:
  struct Event {
    Instant when;
    std::uint64_t order = 0;
    Stream stream;
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
