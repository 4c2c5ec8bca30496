// SPDX-License-Identifier: Apache-2.0
// Messages that the directory receives: claims, deletions, queries, deaths, views. Each change ends
// in service().
#include "plan/directory/directory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hoplite {
namespace {

// The largest lease of one object that this home accepts from an older home's grants. It leaves
// room for as many further leases.
constexpr LeaseId kForeignLeaseMax{1U << 31};

bool has_data(const Claim& claim) {
  return std::any_of(claim.stripes.begin(), claim.stripes.end(), [](const StripeClaim& s) {
    return s.state == StripeState::kRoot || s.state == StripeState::kComplete;
  });
}

bool is_whole(const std::vector<DirectoryEntry::Edge>& stripes) {
  return !stripes.empty() && std::all_of(stripes.begin(), stripes.end(), [&](const auto& edge) {
    return edge.state == stripes[0].state &&
           (edge.state == StripeState::kComplete || edge.state == StripeState::kRoot);
  });
}

}  // namespace

// Hears the claim's sender, and this node if it made a copy of the payload, before it serves the
// entry. Otherwise a receiver would be sent a copy that already exists. The service waits for the
// next poll or other message, so that claims of one turn share it.
void Directory::handle_claim(NodeId from, const Claim& claim, Epoch epoch, Instant now,
                             const std::optional<Claim>& copy) {
  apply_claim(from, claim, epoch, now);
  if (copy) apply_claim(config_.node, *copy, epoch, now);
  unserved_.insert(claim.object);
  claimed_at_ = now;
}

void Directory::apply_claim(NodeId from, const Claim& claim, Epoch epoch, Instant now) {
  const bool is_admitted = deletions_.admit(from, claim, entries_.contains(claim.object), now);
  send_of_deletions();
  if (!is_admitted) return;
  Entry& entry = entries_[claim.object];
  entry.is_excerpt = entry.is_excerpt || claim.excerpt;
  note_adopter(from, claim, entry, now);
  if (claim.stripes.empty() && !claim.wants) {
    entry.holders.erase(from);
    entry.locates.erase(from);
    return;
  }
  const bool current = adopt_identity(from, claim, entry);
  const auto [it, is_new] = entry.holders.try_emplace(from);
  Holder& holder = it->second;
  if (is_new) holder.slot = entry.slots++;
  if (claim.wants && !holder.wants) holder.since = now;
  holder.stale = false;
  holder.wants = claim.wants;
  holder.exists = claim.exists;
  holder.pinned = claim.pinned;
  holder.owner = claim.owner;
  holder.orphaned = claim.orphaned;
  holder.elsewhere = claim.elsewhere;
  holder.told.reset();
  if (!current) {
    holder.stripes.clear();
    return;
  }
  if (claim.orphaned) entry.orphaned_upto = std::max(entry.orphaned_upto, claim.incarnation);
  entry.copies = std::max(entry.copies, claim.copies);
  holder.awaits_copies = claim.awaits_copies;
  merge_stripes(claim, epoch, entry, holder, now);
  break_cycles(entry, from);
}

// Returns true if the stripes of `claim` belong to the bytes that this entry is about.
bool Directory::adopt_identity(NodeId from, const Claim& claim, Entry& entry) {
  if (claim.incarnation.value == 0 || claim.meta.block_bytes == 0) return false;
  if (!entry.known) {
    entry.known = true;
    entry.incarnation = claim.incarnation;
    entry.meta = claim.meta;
    if (claim.target_epoch >= entry.target_epoch) {  // else the entry is of a later one
      entry.target_epoch = claim.target_epoch;
      entry.committed = entry.target_epoch.value == 0 || claim.committed;
    }
  }
  if (claim.incarnation > entry.incarnation && has_data(claim)) {
    // A later attempt has put it again: its bytes replace the older ones everywhere.
    for (const auto& [node, holder] : entry.holders) {
      if (node != from && !holder.stripes.empty()) {
        send(node, Drop{claim.object, entry.incarnation, false});
      }
    }
    restart(entry, true);
    entry.incarnation = claim.incarnation;
    entry.meta = claim.meta;
    entry.target_epoch = claim.target_epoch;
    entry.committed = claim.committed;
    entry.reduce.reset();
  }
  if (claim.incarnation < entry.incarnation) {
    if (has_data(claim)) send(from, Drop{claim.object, claim.incarnation, false});
    return false;
  }
  if (claim.incarnation > entry.incarnation) return false;
  if (claim.meta != entry.meta) {
    send(from, Lost{claim.object, Code::kDuplicateObject,
                    "object " + short_name(claim.object) +
                        " exists already with another size or layout; choose another id"});
    return false;
  }
  if (claim.target_epoch < entry.target_epoch) {
    ReduceState state = entry.reduce.value_or(ReduceState{});
    state.target = claim.object;
    state.target_epoch = entry.target_epoch;
    send(from, std::move(state));
    return false;
  }
  if (claim.target_epoch > entry.target_epoch && !has_data(claim) && unheard_.empty()) {
    // An owner reports a new epoch together with its bytes. A node without bytes begins again with
    // the epoch of this entry.
    send(from, Drop{claim.object, claim.incarnation, false});
    return false;
  }
  if (claim.target_epoch > entry.target_epoch) {
    restart(entry, true);
    entry.target_epoch = claim.target_epoch;
    entry.committed = claim.committed;
  }
  if (claim.target_epoch.value == 0) return true;
  if (claim.committed) entry.committed = true;
  if (!claim.committed && entry.committed && entry.reduce) send(from, *entry.reduce);
  return true;
}

void Directory::merge_stripes(const Claim& claim, Epoch epoch, Entry& entry, Holder& holder,
                              Instant now) {
  // An owner of a reduce decides how the result is cut. Stripes of another cut begin again.
  const bool owns = entry.target_epoch.value > 0 && claim.pinned && has_data(claim);
  const bool cut =
      claim.stripes.size() > 1 || (claim.stripes.size() == 1 && entry.target_epoch.value == 0 &&
                                   claim.stripes[0].state < StripeState::kRoot);
  if (cut && (entry.stripe_count == 0 || owns || is_untouched(entry))) {
    recut(entry, static_cast<std::uint16_t>(claim.stripes.size()));
  }
  // A claim with bytes brings a lost object back, except when its reduce failed for good.
  const bool failed = entry.reduce && entry.reduce->phase == ReducePhase::kFailed;
  if (has_data(claim) && !failed) entry.lost = false;
  // Continue after the leases of an older home. Once all members are heard, this home has given
  // every lease that exists.
  for (const StripeClaim& stripe : claim.stripes) {
    const bool may_be = !unheard_.empty() && stripe.lease < kForeignLeaseMax;
    if (may_be) entry.last_lease = std::max(entry.last_lease, stripe.lease);
  }
  const std::size_t count = std::max<std::size_t>(entry.stripe_count, 1);
  holder.stripes.resize(count);
  if (claim.stripes.empty()) {
    for (Edge& edge : holder.stripes) merge_stripe(StripeClaim{}, epoch, entry, edge, now);
  } else if (claim.stripes.size() == count) {
    for (std::size_t i = 0; i < count; ++i) {
      merge_stripe(claim.stripes[i], epoch, entry, holder.stripes[i], now);
    }
  } else if (claim.stripes.size() == 1 && claim.stripes[0].state != StripeState::kReceiving) {
    // A node that produces or has the whole object claims it once, for any number of stripes.
    for (Edge& edge : holder.stripes) merge_stripe(claim.stripes[0], epoch, entry, edge, now);
  } else {
    // The claim is cut for the stripe count of an older home: the node starts again with this one.
    for (Edge& edge : holder.stripes) edge = Edge{};
  }
}

void recut(DirectoryEntry& entry, std::uint16_t stripe_count) {
  if (entry.stripe_count == stripe_count) return;
  const bool first_cut = std::exchange(entry.stripe_count, stripe_count) == 0;
  for (auto& [node, holder] : entry.holders) {
    // A reduce's owner that cuts otherwise voids what was made of the old stripes.
    const bool whole =
        is_whole(holder.stripes) && (first_cut || entry.target_epoch.value == 0 ||
                                     holder.stripes[0].state == StripeState::kComplete);
    const DirectoryEntry::Edge first = whole ? holder.stripes[0] : DirectoryEntry::Edge{};
    holder.stripes.assign(stripe_count, first);
  }
}

bool is_untouched(const DirectoryEntry& entry) {
  const auto is_fresh = [](const DirectoryEntry::Edge& edge) {
    return edge.state == StripeState::kIdle && edge.lease.value == 0 && edge.sender == kNoNode;
  };
  return entry.target_epoch.value == 0 &&
         std::all_of(entry.holders.begin(), entry.holders.end(), [&](const auto& holder) {
           const auto& stripes = holder.second.stripes;
           return is_whole(stripes) || std::all_of(stripes.begin(), stripes.end(), is_fresh);
         });
}

void Directory::merge_stripe(const StripeClaim& claim, Epoch epoch, const Entry& entry, Edge& edge,
                             Instant now) {
  const bool has_it = claim.state == StripeState::kComplete || claim.state == StripeState::kRoot;
  if (!has_it && claim.lease < edge.lease && epoch == edge.granted) return;  // crosses the grant
  if (claim.state == StripeState::kReceiving && edge.orphan && claim.sender == edge.sender) return;
  const bool sender_known = entry.holders.contains(claim.sender);
  if (claim.state == StripeState::kIdle && claim.sender != kNoNode) {
    edge.failed = claim.sender;
    edge.not_before = now + config_.regrant_delay;
  }
  const bool same = edge.state == claim.state && edge.lease == claim.lease;
  edge.course.ready = same ? std::max(edge.course.ready, claim.ready) : claim.ready;
  if (!same) {
    edge.course.begun = now;
    edge.course.first = edge.course.mark = claim.ready;
  }
  edge.state = claim.state;
  edge.orphan = claim.state == StripeState::kReceiving && !sender_known && unheard_.empty();
  edge.sender = claim.state == StripeState::kReceiving ? claim.sender : kNoNode;
  edge.lease = claim.lease;  // a newer lease was lost with the link
  edge.granted = epoch;
}

// A new home hears of edges from two older homes. Where they form a cycle, one edge is replaced.
void Directory::break_cycles(Entry& entry, NodeId node) {
  auto& stripes = entry.holders.at(node).stripes;
  for (std::size_t stripe = 0; stripe < stripes.size(); ++stripe) {
    Edge& edge = stripes[stripe];
    if (edge.state != StripeState::kReceiving || edge.orphan) continue;
    NodeId at = edge.sender;
    for (std::size_t steps = 0; steps <= entry.holders.size() && at != node; ++steps) {
      const auto it = entry.holders.find(at);
      if (it == entry.holders.end() || it->second.stripes.size() <= stripe) break;
      const Edge& next = it->second.stripes[stripe];
      if (next.state != StripeState::kReceiving || next.orphan) break;
      at = next.sender;
    }
    if (at == node) edge.orphan = true;
  }
}

void restart(DirectoryEntry& entry, bool keep_waiting) {
  for (auto& [node, holder] : entry.holders) holder.stripes.clear();
  if (!keep_waiting) entry.holders.clear();
  entry.stripe_count = 0;
  entry.has_begun = false;
  entry.lost = false;
  entry.copies = 0;
  entry.adopters.clear();
  entry.declined.clear();
}

void Directory::handle_delete(NodeId from, const Delete& request, Instant now) {
  serve_claims();
  if (!entries_.contains(request.object) && deletions_.covers(request)) {
    deletions_.begin(from, request, std::max(request.upto, Incarnation{1}), true, {}, now);
    return send_of_deletions();
  }
  Entry& entry = entries_[request.object];
  if (entry.known && request.upto.value > 0 && entry.incarnation > request.upto) {
    deletions_.answer(from, request);  // a later attempt has replaced it already
    send_of_deletions();
    return service(request.object, now);
  }
  begin_deletion(from, request, entry, now);
}

// Deletes the object everywhere and refuses late claims. The node that asks has already dropped its
// own copy.
void Directory::begin_deletion(NodeId from, const Delete& request, Entry& entry, Instant now) {
  const ObjectId object = request.object;
  const Incarnation upto =
      request.upto.value > 0 ? request.upto : std::max(entry.incarnation, Incarnation{1});
  // The claim of an attempt may still be in flight, on another link than the deletion. A known
  // first attempt is the only one.
  const bool is_first = entry.known && entry.incarnation >= upto && upto.value == 1;
  const bool is_known = entry.known;
  Deletions::Awaited awaited;
  for (const NodeId node : is_first ? unheard_ : live_) {
    if (node != config_.node) awaited.emplace(node, unheard_.contains(node));
  }
  for (const auto& [node, holder] : entry.holders) awaited.insert_or_assign(node, holder.stale);
  if (entry.reduce && live_.contains(entry.reduce->caller)) {
    awaited.emplace(entry.reduce->caller, false);  // it goes on, or remembers the outcome
  }
  for (const NodeId adopter : entry.adopters) awaited.emplace(adopter, false);
  awaited.erase(from);
  if (!entry.lost) {
    entry.lost_code = Code::kObjectLost;
    entry.lost_text = "object " + short_name(object) + " was deleted";
  }
  answer_lost(object, entry);
  forget(object);
  deletions_.begin(from, request, upto, is_known, awaited, now);
  send_of_deletions();
}

void Directory::forget(const ObjectId& object) {
  const auto it = entries_.find(object);
  if (it->second.deadline) timers_.erase({*it->second.deadline, object});
  entries_.erase(it);
}

void Directory::send_of_deletions() {
  while (auto parcel = deletions_.poll_parcel()) {
    send(parcel->to, std::move(parcel->body), parcel->with_payload);
  }
}

void Directory::handle_locate(NodeId from, const Locate& locate, Instant now) {
  serve_claims();
  if (is_deleted(locate.object)) {
    deletions_.refuse(from, locate.object);
    return send_of_deletions();
  }
  entries_[locate.object].locates.insert_or_assign(from, Entry::Query{locate, now});
  service(locate.object, now);
  if (locate.exists || !is_up_to_date()) return;
  const auto it = entries_.find(locate.object);
  if (it == entries_.end() || !it->second.locates.contains(from)) return;
  send(
      from,
      Located{
          locate.object, Incarnation{0}, {}, kNoNode});  // a second answer follows when it is there
}

void Directory::handle_resync_done(NodeId from, Instant now) {
  serve_claims();
  awaited_.erase(from);
  const bool all_heard = end_silence(from, now);
  deletions_.handle_resync_done(from, now);
  send_of_deletions();
  std::vector<ObjectId> touched;
  for (auto& [object, entry] : entries_) {
    const auto it = entry.holders.find(from);
    const bool gave_up = it != entry.holders.end() && it->second.stale;
    if (gave_up)
      entry.holders.erase(it);  // the node gave it up, and that claim was lost on the way
    if (gave_up || all_heard || !draining_.empty()) touched.push_back(object);
  }
  for (const ObjectId& object : touched) service(object, now);
}

void Directory::handle_view(const Membership& view, Instant now) {
  serve_claims();
  // Without a view this shard knew no member, and took every deletion for ended. The nodes that
  // asked ask again.
  if (epoch_.value == 0) deletions_ = Deletions(config_);
  epoch_ = view.epoch();
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (view.home_of(it->first) == config_.node) {
      ++it;
      continue;
    }
    if (it->second.deadline) timers_.erase({*it->second.deadline, it->first});
    it = entries_.erase(it);
  }
  deletions_.handle_view(view, now);
  send_of_deletions();
  unheard_.clear();
  unreachable_.clear();
  live_.clear();
  for (const Member& member : view.members()) {
    if (view.is_live(member.node)) live_.insert(member.node);
    if (member.node != config_.node && view.may_live(member.node)) unheard_.insert(member.node);
  }
  awaited_ = unheard_;
  std::erase_if(newer_, [&](const auto& each) {
    return each.second <= epoch_ || view.find(each.first) == nullptr;
  });
  std::set<NodeId> gone;
  for (auto& [object, entry] : entries_) {
    entry.adopters.clear();
    entry.declined.clear();
    for (auto& [node, holder] : entry.holders) {
      holder.stale = node != config_.node;
      holder.told.reset();
      if (!view.may_live(node)) gone.insert(node);
    }
    for (const auto& [node, locate] : entry.locates) {
      if (!view.may_live(node)) gone.insert(node);
    }
  }
  for (const NodeId node : gone) remove_node(node, now);
  if (unheard_.empty()) service_all(now);
}

void Directory::handle_link_down(NodeId node) {
  serve_claims();
  deletions_.handle_link_down(node);
  newer_.erase(node);
  awaited_.insert(node);
  for (auto& [object, entry] : entries_) {
    entry.adopters.erase(node);
    const auto it = entry.holders.find(node);
    if (it == entry.holders.end()) continue;
    it->second.stale = true;
    it->second.told.reset();
    for (Edge& edge : it->second.stripes) edge.granted = Epoch{0};
  }
}

// putter: put, claim │ the link to this home is down: the claim is lost │ receiver, which reaches
// both: claim that wants and knows that it was put.  Nothing is lost.
// Test: NetworkFaults.PutWhoseClaimIsLostWithItsLinkIsNotLost.
void Directory::handle_unreachable(NodeId node) {
  serve_claims();
  if (live_.contains(node)) unreachable_.insert(node);
}

// Returns true if the node was the last one that this shard has to hear.
bool Directory::end_silence(NodeId node, Instant now) {
  const bool was_awaited = unheard_.erase(node) + unreachable_.erase(node) > 0;
  const bool is_last = was_awaited && unheard_.empty() && unreachable_.empty();
  if (is_last) heard_at_ = now;
  return is_last;
}

void Directory::handle_node_dead(NodeId node, Instant now) {
  serve_claims();
  const bool last_word = end_silence(node, now);
  live_.erase(node);
  awaited_.erase(node);
  draining_.erase(node);
  remove_node(node, now);
  if (last_word) service_all(now);
}

// All members have been heard or are dead: an object without a holder is lost from here on.
void Directory::service_all(Instant now) {
  std::vector<ObjectId> objects;
  objects.reserve(entries_.size());
  for (const auto& [object, entry] : entries_) objects.push_back(object);
  for (const ObjectId& object : objects) service(object, now);
}

void Directory::remove_node(NodeId node, Instant now) {
  deletions_.remove_node(node, now);
  send_of_deletions();
  std::vector<ObjectId> touched;
  for (auto& [object, entry] : entries_) {
    const bool asked = entry.adopters.erase(node) > 0;
    const bool held = entry.holders.erase(node) + entry.locates.erase(node) > 0;
    if (held || asked) touched.push_back(object);
    for (auto& [other, holder] : entry.holders) {
      for (Edge& edge : holder.stripes) {
        if (edge.state == StripeState::kReceiving && edge.sender == node) edge.orphan = true;
      }
    }
  }
  for (const ObjectId& object : touched) service(object, now);
}

void Directory::handle_reduce_state(const ReduceState& state, Instant now) {
  serve_claims();
  if (is_deleted(state.target)) return;
  Entry& entry = entries_[state.target];
  std::vector<NodeId> told;  // nodes that only wait have nothing that a newer epoch voids
  for (const auto& [node, holder] : entry.holders) {
    if (state.phase != ReducePhase::kRunning || !holder.stripes.empty()) told.push_back(node);
  }
  if (state.target_epoch > entry.target_epoch) {
    restart(entry, true);
    entry.target_epoch = state.target_epoch;
  }
  entry.reduce = state;
  entry.committed = state.phase == ReducePhase::kCommitted;
  if (state.phase == ReducePhase::kFailed) {
    entry.lost = true;
    entry.lost_code = state.code;
    entry.lost_text = state.text;
  }
  for (const NodeId node : told) send(node, state);
  service(state.target, now);
}

void Directory::handle_timeout(Instant now) {
  serve_claims();
  deletions_.handle_timeout(now);
  send_of_deletions();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const ObjectId object = timers_.begin()->second;
    timers_.erase(timers_.begin());
    entries_.at(object).deadline.reset();
    service(object, now);
  }
}

std::optional<Parcel> Directory::poll_parcel() {
  if (parcels_.empty()) serve_claims();
  if (parcels_.empty()) return std::nullopt;
  Parcel parcel = std::move(parcels_.front());
  parcels_.pop_front();
  ++parcels_polled_;
  if (parcels_.empty()) open_grants_.clear();
  return parcel;
}

std::optional<Instant> Directory::poll_timeout() const {
  if (!unserved_.empty()) return claimed_at_;
  if (timers_.empty()) return deletions_.poll_timeout();
  return earlier(deletions_.poll_timeout(), timers_.begin()->first);
}

std::size_t Directory::entry_count() const {
  return entries_.size() + deletions_.under_way_count();
}

void Directory::send(NodeId to, PeerMessage body, bool with_payload) {
  open_grants_.erase(to);
  parcels_.push_back({to, std::move(body), with_payload});
}

}  // namespace hoplite
