// SPDX-License-Identifier: Apache-2.0
#include "io/liveness/liveness_rules.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace hoplite {

void LivenessRules::handle_watch(NodeId node, Incarnation incarnation, RailId rail) {
  HOPLITE_CHECK(rail.value < kRailsMax);
  Peer& peer = peers_[node];
  if (peer.incarnation != incarnation) {
    peer = {};
    peer.incarnation = incarnation;
  }
  peer.rails.set(rail.value);
  peer.was_closed = false;
  peer.was_heard = true;  // the handshake has just come
}

void LivenessRules::handle_forget(NodeId node) { peers_.erase(node); }

void LivenessRules::handle_pulse(NodeId node) {
  const auto found = peers_.find(node);
  if (found != peers_.end()) found->second.was_heard = true;
}

void LivenessRules::handle_goodbye(NodeId node) {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return;
  report(node, found->second, Verdict::kLeft);
  peers_.erase(found);
}

void LivenessRules::handle_end(NodeId node, RailId rail, RailEnd end) {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  peer.rails.reset(rail.value);
  peer.was_closed = peer.was_closed || end == RailEnd::kClosed;
  if (peer.rails.any()) {
    report(node, peer, end == RailEnd::kCut ? Verdict::kRailCut : Verdict::kRailLost, rail);
    return;
  }
  report(node, peer, peer.was_closed ? Verdict::kDead : Verdict::kUnreachable);
  peers_.erase(found);
}

void LivenessRules::handle_tick(Instant now) {
  // A longer gap is a stop of this node, not silence of the peers.
  const Duration passed = std::min(ticked_ ? now - *ticked_ : Duration{}, kPulseEvery * 2);
  ticked_ = now;
  for (auto each = peers_.begin(); each != peers_.end();) {
    const NodeId node = each->first;
    Peer& peer = each->second;
    peer.silence = std::exchange(peer.was_heard, false) ? Duration{} : peer.silence + passed;
    const bool is_frozen = peer.silence >= limits_.dead;
    const bool is_suspect = peer.silence >= limits_.suspect;
    if (is_frozen) {
      report(node, peer, Verdict::kFrozen);
    } else if (is_suspect != peer.is_suspect) {
      report(node, peer, is_suspect ? Verdict::kSuspect : Verdict::kRecovered);
    }
    peer.is_suspect = is_suspect;
    each = is_frozen ? peers_.erase(each) : std::next(each);
  }
}

std::optional<LivenessEvent> LivenessRules::poll_event() {
  if (events_.empty()) return std::nullopt;
  const LivenessEvent event = events_.front();
  events_.pop_front();
  return event;
}

Duration LivenessRules::silence(NodeId node) const {
  const auto found = peers_.find(node);
  return found == peers_.end() ? Duration{} : found->second.silence;
}

void LivenessRules::report(NodeId node, const Peer& peer, Verdict verdict, RailId rail) {
  events_.push_back({node, peer.incarnation, rail, verdict});
}

}  // namespace hoplite
