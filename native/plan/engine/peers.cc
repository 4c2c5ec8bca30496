// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/peers.h"

#include <algorithm>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {
namespace {

// Returns the object of a message that only the object's home takes; nullptr for another message.
const ObjectId* at_home(const PeerMessage& body) {
  return std::visit(Visitor{[](const Claim& claim) { return &claim.object; },
                            [](const Progress& progress) { return &progress.object; },
                            [](const Delete& remove) { return &remove.object; },
                            [](const Orphan& orphan) { return &orphan.object; },
                            [](const Locate& locate) { return &locate.object; },
                            [](const ReduceWant& want) { return &want.target; },
                            [](const ChannelClaim& claim) { return &claim.channel; },
                            [](const ChannelQuestion& asked) { return &asked.channel; },
                            [](const VersionAck& ack) { return &ack.channel; },
                            [](const auto&) -> const ObjectId* { return nullptr; }},
                    body);
}

// Transfers are fenced by their ids; everything else by the epoch of the view.
bool is_of_a_transfer(const PeerMessage& body) {
  return std::holds_alternative<PullStart>(body) || std::holds_alternative<Credit>(body) ||
         std::holds_alternative<PullStop>(body) || std::holds_alternative<PullRefused>(body);
}

}  // namespace

Peers::Peers(Owners& engine)
    : engine_(engine),
      view_(engine.config.node),
      parked_(engine.config.parked_messages_max, engine.config.parked_bytes_max) {}

// Returns false for a view that is not newer. The caller then has nothing to receive.
bool Peers::handle_set_view(const SetViewCommand& view) {
  const std::vector<Member> before = view_.members();
  if (!view_.handle_view(view.epoch, view.members)) return false;
  std::vector<NodeId> gone;
  for (const Member& old : before) {
    const Member* now = view_.find(old.node);
    if (old.node == engine_.config.node || (now != nullptr && now->incarnation == old.incarnation))
      continue;
    gone.push_back(old.node);
    void_exchange_with(old.node);
    if (connected_.erase(old.node) > 0) engine_.outgoing.act(Disconnect{old.node});
  }
  for (const Member& member : view_.members()) {
    if (member.node == engine_.config.node || connected_.contains(member.node)) continue;
    connected_.emplace(member.node, member);
    engine_.outgoing.act(Connect{member});
  }
  engine_.keeping.move_deletions(gone);
  engine_.directory.handle_view(view_, engine_.now);
  engine_.reduces.handle_view(view_);
  engine_.channel_home.handle_view();
  for (const NodeId node : gone) {
    // The directory hears of a node that is back as another incarnation by the node's ResyncDone.
    if (!view_.is_live(node)) engine_.directory.handle_node_dead(node, engine_.now);
    engine_.reduces.handle_node_dead(node, true, view_);
  }
  if (!engine_.directory.is_recovering()) engine_.reduces.handle_recovered(view_);
  engine_.folds.drop_branches();
  resyncs_awaited_.clear();
  resyncs_.clear();
  resync(std::nullopt, {.draining = draining_});
  return true;
}

void Peers::handle_drain() {
  if (draining_) return;
  draining_ = true;
  view_.handle_draining(engine_.config.node, true);
  engine_.directory.handle_draining(engine_.config.node, true, engine_.now);
  for (const auto& [id, object] : engine_.objects.all()) engine_.keeping.note_sole(id);
  for (const Member& member : view_.members()) {
    if (member.node != engine_.config.node) engine_.outgoing.send(member.node, ResyncDone{true});
  }
}

void Peers::handle_link_up(const LinkUp& event) {
  const auto member = connected_.find(event.node);
  if (member == connected_.end() || member->second.incarnation != event.incarnation) return;
  if (engine_.outgoing.is_up(event.node)) void_exchange_with(event.node);
  engine_.outgoing.add_link(event.node);
  engine_.directory.handle_link_down(event.node);  // grants sent while it was down are lost
  engine_.transfers.open_rails(event.node, member->second.rails.size());
  resync(event.node, {.draining = draining_});
  engine_.reduces.handle_link_up(event.node, view_);
  engine_.transfers.start_pulls_from(event.node);
}

// Everything in flight to or from `node` is void.
void Peers::void_exchange_with(NodeId node) {
  engine_.outgoing.remove_link(node);
  parked_.forget(node);
  resyncs_awaited_.erase(node);
  resyncs_.erase(node);
  engine_.transfers.stop_sending_to(node);
  engine_.directory.handle_link_down(node);
  engine_.directory.handle_unreachable(node);
  engine_.transfers.fail_pulls_from(node);
  engine_.excerpts.handle_unreachable(node);
}

void Peers::handle_peer_dead(const PeerDead& event) {
  const Member* member = view_.find(event.node);
  if (member == nullptr || member->incarnation != event.incarnation) return;
  const bool was_live = view_.is_live(event.node);
  view_.handle_dead(event.node, event.incarnation, event.is_certain);
  void_exchange_with(event.node);
  if (!was_live) return;
  // If the death is uncertain, other nodes may still reach the objects there: the next view
  // decides.
  if (event.is_certain) engine_.directory.handle_node_dead(event.node, engine_.now);
  if (event.is_certain) engine_.channel_home.handle_death();
  engine_.reduces.handle_node_dead(event.node, event.is_certain, view_);
  if (!engine_.directory.is_recovering()) engine_.reduces.handle_recovered(view_);
  engine_.outgoing.act(ReportDeath{event.node, event.incarnation});
}

// Returns true if a message is of this node's view, and so to be received at once. A message of a
// newer view is kept until this node has that view.
bool Peers::admits(const MessageIn& event) {
  const Epoch epoch = event.message.view_epoch;
  if (is_of_a_transfer(event.message.body)) return true;
  if (epoch == view_.epoch()) {  // all members of one view know the same homes
    const ObjectId* const object = at_home(event.message.body);
    return object == nullptr || view_.is_home_of(*object);
  }
  if (epoch < view_.epoch()) {  // its sender repeats it under the newer view
    ++engine_.counters.messages_stale;
    return false;
  }
  ++engine_.counters.messages_parked;
  engine_.directory.handle_newer_view(event.from, epoch);
  parked_.park(event);
  return false;
}

void Peers::handle_resync_done(NodeId from, const ResyncDone& done) {
  // A peer that has already reported everything may only add that it drains.
  const bool is_awaited = engine_.directory.awaits(from);
  if (!is_awaited && !done.draining) return;
  const bool recovering = engine_.directory.is_recovering();
  view_.handle_draining(from, done.draining);
  engine_.directory.handle_draining(from, done.draining, engine_.now);
  // peer: claims, ResyncDone │ this node, without that view: claims dropped │ this node: view,
  // ResyncWanted │ the first ResyncDone comes. It must not end the recovery, because its claims are
  // missing. Test: ParkedEngine.DoesNotTakeTheEndOfWhatItDroppedForTheEndOfTheAnswer.
  if (done.is_asked) resyncs_awaited_.erase(from);
  if (resyncs_awaited_.contains(from) || !is_awaited) return;
  engine_.directory.handle_resync_done(from, engine_.now);
  if (recovering && !engine_.directory.is_recovering()) engine_.reduces.handle_recovered(view_);
}

// The peer lost everything that this node sent in this view, as if the link had been down.
void Peers::handle_resync_wanted(NodeId from) {
  if (!engine_.outgoing.is_up(from) || ++resyncs_[from] > kResyncsMax) return;
  engine_.directory.handle_link_down(from);
  // The peer lost the first one.
  if (resyncs_awaited_.contains(from)) engine_.outgoing.send(from, ResyncWanted{});
  resync(from, {.draining = draining_, .is_asked = true});
  engine_.reduces.handle_link_up(from, view_);
}

// Soft state: after a new view or a reconnect the node repeats everything, to one home or to all.
void Peers::resync(std::optional<NodeId> only_to, const ResyncDone& end) {
  // ResyncWanted goes first. It makes the peer treat this node's claims as stale, and the claims
  // that follow renew them.
  const auto ask = [&](NodeId peer) {
    if (!parked_.take_dropped(peer, view_.epoch())) return;
    resyncs_awaited_.insert(peer);
    engine_.outgoing.send(peer, ResyncWanted{});
  };
  if (!only_to) std::ranges::for_each(engine_.outgoing.links(), ask);
  if (only_to && engine_.outgoing.is_up(*only_to)) ask(*only_to);
  engine_.keeping.repeat_deletions(only_to);
  engine_.objects.repeat_claims(only_to);
  engine_.folds.repeat_reports(only_to);
  engine_.calls.repeat_questions(only_to);
  engine_.channels.repeat_claims(only_to);
  if (only_to) engine_.channel_home.repeat_to(*only_to);
  for (const Member& member : view_.members()) {
    if (member.node == engine_.config.node || (only_to && member.node != *only_to)) continue;
    engine_.outgoing.send(member.node, end);
  }
}

void Peers::add_stats(EngineStats& stats) const {
  stats.draining = draining_ ? 1 : 0;
  stats.view_epoch = view_.epoch().value;
  stats.members = view_.members().size();
  stats.parked_messages = parked_.size();
  stats.parked_bytes = parked_.bytes();
}

void Peers::check_invariants() const {
  parked_.check_invariants();
  for (const auto& [node, member] : connected_) HOPLITE_CHECK(view_.find(node) != nullptr);
}

}  // namespace hoplite
