// SPDX-License-Identifier: Apache-2.0
// The other members: the view, which of them are connected, their messages of a newer view, and
// whether this node drains. After a new view or a reconnect a node repeats everything that it has
// said, to one home or to all, because homes keep soft state (design decision 2).
// Invariants: every connected node is a member of the view; messages that are parked are of a newer
// view than this node's.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "plan/links/membership.h"
#include "plan/links/parked.h"
#include "plan/messages.h"

namespace hoplite {

struct EngineStats;
struct Owners;

class Peers {
 public:
  explicit Peers(Owners& engine);

  bool handle_set_view(const SetViewCommand& view);
  void handle_drain();
  void handle_link_up(const LinkUp& event);
  void handle_link_down(const LinkDown& event) { void_exchange_with(event.node); }
  void handle_peer_dead(const PeerDead& event);
  void handle_resync_done(NodeId from, const ResyncDone& done);
  void handle_resync_wanted(NodeId from);
  bool admits(const MessageIn& event);
  // Returns and forgets the messages that waited for the view.
  [[nodiscard]] std::deque<MessageIn> take_parked() { return parked_.take(); }

  [[nodiscard]] const Membership& view() const { return view_; }
  [[nodiscard]] NodeId home_of(const ObjectId& object) const { return view_.home_of(object); }
  // True if what is repeated to `only_to`, or to all, is about this object.
  [[nodiscard]] bool is_for(const ObjectId& object, std::optional<NodeId> only_to) const {
    return !only_to || view_.home_of(object) == *only_to;
  }
  [[nodiscard]] bool is_draining() const { return draining_; }
  void add_stats(EngineStats& stats) const;
  void check_invariants() const;

 private:
  void void_exchange_with(NodeId node);
  void resync(std::optional<NodeId> only_to, const ResyncDone& end);

  Owners& engine_;
  Membership view_;
  std::map<NodeId, Member> connected_;
  Parked parked_;
  std::map<NodeId, std::size_t> resyncs_;  // requests of each to repeat everything, in this view
  std::set<NodeId> resyncs_awaited_;  // peers that have not ended their answer to a ResyncWanted
  bool draining_ = false;
};

}  // namespace hoplite
