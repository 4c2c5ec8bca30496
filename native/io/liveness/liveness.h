// SPDX-License-Identifier: Apache-2.0
// Detects the death of peers: the reactor's end of the liveness thread. That thread owns one
// connection per rail to each peer, in a descriptor table of its own (close_range with
// CLOSE_RANGE_UNSHARE). Linux frees the memory of a killed process before it closes the files that
// its threads share, which takes a second at 3 GB. It closes the table of this one thread at once.
// The thread takes no signal, no lock and no Python; a forked child has neither the thread nor its
// descriptors.
//  - Links dials, accepts and proves the connections in the main table. It hands them over as
//    descriptors on a Unix socket, with their TLS sessions. Events come back on the same socket. No
//    memory is shared.
//  - Peers see a death, as they should, when a Liveness is destroyed without forget (Goodbye).
// Used by Links only, on the reactor thread. Needs Linux 5.9. Design decision 7.
#pragma once

#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "io/liveness/liveness_rules.h"
#include "io/sockets/stream.h"

namespace hoplite {

// One order to the thread, with at most one descriptor and its TLS session, if it has one. The end
// that holds the order owns that session.
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

  // Takes over an open, proven connection that carries only Pulse and Goodbye. Closes an older
  // connection of the same rail.
  void watch(NodeId node, Incarnation incarnation, RailId rail, Stream connection);
  // Says Goodbye on the open connections of this incarnation and of older ones, and forgets them.
  void forget(NodeId node, Incarnation upto);
  // Hands over the orders that wait. Returns false if some still wait; the caller then calls again.
  [[nodiscard]] bool flush();

  [[nodiscard]] int fd() const { return orders_.value(); }  // readable: there are events
  [[nodiscard]] std::vector<LivenessEvent> take_events();

 private:
  struct Waiting {
    LivenessOrder order;
    Stream connection;
  };
  explicit Liveness(UniqueFd orders) : orders_(std::move(orders)) {}
  void queue_order(const LivenessOrder& order, Stream connection);

  UniqueFd orders_;
  std::deque<Waiting> waiting_;  // at most one order per rail and change of it
  std::thread thread_;
};

}  // namespace hoplite
