// SPDX-License-Identifier: Apache-2.0
// Decides the life of each link of one node: when to dial, to probe and to close, when a link is up
// or down, and when a peer is dead. No descriptor, no clock, no lock: Links performs the actions
// and reports what became of the connections, which are tokens here. Reactor thread only.
//  - The owner performs all actions after each handle_*; only then are the tokens of the table
//    those of open descriptors.
//  - A life of a link (`attempt`, counted by the dialler) is up when control and bulk of one rail
//    are open. The loss of an open one ends it, because this node can't know which bytes have
//    arrived.
//  - No older life of a peer replaces a newer one, and none that was declared dead comes back.
// Decisions 7 and 19; link.h has the transitions.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "io/links/link.h"
#include "io/links/link_action.h"
#include "io/liveness/link_limits.h"

namespace hoplite {

class LinkRules {
 public:
  enum class Answer : std::uint8_t {  // to a proven peer that has dialled
    kJoined,
    kTooManyNodes,    // one node more than a view can have
    kEarlierLife,     // of the peer: it is over
    kEarlierAttempt,  // a life of the link that is over
    kRailTaken,       // the rail has a connection of this kind
  };

  LinkRules(NodeId self, const LinkLimits& limits) : self_(self), limits_(limits) {}

  // ---- the engine's orders ----
  // Does nothing if this life of the member was declared dead here. REQUIRES: it is another node.
  void handle_connect(const Member& member, Instant now);
  // The member of the last Connect is wanted no more: says Goodbye to it. A later life of the node,
  // which has dialled already, goes on waiting.
  void handle_disconnect(NodeId node);
  void handle_leaving();  // this node ends: says Goodbye to all, also to those that wait
  void handle_announced(NodeId node);  // the engine has taken the last LinkUp
  // ---- what became of a connection ----
  void handle_dialling(NodeId node, RailId rail, ConnectionKind kind, std::uint64_t token);
  void handle_taken(NodeId node, RailId rail);  // a dial or a probe has reached a process
  void handle_refused(NodeId node, RailId rail, Instant now);  // none listens there
  // A life of the dialled node, other than the one that this node asked for, has proven itself.
  void handle_other_life(NodeId node, Incarnation answers, Instant now);
  // A peer that has dialled and proven itself. After kJoined the connection is in its rail.
  [[nodiscard]] Answer handle_hello(const Hello& hello, std::uint64_t token, Instant now);
  void handle_open(NodeId node, RailId rail, ConnectionKind kind);  // control or bulk
  void handle_handed_over(NodeId node, RailId rail);  // its liveness connection, to the thread
  void handle_goodbye(NodeId node);
  void handle_end(NodeId node, RailId rail, std::uint64_t token, Instant now);
  // ---- the rest ----
  void handle_verdict(const LivenessEvent& event, Instant now);
  void handle_timeout(Instant now);
  [[nodiscard]] std::optional<LinkAction> poll_action();
  [[nodiscard]] std::optional<Instant> poll_timeout() const { return timer_; }

  [[nodiscard]] const Link* find(NodeId node) const;
  // REQUIRES: all actions were polled and performed.
  void check_invariants() const;

 private:
  using Rail = Link::Rail;

  [[nodiscard]] bool dials(NodeId peer) const { return self_ < peer; }
  [[nodiscard]] Link* find_link(NodeId node);
  void close(Link::Slot& slot);
  void part_with(NodeId node, Link& link);
  void end_life(NodeId node, Link& link, Instant now);
  void stop_watching(NodeId node, Link& link);
  void declare_dead(NodeId node, Link& link, DeathCause cause, Instant now);
  void report_if_up(NodeId node, Link& link);  // LinkUp when a rail is whole
  void redial(NodeId node, Link& link, RailId rail, Instant now);
  void set_timer(Instant at) { timer_ = earlier(timer_, at); }
  [[nodiscard]] bool is_meant(const LinkAction& action) const;
  static void check_link(const Link& link);

  NodeId self_;
  LinkLimits limits_;
  std::map<NodeId, Link> links_;
  std::deque<LinkAction> actions_;
  std::optional<Instant> timer_;
};

}  // namespace hoplite
