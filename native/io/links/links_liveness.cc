// SPDX-License-Identifier: Apache-2.0
// How Links uses the liveness thread: hands connections over to it and handles its events.
#include "base/check.h"
#include "io/links/links.h"

namespace hoplite {

// The peer has proven itself; from here on the connection is in the thread's table alone.
void Links::hand_over(std::uint64_t token, Connection& connection, Instant now) {
  const NodeId node = connection.peer;
  const RailId rail = connection.rail;
  Budget control_budget{kControlFrameBytesMax};
  std::vector<IoEvent> ignored_events;
  auto ready = connection.wire.send(node, control_budget, ignored_events);  // the dialler's Proof
  if (ready && connection.wire.has_output()) {
    ready = Error{Code::kPeerLost, "the peer takes nothing"};
  }
  if (ready) ready = set_liveness_options(connection.wire.fd(), limits_.liveness.cut);
  if (!ready) {
    fail_connection(token, ready.error(), now);
    return;
  }
  rules_.handle_handed_over(node, rail);
  const Link* const link = rules_.find(node);
  HOPLITE_CHECK(link != nullptr);
  poller_->remove(connection.wire.fd());
  liveness_.watch(node, link->incarnation, rail, connection.wire.release());
  close(token);
  set_timer(now);  // to retry if the thread has not taken the order yet
}

void Links::handle_liveness(const LivenessEvent& event, Instant now) {
  if (event.verdict == Verdict::kSuspect) ++counters_->peers_suspected;
  rules_.handle_verdict(event, now);
  perform_actions(now);
}

}  // namespace hoplite
