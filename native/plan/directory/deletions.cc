// SPDX-License-Identifier: Apache-2.0
#include "plan/directory/deletions.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace hoplite {

Deletions::Deletions(const EngineConfig& config)
    : config_(config),
      ended_(config.tombstone_life, config.recent_objects_max),
      orphans_(config.tombstone_life, config.recent_objects_max) {}

void Deletions::begin(NodeId from, const Delete& request, Incarnation upto, bool is_known,
                      const Awaited& awaited, Instant now) {
  const auto it = open(request.object, upto, now);
  Deletion& deletion = it->second;
  deletion.is_undated = deletion.is_undated || (request.upto.value == 0 && !is_known);
  if (from == kNoNode) {
    orphans_.note(request.object, upto, now);
  } else {
    note_request(deletion, from, request.upto);
  }
  for (const auto& [node, is_stale] : awaited) {
    deletion.awaited.insert_or_assign(node, is_stale);
    drop(node, request.object, deletion.upto);
  }
  if (deletion.awaited.empty()) end(it, now);
}

// Keeps one request of a node, for its newest attempt: the answer ends the node's requests for
// older attempts as well. A request for attempt 0, which means any attempt, is kept apart.
void Deletions::note_request(Deletion& deletion, NodeId from, Incarnation upto) {
  auto& requests = deletion.requests;
  const auto dated = requests.lower_bound({from, Incarnation{1}});
  const bool is_one = upto.value > 0 && dated != requests.end() && dated->first == from;
  if (is_one && upto <= dated->second) return;
  if (is_one) requests.erase(dated);
  requests.emplace(from, upto);
}

void Deletions::answer(NodeId to, const Delete& request) {
  parcels_.push_back({to, Deleted{request.object, request.upto}});
}

void Deletions::refuse(NodeId to, const ObjectId& object) {
  const std::string why =
      orphans_.contains(object) ? std::string(" lost: ") + kLostAsOrphan : " was deleted";
  parcels_.push_back({to, Lost{object, Code::kObjectLost, "object " + short_name(object) + why}});
}

bool Deletions::admit(NodeId from, const Claim& claim, bool is_served, Instant now) {
  const bool has_some = !claim.stripes.empty();
  auto it = under_way_.find(claim.object);
  if (it == under_way_.end()) {
    const auto upto = ended_.find(claim.object);
    if (!upto) return true;
    const bool is_late = has_some && claim.incarnation <= *upto;
    if (is_late) it = open(claim.object, *upto, now);
  }
  if (it != under_way_.end()) {
    Deletion& deletion = it->second;
    const bool is_awaited = deletion.awaited.contains(from);
    if (deletion.is_undated && is_awaited) {
      deletion.upto = std::max(deletion.upto, claim.incarnation);
    }
    if (has_some && claim.incarnation <= deletion.upto) {
      deletion.awaited.insert_or_assign(from, false);
      drop(from, claim.object, deletion.upto);
      if (claim.wants) refuse(from, claim.object);
      return false;
    }
    deletion.awaited.erase(from);
    if (deletion.awaited.empty()) end(it, now);
  }
  if (has_some || is_served) return true;
  if (claim.wants) refuse(from, claim.object);
  return false;
}

void Deletions::handle_link_down(NodeId node) {
  for (auto& [object, deletion] : under_way_) {
    const auto it = deletion.awaited.find(node);
    if (it != deletion.awaited.end()) it->second = true;
  }
}

// The node has claimed again whatever it still has.
void Deletions::handle_resync_done(NodeId node, Instant now) { stop_awaiting(node, true, now); }

void Deletions::remove_node(NodeId node, Instant now) { stop_awaiting(node, false, now); }

// A new home hears of the deletion from the nodes that asked for it.
void Deletions::handle_view(const Membership& view, Instant now) {
  members_ = std::max<std::size_t>(view.members().size(), 1);
  std::set<NodeId> gone;
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    if (view.home_of(it->first) != config_.node) {
      order_.erase(it->second.place);
      it = under_way_.erase(it);
      continue;
    }
    for (auto& [node, is_stale] : it->second.awaited) {
      is_stale = node != config_.node;
      if (!view.may_live(node)) gone.insert(node);
    }
    ++it;
  }
  for (const NodeId node : gone) remove_node(node, now);
}

void Deletions::handle_timeout(Instant now) {
  ended_.handle_timeout(now);
  orphans_.handle_timeout(now);
  while (!order_.empty()) {
    const auto oldest = under_way_.find(order_.front());
    if (oldest->second.until > now) return;
    end(oldest, now);
  }
}

bool Deletions::contains(const ObjectId& object) const {
  return under_way_.contains(object) || ended_.contains(object);
}

bool Deletions::covers(const Delete& request) const {
  if (request.upto.value == 0) return contains(request.object);
  const auto it = under_way_.find(request.object);
  return ended_.covers(request.object, request.upto) ||
         (it != under_way_.end() && request.upto <= it->second.upto);
}

std::optional<Parcel> Deletions::poll_parcel() {
  if (parcels_.empty()) return std::nullopt;
  Parcel parcel = std::move(parcels_.front());
  parcels_.pop_front();
  return parcel;
}

std::optional<Instant> Deletions::poll_timeout() const {
  if (order_.empty()) return ended_.poll_timeout();
  return earlier(ended_.poll_timeout(), under_way_.at(order_.front()).until);
}

void Deletions::check_invariants() const {
  HOPLITE_CHECK(order_.size() == under_way_.size());
  for (const ObjectId& object : order_) HOPLITE_CHECK(!under_way_.at(object).awaited.empty());
}

// A node holds back its requests to one home beyond `deletes_max`. A faulty node sends more, and so
// do nodes whose homes have become one. The oldest deletion then ends early.
Deletions::UnderWay::iterator Deletions::open(const ObjectId& object, Incarnation upto,
                                              Instant now) {
  const auto known = under_way_.find(object);
  if (known == under_way_.end() && under_way_.size() >= config_.deletes_max * members_) {
    end(under_way_.find(order_.front()), now);
  }
  const auto [it, is_new] = under_way_.try_emplace(object);
  if (is_new) {
    it->second.place = order_.insert(order_.end(), object);
    it->second.until = now + config_.tombstone_life;
  }
  it->second.upto = std::max(it->second.upto, upto);
  return it;
}

void Deletions::end(UnderWay::iterator it, Instant now) {
  for (const auto& [node, upto] : it->second.requests) answer(node, {it->first, upto});
  ended_.note(it->first, it->second.upto, now);
  order_.erase(it->second.place);
  under_way_.erase(it);
}

void Deletions::stop_awaiting(NodeId node, bool only_stale, Instant now) {
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    const auto at = it++;
    Awaited& awaited = at->second.awaited;
    const auto member = awaited.find(node);
    if (member == awaited.end() || (only_stale && !member->second)) continue;
    awaited.erase(member);
    if (awaited.empty()) end(at, now);
  }
}

void Deletions::drop(NodeId to, const ObjectId& object, Incarnation upto) {
  parcels_.push_back({to, Drop{object, upto, true}});
}

}  // namespace hoplite
