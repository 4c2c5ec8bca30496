// SPDX-License-Identifier: Apache-2.0
// Keeping: which nodes keep an object whose owner has died, that a draining node hands over, or
// that several nodes are to keep, and for how long (decisions 16 and 50). Derived from the claims
// alone, so it survives every death and every new view. A home that forgets its question to an
// adopter asks again.
#include <algorithm>
#include <tuple>

#include "plan/directory/directory.h"

namespace hoplite {
namespace {

// Time until the home asks again after all nodes have declined to keep an object. A node may have
// room by then.
constexpr Duration kAdoptRetry = 1_s;

// Returns the node that reports the last reference: for a reduce its caller's node, else the node
// that put the object, even if other nodes keep it for that node.
NodeId owner_of(const DirectoryEntry& entry) {
  if (entry.reduce) return entry.reduce->caller;
  NodeId owner = kNoNode;
  for (const auto& [node, holder] : entry.holders) {
    if (!holder.pinned && !holder.elsewhere) continue;
    if (holder.owner == kNoNode) return node;
    owner = holder.owner;
  }
  return owner;
}

bool has_all(const DirectoryEntry::Holder& holder) {
  return !holder.stripes.empty() && std::all_of(holder.stripes.begin(), holder.stripes.end(),
                                                [](const DirectoryEntry::Edge& e) {
                                                  return e.state == StripeState::kComplete;
                                                });
}

// True if the node keeps the object, or will once it has all of it.
bool is_keeper(const DirectoryEntry::Holder& holder) {
  const bool makes =
      std::any_of(holder.stripes.begin(), holder.stripes.end(),
                  [](const DirectoryEntry::Edge& e) { return e.state == StripeState::kRoot; });
  return holder.pinned && (holder.wants || makes || has_all(holder));
}

// Returns how many nodes that stay have all of the object and keep it.
std::size_t count_keepers(const DirectoryEntry& entry, const std::set<NodeId>& draining) {
  const auto keeps = [&](const auto& each) {
    const auto& [node, holder] = each;
    return !draining.contains(node) && !holder.stale && holder.pinned && has_all(holder);
  };
  return static_cast<std::size_t>(std::count_if(entry.holders.begin(), entry.holders.end(), keeps));
}

// Returns how many nodes are to keep the object: as its keepers say, or all that stay where there
// are fewer. 0: no node stays, so no other one can take it.
std::size_t count_wanted(const DirectoryEntry& entry, const std::set<NodeId>& live,
                         const std::set<NodeId>& draining) {
  const auto stays = [&](NodeId node) { return !draining.contains(node); };
  const auto staying = static_cast<std::size_t>(std::count_if(live.begin(), live.end(), stays));
  return std::min<std::size_t>(entry.copies, staying);
}

// True if the draining node knows, or is about to hear, that another node keeps the object.
bool is_handed_over(const DirectoryEntry::Holder& holder) {
  return holder.elsewhere || (holder.told && holder.told->second);
}

}  // namespace

void Directory::handle_orphan(const Orphan& orphan, Instant now) {
  serve_claims();
  if (is_deleted(orphan.object)) return;
  Entry& entry = entries_[orphan.object];
  const Incarnation upto =
      orphan.upto.value > 0 ? orphan.upto : std::max(entry.incarnation, Incarnation{1});
  entry.orphaned_upto = std::max(entry.orphaned_upto, upto);
  entry.orphan_until = now + config_.tombstone_life;
  service(orphan.object, now);
}

void Directory::handle_draining(NodeId node, bool draining, Instant now) {
  serve_claims();
  const bool changed = draining ? draining_.insert(node).second : draining_.erase(node) > 0;
  if (changed) service_all(now);
}

// Makes the object an orphan if its owner has been gone for caller_grace, because no node reports
// the last reference then. An owner that restarts is back within that time.
void Directory::watch_owner(Entry& entry, Instant now) {
  if (entry.reduce && entry.reduce->phase == ReducePhase::kRunning) return;
  if (is_orphaned(entry) || entry.copies > 0 || entry.is_excerpt) return;
  const NodeId owner = owner_of(entry);
  if (owner == kNoNode || owner == config_.node || live_.contains(owner)) {
    entry.owner_gone.reset();
    return;
  }
  if (!entry.owner_gone || entry.owner_gone->first != owner) entry.owner_gone = {owner, now};
  const Instant until = entry.owner_gone->second + config_.caller_grace;
  if (now < until) return wake_at(entry, until);
  entry.orphaned_upto = std::max({entry.orphaned_upto, entry.incarnation, Incarnation{1}});
}

bool is_orphaned(const DirectoryEntry& entry) {
  return entry.known && entry.incarnation <= entry.orphaned_upto;
}

// True if nodes that stay keep every stripe of the object and know whether it is an orphan.
bool Directory::is_kept(const Entry& entry) const {
  for (std::size_t stripe = 0; stripe < entry.stripe_count; ++stripe) {
    const bool kept =
        std::any_of(entry.holders.begin(), entry.holders.end(), [&](const auto& each) {
          const auto& [node, holder] = each;
          return !draining_.contains(node) && !holder.stale &&
                 (is_orphaned(entry) ? holder.orphaned : holder.pinned) &&
                 holder.stripes[stripe].state == StripeState::kComplete;
        });
    if (!kept) return false;
  }
  return entry.stripe_count > 0;
}

// Tells each holder the standing that its last claim did not contain. An orphan is handed over
// once; the adopter may evict it. The remains of a lost object hold up no draining node.
void Directory::tell_standing(const ObjectId& object, Entry& entry) {
  if (!entry.known || !entry.committed || !unheard_.empty()) return;
  const bool orphaned = is_orphaned(entry);
  std::optional<bool> kept;
  const bool is_copied =
      entry.copies > 0 && count_keepers(entry, draining_) >= count_wanted(entry, live_, draining_);
  for (auto& [node, holder] : entry.holders) {
    const bool has_some =
        std::any_of(holder.stripes.begin(), holder.stripes.end(),
                    [](const Edge& e) { return e.state == StripeState::kComplete; });
    if (!has_some || holder.stale) continue;
    bool elsewhere = false;
    if (draining_.contains(node)) {
      if (!kept) kept = entry.lost || entry.is_excerpt || is_kept(entry);
      elsewhere = *kept || (orphaned && is_handed_over(holder));
    }
    const std::pair standing(orphaned, elsewhere);
    const bool copied = holder.awaits_copies && is_copied;
    const bool is_known =
        holder.told.value_or(std::pair(holder.orphaned, holder.elsewhere)) == standing;
    if (is_known && !copied) continue;
    holder.told = standing;
    if (copied) holder.awaits_copies = false;
    send(node, Standing{object, entry.incarnation, orphaned, elsewhere, copied});
  }
}

// Returns how many more nodes are to be asked to keep the object: one if only draining nodes keep
// it, and as many as it lacks of its copies.
std::size_t Directory::count_missing(const Entry& entry) const {
  const bool is_due = !draining_.empty() || entry.copies > 1;
  if (!is_due || !entry.known || entry.lost || !entry.committed || !unheard_.empty() ||
      entry.is_excerpt) {
    return 0;
  }
  const auto has = [](const Edge& edge) { return edge.state == StripeState::kComplete; };
  std::size_t keepers = 0;
  for (const NodeId node : entry.adopters) {
    const auto holder = entry.holders.find(node);
    if (holder == entry.holders.end() || !is_keeper(holder->second)) ++keepers;
  }
  bool is_leaving = false;
  for (const auto& [node, holder] : entry.holders) {
    const bool drains = draining_.contains(node);
    if (!drains && is_keeper(holder)) ++keepers;
    is_leaving = is_leaving || (drains && !(is_handed_over(holder) && is_orphaned(entry)) &&
                                std::any_of(holder.stripes.begin(), holder.stripes.end(), has));
  }
  std::size_t wanted = is_leaving && !is_kept(entry) ? 1 : 0;
  if (is_held(entry) && !is_orphaned(entry)) {
    wanted = std::max(wanted, count_wanted(entry, live_, draining_));
  }
  return wanted > keepers ? wanted - keepers : 0;
}

// Asks further nodes to fetch an object and keep it: nodes that already have all of it, then those
// that want it anyway, then the first in rendezvous order that have room.
void Directory::find_adopter(const ObjectId& object, Entry& entry, Instant now) {
  std::size_t missing = count_missing(entry);
  if (missing > 0 && now >= entry.declined_until) entry.declined.clear();
  for (; missing > 0; --missing) {
    std::optional<std::tuple<bool, bool, std::uint64_t>> best;
    NodeId chosen = kNoNode;
    for (const NodeId node : live_) {
      if (draining_.contains(node) || entry.declined.contains(node)) continue;
      const auto at = entry.holders.find(node);
      const Holder* const holder = at == entry.holders.end() ? nullptr : &at->second;
      if (entry.adopters.contains(node) || (holder != nullptr && is_keeper(*holder))) continue;
      const std::tuple rank(holder != nullptr && has_all(*holder),
                            holder != nullptr && holder->wants, weight_of(object, node));
      if (best && rank <= *best) continue;
      best = rank;
      chosen = node;
    }
    if (chosen == kNoNode) {
      if (!entry.declined.empty()) wake_at(entry, entry.declined_until);
      return;
    }
    entry.adopters.insert(chosen);
    const NodeId owner = entry.copies > 0 ? kNoNode : owner_of(entry);
    send(chosen,
         Adopt{object, entry.incarnation, entry.target_epoch, entry.meta, owner, entry.copies});
  }
}

// Handles the answer of the node that was asked: it has the object, fetches it, or declines.
void Directory::note_adopter(NodeId from, const Claim& claim, Entry& entry, Instant now) const {
  if (!entry.adopters.contains(from)) return;
  const bool is_whole =
      !claim.stripes.empty() &&
      std::all_of(claim.stripes.begin(), claim.stripes.end(),
                  [](const StripeClaim& s) { return s.state == StripeState::kComplete; });
  if (claim.wants && claim.pinned) return;
  entry.adopters.erase(from);
  if (is_whole && (claim.pinned || claim.orphaned)) return;
  entry.declined.insert(from);
  entry.declined_until = now + kAdoptRetry;
}

// The grace of a wait begins when the last member has reported, because a member reports its new
// puts as well. A link that breaks again and again defers it at most ten times.
Instant Directory::grace_end(Instant since) const {
  constexpr std::int64_t kDeferralsMax = 10;
  const Instant latest = since + config_.lost_grace * kDeferralsMax;
  return std::max(since, std::min(heard_at_, latest)) + config_.lost_grace;
}

// Answers waits for an object that existed and that no node has claimed for the grace. An
// uncommitted result counts as claimed if a node has or makes a whole stripe of it, or if its
// reduce still runs.
void Directory::expire_waits(const ObjectId& object, Entry& entry, Instant now) {
  const bool may_come = entry.known && (entry.committed || is_held(entry));
  const bool is_running = entry.reduce && entry.reduce->phase == ReducePhase::kRunning;
  if (may_come || is_running || !may_say_lost()) return;
  const bool was_there = entry.reduce && entry.reduce->phase == ReducePhase::kCommitted;
  for (auto& [node, holder] : entry.holders) {
    if (!holder.wants || !(holder.exists || was_there)) continue;
    if (const Instant until = grace_end(holder.since); now < until) {
      wake_at(entry, until);
      continue;
    }
    holder.wants = false;
    ++stats_.losses;
    send(node,
         Lost{object, Code::kObjectLost,
              "object " + short_name(object) +
                  " lost: it was put, and no live node has it (the nodes that held it died)"});
  }
  for (auto at = entry.locates.begin(); at != entry.locates.end();) {
    if (!at->second.locate.exists && !was_there) {
      ++at;
      continue;
    }
    if (const Instant until = grace_end(at->second.since); now < until) {
      wake_at(entry, until);
      ++at;
      continue;
    }
    ++stats_.losses;
    send(at->first, Lost{object, Code::kObjectLost,
                         "object " + short_name(object) +
                             " lost: it was put, and no live node has it (its holders died)"});
    at = entry.locates.erase(at);
  }
}

}  // namespace hoplite
