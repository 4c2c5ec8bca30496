// Sees peers die: the reactor's end of the liveness thread, which owns one connection per rail to
// each peer, in a descriptor table of its own (close_range with CLOSE_RANGE_UNSHARE). Linux frees
// the memory of a killed process before it closes the files that its threads share, which takes a
// second at 3 GB; the table of this one thread is closed at once. Nothing else may go wrong there:
// it takes no signal, no lock and no Python, and a forked child has neither it nor its descriptors.
//  - Connections are dialled, accepted and proven by Links, in the main table, and handed over as
//    descriptors on a Unix socket, with their TLS sessions; the events come back on the same
//    socket. No memory is shared.
//  - Destroyed without Goodbye (forget) it looks to the peers like a death, as it should.
// Used by Links only, on the reactor thread. Needs Linux 5.9. Design decision 7.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "io/liveness_rules.h"
#include "io/stream.h"

namespace hoplite {

// What the thread is told, each with at most one descriptor, and its TLS session where it has one:
// whoever has the order owns that.
struct LivenessOrder {
  enum class Kind : std::uint8_t { kWatch, kForget };
  Kind kind = Kind::kForget;
  NodeId node;
  Incarnation incarnation;
  RailId rail;
  TlsSession* tls = nullptr;
};

class Liveness {
 public:
  // Starts the thread and waits until it has its own table.
  [[nodiscard]] static Result<Liveness> start(const LivenessLimits& limits);
  ~Liveness();
  Liveness(Liveness&&) noexcept = default;
  Liveness& operator=(Liveness&&) = delete;

  // Takes over an open, proven connection of nothing but Pulse and Goodbye; one that was there for
  // this rail is closed.
  void watch(NodeId node, Incarnation incarnation, RailId rail, Stream connection);
  // That life of it and older ones: says Goodbye on what is open.
  void forget(NodeId node, Incarnation upto);
  // Hands over what the thread had no time to take; false: something is still left, ask again.
  [[nodiscard]] bool flush();

  [[nodiscard]] int fd() const { return orders_.value(); }  // readable: there are events
  [[nodiscard]] std::vector<LivenessEvent> take_events();

 private:
  struct Waiting {
    LivenessOrder order;
    Stream connection;
  };
  explicit Liveness(UniqueFd orders) : orders_(std::move(orders)) {}
  void say(const LivenessOrder& order, Stream connection);

  UniqueFd orders_;
  std::deque<Waiting> waiting_;  // bounded by the links: an order per rail and change of it
  std::thread thread_;
};

}  // namespace hoplite
