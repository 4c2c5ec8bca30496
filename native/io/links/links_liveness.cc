// SPDX-License-Identifier: Apache-2.0
// How Links uses the liveness thread: hands connections over to it and handles its events.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "io/links/links.h"
#include "io/log.h"

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
  Link& link = links_.at(node);
  link.rails[rail.value].liveness = 0;
  link.rails[rail.value].is_watched = true;
  poller_->remove(connection.wire.fd());
  liveness_.watch(node, link.incarnation, rail, connection.wire.release());
  close(token);
  set_timer(now);  // to retry if the thread has not taken the order yet
}

void Links::handle_liveness(const LivenessEvent& event, Instant now) {
  if (event.verdict == Verdict::kSuspect) ++counters_->peers_suspected;
  const auto found = links_.find(event.node);
  if (found == links_.end() || found->second.incarnation != event.incarnation) return;
  Link& link = found->second;
  if (event.verdict == Verdict::kRailLost || event.verdict == Verdict::kRailCut) {
    if (event.rail.value >= link.rails.size()) return;
    ++counters_->rails_lost;
    const bool is_cut = event.verdict == Verdict::kRailCut;
    log_warning(kLinksLogger, "rail " + std::to_string(event.rail.value) + " to " +
                                  node_name(event.node) + (is_cut ? " is cut" : " is lost"));
    Rail& rail = link.rails[event.rail.value];
    rail.is_watched = false;
    set_timer(now);
    // The rail's other connections would wait for minutes; over another rail the link is up at
    // once.
    if (is_cut) fail_connection(rail.bulk, {Code::kPeerLost, "a rail is cut"}, now);
    return;
  }
  if (!is_final(event.verdict)) return;
  for (Rail& rail : link.rails) rail.is_watched = false;  // the thread has closed its connections
  const bool is_meant = link.is_wanted() && link.member.incarnation == event.incarnation;
  if (event.verdict == Verdict::kLeft) {
    link.has_said_goodbye = true;
  } else if (event.verdict == Verdict::kDead && is_meant) {
    declare_dead(event.node, link, event.verdict, "its process has ended", now);
  } else if (event.verdict == Verdict::kUnreachable && is_meant) {
    ++counters_->peers_unreachable;
    declare_dead(event.node, link, event.verdict, "no rail reaches it any more", now);
  } else if (event.verdict == Verdict::kFrozen && is_meant) {
    ++counters_->peers_frozen;
    declare_dead(event.node, link, event.verdict,
                 "its process does not run; it is told when it does", now);
  }
}

// Says Goodbye where something is open.
void Links::stop_watching(NodeId node, Link& link) {
  bool was_watched = false;
  for (Rail& rail : link.rails) {
    close(std::exchange(rail.liveness, 0));
    was_watched |= std::exchange(rail.is_watched, false);
  }
  if (was_watched) liveness_.forget(node, link.incarnation);
}

}  // namespace hoplite
