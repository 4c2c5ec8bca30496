// Who keeps what, and for how long: objects whose owner has died, and those that a draining node
// hands over. Derived from the claims alone, so that it survives every death and every change of
// view: a home that forgets whom it asked asks again. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/directory.h"

namespace hoplite {
namespace {

// All nodes have declined to keep an object: one may have room by then.
constexpr Duration kAdoptRetry = 1_s;

// The node that tells of the last reference: the caller's node of a reduce, else the node that put
// it, also when other nodes keep it for that one.
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

// Has the node that drains heard, or is it about to, that another one keeps the object?
bool is_handed_over(const DirectoryEntry::Holder& holder) {
  return holder.elsewhere || (holder.told && holder.told->second);
}

}  // namespace

void Directory::handle_orphan(const Orphan& orphan, Instant now) {
  if (is_deleted(orphan.object)) return;
  Entry& entry = entries_[orphan.object];
  const Incarnation upto =
      orphan.upto.value > 0 ? orphan.upto : std::max(entry.incarnation, Incarnation{1});
  entry.orphaned_upto = std::max(entry.orphaned_upto, upto);
  entry.orphan_until = now + config_.tombstone_life;
  service(orphan.object, now);
}

void Directory::handle_draining(NodeId node, bool draining, Instant now) {
  const bool changed = draining ? draining_.insert(node).second : draining_.erase(node) > 0;
  if (changed) service_all(now);
}

// Where the owner has gone for good, nobody tells any more. Its next life comes within the grace.
void Directory::watch_owner(Entry& entry, Instant now) {
  if (entry.reduce && entry.reduce->phase == ReducePhase::kRunning) return;
  if (is_orphaned(entry)) return;
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

bool Directory::is_orphaned(const Entry& entry) {
  return entry.known && entry.incarnation <= entry.orphaned_upto;
}

// Does a node that stays keep every stripe of it, and know whether it is an orphan's?
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

// Each holder hears what its last claim did not say. An orphan that was handed over once has had
// its chance: the adopter may evict it. What is left of a lost object holds up no node that drains.
void Directory::tell_standing(const ObjectId& object, Entry& entry) {
  if (!entry.known || !entry.committed || !unheard_.empty()) return;
  const bool orphaned = is_orphaned(entry);
  std::optional<bool> kept;
  for (auto& [node, holder] : entry.holders) {
    const bool has_some =
        std::any_of(holder.stripes.begin(), holder.stripes.end(),
                    [](const Edge& e) { return e.state == StripeState::kComplete; });
    if (!has_some || holder.stale) continue;
    bool elsewhere = false;
    if (draining_.contains(node)) {
      if (!kept) kept = entry.lost || is_kept(entry);
      elsewhere = *kept || (orphaned && is_handed_over(holder));
    }
    const std::pair standing(orphaned, elsewhere);
    if (holder.told.value_or(std::pair(holder.orphaned, holder.elsewhere)) == standing) continue;
    holder.told = standing;
    send(node, Standing{object, entry.incarnation, orphaned, elsewhere});
  }
}

// What only draining nodes keep is fetched by another one: by one that has all of it already, else
// by the first in rendezvous order that has room.
void Directory::find_adopter(const ObjectId& object, Entry& entry, Instant now) {
  if (draining_.empty() || !entry.known || entry.lost || !entry.committed || !unheard_.empty()) {
    return;
  }
  const auto has = [](const Edge& edge) { return edge.state == StripeState::kComplete; };
  bool is_leaving = false;
  for (const auto& [node, holder] : entry.holders) {
    const bool drains = draining_.contains(node);
    const bool whole = std::all_of(holder.stripes.begin(), holder.stripes.end(), has);
    if (!drains && holder.pinned && (holder.wants || whole)) return;  // fetched, or just not told
    is_leaving = is_leaving || (drains && !(is_handed_over(holder) && is_orphaned(entry)) &&
                                std::any_of(holder.stripes.begin(), holder.stripes.end(), has));
  }
  if (!is_leaving || entry.adopter != kNoNode || is_kept(entry)) return;
  if (now >= entry.declined_until) entry.declined.clear();
  std::optional<std::pair<bool, std::uint64_t>> best;
  for (const NodeId node : live_) {
    if (draining_.contains(node) || entry.declined.contains(node)) continue;
    const auto holder = entry.holders.find(node);
    const bool whole =
        holder != entry.holders.end() && !holder->second.stripes.empty() &&
        std::all_of(holder->second.stripes.begin(), holder->second.stripes.end(), has);
    const std::pair rank(whole, weight_of(object, node));
    if (best && rank <= *best) continue;
    best = rank;
    entry.adopter = node;
  }
  if (entry.adopter == kNoNode) {
    if (!entry.declined.empty()) wake_at(entry, entry.declined_until);
    return;
  }
  send(entry.adopter,
       Adopt{object, entry.incarnation, entry.target_epoch, entry.meta, owner_of(entry)});
}

// An answer of the node that was asked: it has it, or fetches it, or declines.
void Directory::note_adopter(NodeId from, const Claim& claim, Entry& entry, Instant now) const {
  if (from != entry.adopter) return;
  const bool is_whole =
      !claim.stripes.empty() &&
      std::all_of(claim.stripes.begin(), claim.stripes.end(),
                  [](const StripeClaim& s) { return s.state == StripeState::kComplete; });
  if (claim.wants && claim.pinned) return;
  entry.adopter = kNoNode;
  if (is_whole && (claim.pinned || claim.orphaned)) return;
  entry.declined.insert(from);
  entry.declined_until = now + kAdoptRetry;
}

}  // namespace hoplite
