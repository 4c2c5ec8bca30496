// SPDX-License-Identifier: Apache-2.0
// Messages that the directory sends: after any change, service() looks at the entry and sends all
// that it owes.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/directory/directory.h"

namespace hoplite {

namespace {

// An eighth of the time that the object takes at 10 Gbit/s. Within it the origin sends a new
// interior node at most an eighth of a stripe again.
Duration beginning_of(const ObjectMeta& meta) {
  return {static_cast<std::int64_t>(meta.size_bytes / 10)};  // bytes per 1.25 GB/s are 0.8 ns each
}

std::size_t count_waiting(const DirectoryEntry& entry) {
  const auto waiting = std::count_if(entry.holders.begin(), entry.holders.end(),
                                     [](const auto& holder) { return holder.second.wants; });
  return static_cast<std::size_t>(waiting);
}

// True if questions of all members take the home's port longer than a copy and its messages, and
// than two hops. Everything else then comes late to the home, so it should feed no other receiver.
// False if all wait for a plan: they have asked before.
bool is_swamped(const DirectoryEntry& entry, const EngineConfig& config, std::size_t live) {
  const std::int64_t heard_ns = static_cast<std::int64_t>(live) * kMessageNs;
  const double bytes_ns = static_cast<double>(entry.meta.size_bytes) * 1e9 /
                          static_cast<double>(config.link_bytes_per_s);
  const std::int64_t copy_ns =
      static_cast<std::int64_t>(bytes_ns) + entry.meta.block_count() * kMessageNs;
  if (heard_ns <= std::max(copy_ns, 2 * kHopNs)) return false;
  return count_waiting(entry) + 1 < live || !is_untouched(entry);
}

// `live`: number of live members of the view, including the holder.
BroadcastSize size_of(const DirectoryEntry& entry, const EngineConfig& config, std::size_t live) {
  const auto own = entry.holders.find(config.node);
  const bool is_leaf =
      own != entry.holders.end() && own->second.wants && is_swamped(entry, config, live);
  return {.size_bytes = entry.meta.size_bytes,
          .block_bytes = entry.meta.block_bytes,
          .waiting = count_waiting(entry) - (is_leaf ? 1 : 0),
          .members = live - std::min<std::size_t>(live, 1),
          .link_bytes_per_s = config.link_bytes_per_s};
}

std::uint16_t stripes_for(const DirectoryEntry& entry, const EngineConfig& config,
                          std::size_t live) {
  if (config.broadcast_stripes == 0) return choose_stripes(size_of(entry, config, live));
  const auto blocks = std::max<std::uint32_t>(entry.meta.block_count(), 1);
  return static_cast<std::uint16_t>(std::min<std::uint32_t>(config.broadcast_stripes, blocks));
}

// Receivers that are told once of all stripes. Telling fewer of them twice takes under five hops.
constexpr std::size_t kReceiversTogetherMin = 32;

// True if the node is to be a leaf, or gets the stripe through such a node.
bool is_below_slow(const DirectoryEntry& entry, NodeId node, std::size_t stripe) {
  for (std::size_t steps = 0; steps <= entry.holders.size(); ++steps) {
    const auto it = entry.holders.find(node);
    if (it == entry.holders.end()) return false;
    if (it->second.leaf_only) return true;
    const DirectoryEntry::Edge& edge = it->second.stripes[stripe];
    if (edge.state != StripeState::kReceiving || edge.orphan) return false;
    node = edge.sender;
  }
  return false;
}

// Many receivers of a result wait until each stripe has an owner, so that the home tells each once.
// No receiver has the result before the last owner folds its stripe.
bool awaits_owners(const DirectoryEntry& entry) {
  if (entry.target_epoch.value == 0 || entry.committed) return false;
  if (count_waiting(entry) < kReceiversTogetherMin) return false;
  for (std::size_t stripe = 0; stripe < entry.stripe_count; ++stripe) {
    const bool is_owned =
        std::any_of(entry.holders.begin(), entry.holders.end(), [&](const auto& holder) {
          return holder.second.stripes.size() > stripe &&
                 holder.second.stripes[stripe].state >= StripeState::kRoot;
        });
    if (!is_owned) return true;
  }
  return false;
}

}  // namespace

bool is_held(const DirectoryEntry& entry) {
  return std::any_of(entry.holders.begin(), entry.holders.end(), [](const auto& holder) {
    return std::any_of(holder.second.stripes.begin(), holder.second.stripes.end(),
                       [](const DirectoryEntry::Edge& edge) {
                         return edge.state == StripeState::kRoot ||
                                edge.state == StripeState::kComplete;
                       });
  });
}

// Serves what was claimed since the last service: many claims of one object cost one service.
void Directory::serve_claims() {
  for (const ObjectId& object : std::exchange(unserved_, {})) service(object, claimed_at_);
}

void Directory::service(const ObjectId& object, Instant now) {
  const auto it = entries_.find(object);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  if (entry.deadline) timers_.erase({*entry.deadline, object});
  entry.deadline.reset();

  decide_stripes(entry);
  expire_pushes(entry, now);
  watch_owner(entry, now);
  if (!entry.lost) {
    if (const auto why = why_lost(entry)) {
      entry.lost = true;
      entry.lost_code = Code::kObjectLost;
      entry.lost_text = "object " + short_name(object) + " lost: " + *why;
      ++stats_.losses;
    }
  }
  if (entry.lost && entry.orphaned_upto.value > 0 && entry.incarnation <= entry.orphaned_upto) {
    // No owner is left to delete the object. A reduce's plan goes with it.
    const Delete request{object, entry.orphaned_upto};
    send(config_.node, request);
    return begin_deletion(kNoNode, request, entry, now);
  }
  if (entry.lost) {
    // A member of this view or a newer one may have put the object again: hear all claims first.
    if (may_say_lost()) answer_lost(object, entry);
  } else if (entry.known && entry.meta.size_bytes <= config_.inline_bytes_max) {
    push_small(object, entry, now);
  } else if (entry.known) {
    grant_stripes(object, entry, now);
  }
  answer_locates(object, entry, now);
  expire_waits(object, entry, now);
  tell_standing(object, entry);
  find_adopter(object, entry, now);
  const bool is_news = now < entry.orphan_until;
  if (is_news) wake_at(entry, entry.orphan_until);
  if (entry.holders.empty() && entry.locates.empty() && !entry.lost && !entry.reduce && !is_news) {
    entries_.erase(it);
    return;
  }
  schedule(object, entry);
}

void Directory::decide_stripes(Entry& entry) const {
  if (!entry.known) return;
  const bool small = entry.meta.size_bytes <= config_.inline_bytes_max;
  // The owners of a reduce decide how many stripes its result has.
  if (entry.stripe_count == 0 && entry.target_epoch.value > 0 && !small && !is_held(entry)) return;
  if (small) {
    entry.stripe_count = 1;
  } else if (entry.stripe_count == 0 || is_untouched(entry)) {
    recut(entry, stripes_for(entry, config_, live_.size()));
  }
  for (auto& [node, holder] : entry.holders) {
    const std::size_t had = holder.stripes.size();
    if (had == entry.stripe_count) continue;
    const Edge first = had == 1 ? holder.stripes[0] : Edge{};
    holder.stripes.assign(entry.stripe_count,
                          first.state == StripeState::kReceiving ? Edge{} : first);
  }
  for (auto& [node, holder] : entry.holders) {
    for (Edge& edge : holder.stripes) {
      if (edge.state == StripeState::kReceiving && unheard_.empty() &&
          !entry.holders.contains(edge.sender)) {
        edge.orphan = true;
      }
    }
  }
}

SenderRoom Directory::room_of(const Entry& entry) const {
  const auto depth = choose_depth(size_of(entry, config_, live_.size()), entry.stripe_count);
  // Receivers that come over more than a copy's time find nodes that have sent theirs.
  const bool has_time = is_swamped(entry, config_, live_.size()) && depth != UINT32_MAX;
  return {.edges = entry.stripe_count, .depth = has_time ? (depth + 1) / 2 : depth};
}

// Returns why an object is lost, or nothing. It is lost when some stripe has neither a complete nor
// a producing holder. A receiver whose sender died counts as a holder until it says how far it got.
std::optional<std::string> Directory::why_lost(const Entry& entry) const {
  if (!entry.known || !may_say_lost() || !entry.committed) return std::nullopt;
  if (entry.is_excerpt) return std::nullopt;  // its readers have it made again
  for (std::size_t stripe = 0; stripe < std::max<std::size_t>(entry.stripe_count, 1); ++stripe) {
    bool held = false;
    for (const auto& [node, holder] : entry.holders) {
      if (entry.stripe_count == 0) break;
      const Edge& edge = holder.stripes[stripe];
      held = held || edge.orphan || edge.state == StripeState::kRoot ||
             edge.state == StripeState::kComplete;
    }
    if (!held && is_orphaned(entry)) {
      return kLostAsOrphan;
    }
    if (!held) {
      return std::to_string(entry.holders.size()) +
             " nodes know it and none has all of it; its last complete holder died, evicted it or "
             "gave it up";
    }
  }
  return std::nullopt;
}

void Directory::answer_lost(const ObjectId& object, Entry& entry) {
  const Lost lost{object, entry.lost_code, entry.lost_text};
  for (auto& [node, holder] : entry.holders) {
    if (!holder.wants) continue;
    holder.wants = false;
    send(node, lost);
  }
  for (const auto& [node, locate] : entry.locates) send(node, lost);
  entry.locates.clear();
}

// No receiver claims anew when the pusher of a small object dies, because receivers don't know the
// pusher. An object that has not come by the time of the next push never comes.
void Directory::expire_pushes(Entry& entry, Instant now) {
  if (!entry.known || entry.meta.size_bytes > config_.inline_bytes_max) return;
  for (auto& [node, holder] : entry.holders) {
    for (Edge& edge : holder.stripes) {
      if (edge.state != StripeState::kReceiving || !edge.orphan) continue;
      if (now < edge.not_before) {
        wake_at(entry, edge.not_before);
      } else {
        edge = Edge{};
      }
    }
  }
}

// Pushes a small object to all receivers that wait. Above forward_list_max at once, the first
// receivers pass it on. A receiver that has not acknowledged it with a claim in time gets it
// directly (decision 18).
void Directory::push_small(const ObjectId& object, Entry& entry, Instant now) {
  if (!entry.committed) return;
  NodeId holder_node = kNoNode;
  for (const auto& [node, holder] : entry.holders) {
    const Edge& edge = holder.stripes[0];
    if (edge.state != StripeState::kComplete) continue;
    if (holder_node == kNoNode || node == config_.node) holder_node = node;
  }
  if (holder_node == kNoNode) return;
  std::vector<NodeId> fresh;
  std::vector<NodeId> again;
  for (auto& [node, holder] : entry.holders) {
    Edge& edge = holder.stripes[0];
    if (!holder.wants || edge.state == StripeState::kComplete) continue;
    const bool repeated = edge.state == StripeState::kReceiving;
    if (now < edge.not_before) {
      wake_at(entry, edge.not_before);
      continue;
    }
    (repeated ? again : fresh).push_back(node);
    edge.state = StripeState::kReceiving;
    edge.sender = holder_node;
    edge.granted = epoch_;
    edge.not_before = now + config_.push_retry;
    wake_at(entry, edge.not_before);
  }
  stats_.pushes += fresh.size() + again.size();
  std::vector<std::vector<NodeId>> lists(std::min(fresh.size(), config_.forward_list_max));
  for (std::size_t i = 0; i < fresh.size(); ++i) lists[i % lists.size()].push_back(fresh[i]);
  for (const NodeId node : again) lists.push_back({node});
  for (std::vector<NodeId>& list : lists) {
    if (holder_node != config_.node) {
      send(holder_node, PushTo{object, entry.incarnation, std::move(list)});
      continue;
    }
    const NodeId to = list.front();
    list.erase(list.begin());
    send(to, Push{object, entry.incarnation, entry.target_epoch, entry.meta, std::move(list)},
         true);
  }
}

void Directory::grant_stripes(const ObjectId& object, Entry& entry, Instant now) {
  if (awaits_owners(entry)) return;
  const bool is_first = is_untouched(entry);
  if (is_first && grant_whole_plan(object, entry, now)) return;
  if (is_first) entry.interiors_until = now + beginning_of(entry.meta);
  SenderEdges edges;
  std::vector<NodeId> receivers;
  for (const auto& [node, holder] : entry.holders) {
    if (holder.wants) receivers.push_back(node);
  }
  // A swamped home comes last. Alone it waits for two hops, so that another receiver feeds it.
  if (is_swamped(entry, config_, live_.size())) {
    std::ranges::stable_partition(receivers, [&](NodeId node) { return node != config_.node; });
    const bool is_alone = receivers.size() == 1 && receivers[0] == config_.node;
    const Instant turn =
        is_alone ? entry.holders.at(config_.node).since + Duration{2 * kHopNs} : now;
    if (now < turn) return wake_at(entry, turn);
  }
  for (const NodeId node : receivers) {
    const Holder& holder = entry.holders.at(node);
    const auto before = entry.last_lease;
    join_as_interior(object, entry, node, now);
    if (edges.empty() || entry.last_lease > before) edges = edges_by_sender(entry, now);
    for (std::size_t stripe = 0; stripe < entry.stripe_count; ++stripe) {
      const Edge& edge = holder.stripes[stripe];
      const bool idle = edge.state == StripeState::kIdle ||
                        (edge.state == StripeState::kReceiving && edge.orphan);
      if (!idle) continue;
      const auto sender =
          choose_sender(find_candidates(entry, node, stripe, edges), room_of(entry));
      if (!sender) continue;
      if (*sender == edge.failed && now < edge.not_before) {
        wake_at(entry, edge.not_before);
        continue;
      }
      const bool did_count = counts(entry, node, now);
      grant(object, entry, node, stripe, *sender, now);
      if (did_count) {
        ++edges[*sender];
      } else {
        edges = edges_by_sender(entry, now);
      }
    }
  }
}

bool has_begun(const DirectoryEntry& entry) {
  const std::uint32_t total = stripe_blocks(entry.meta.block_count(), entry.stripe_count, {});
  return entry.has_begun || !is_beginning(0, total);
}

// Gives all waiting receivers their places at once: when the object becomes known, and again for a
// forest when some node's link turns out to be busy with other objects.
// Order: a ring behind the origin for one stripe, or once bytes flow. Many broadcasts may then
// share the links, and in a ring each node sends the same amount. Otherwise a hash of object and
// node, so that no node is near the top of all forests.
bool Directory::grant_whole_plan(const ObjectId& object, Entry& entry, Instant now) {
  if (entry.target_epoch.value > 0 || entry.stripe_count == 0) return false;
  NodeId origin = kNoNode;
  std::vector<NodeId> receivers;
  const bool is_leaf = is_swamped(entry, config_, live_.size());
  for (const auto& [node, holder] : entry.holders) {
    if (is_leaf && node == config_.node && holder.wants) continue;
    const bool is_sound =
        std::none_of(holder.stripes.begin(), holder.stripes.end(),
                     [](const Edge& edge) { return edge.orphan || edge.failed != kNoNode; });
    if (!is_sound) return false;
    if (holder.wants) {
      receivers.push_back(node);
    } else if (!holder.stripes.empty() && holder.stripes[0].state >= StripeState::kRoot) {
      if (origin != kNoNode) return false;  // the planned tree has one root
      origin = node;
    }
  }
  if (origin == kNoNode || receivers.size() < 2) return false;
  const bool in_ring = entry.stripe_count == 1 || has_begun(entry);
  const auto place = [&](NodeId node) {
    return in_ring ? node.value - origin.value : weight_of(object, node);
  };
  std::sort(receivers.begin(), receivers.end(),
            [&](NodeId a, NodeId b) { return place(a) < place(b); });
  const ForestPlan plan(static_cast<std::uint32_t>(receivers.size()), entry.stripe_count);
  for (std::uint32_t i = 0; i < receivers.size(); ++i) {
    for (std::uint16_t stripe = 0; stripe < entry.stripe_count; ++stripe) {
      const std::uint32_t from = plan.sender(i, StripeIndex{stripe});
      const NodeId sender = from == ForestPlan::kOrigin ? origin : receivers[from];
      const Edge& edge = entry.holders.at(receivers[i]).stripes[stripe];
      if (edge.state >= StripeState::kRoot || edge.sender == sender) continue;
      grant(object, entry, receivers[i], stripe, sender, now);
    }
  }
  return true;
}

// Receivers that ask at almost the same time get a forest instead of a chain in all stripes. While
// the first receivers have next to nothing, the origin feeds a newcomer the stripe that it is
// interior for. The newcomer feeds that stripe to the others.
void Directory::join_as_interior(const ObjectId& object, Entry& entry, NodeId node, Instant now) {
  if (entry.stripe_count == 0 || now > entry.interiors_until) return;
  const Holder& holder = entry.holders.at(node);
  const std::size_t stripe = holder.slot % entry.stripe_count;
  if (holder.stripes[stripe].state != StripeState::kIdle) return;
  NodeId origin = kNoNode;
  std::vector<NodeId> fed;
  for (const auto& [other, its] : entry.holders) {
    const Edge& edge = its.stripes[stripe];
    if (edge.state >= StripeState::kRoot) {
      if (origin != kNoNode) return;
      origin = other;
    } else if (edge.state == StripeState::kReceiving) {
      if (its.slot % entry.stripe_count == stripe) return;
      fed.push_back(other);
    }
  }
  const bool failed = holder.stripes[stripe].failed == origin;
  if (origin == kNoNode || failed || fed.empty() || fed.size() > entry.stripe_count) return;
  grant(object, entry, node, stripe, origin, now);
  for (const NodeId other : fed) grant(object, entry, other, stripe, node, now);
}

void Directory::grant(const ObjectId& object, Entry& entry, NodeId node, std::size_t stripe,
                      NodeId sender, Instant now) {
  Holder& holder = entry.holders.at(node);
  const bool is_first =
      std::none_of(holder.stripes.begin(), holder.stripes.end(),
                   [](const Edge& e) { return e.state == StripeState::kReceiving; });
  if (is_first) holder.marked = now;  // its first period begins
  Edge& edge = holder.stripes[stripe];
  if (edge.lease.value > 0) ++stats_.regrants;
  ++stats_.grants;
  entry.last_lease = LeaseId{entry.last_lease.value + 1};
  edge.state = StripeState::kReceiving;
  edge.orphan = false;
  edge.lease = entry.last_lease;
  edge.sender = sender;
  edge.granted = epoch_;
  edge.course.begun = now;
  edge.course.first = edge.course.mark = edge.course.ready;
  edge.course.silent = edge.course.slow = 0;
  send_lease(object, entry, node,
             {StripeIndex{static_cast<std::uint16_t>(stripe)}, sender, edge.lease});
}

// Adds the lease to the last message to that node if that is a grant of the same bytes, so that one
// message leases all stripes of a receiver. Otherwise it begins a grant.
void Directory::send_lease(const ObjectId& object, const Entry& entry, NodeId to,
                           StripeLease lease) {
  const auto open = open_grants_.find(to);
  if (open != open_grants_.end() && open->second >= parcels_polled_) {
    auto& grant = std::get<Grant>(parcels_[open->second - parcels_polled_].body);
    const bool is_it = grant.object == object && name_of_bytes(grant) == name_of_bytes(entry) &&
                       grant.stripe_count == entry.stripe_count;
    if (is_it) {
      std::erase_if(grant.leases, [&](const auto& old) { return old.stripe == lease.stripe; });
      grant.leases.push_back(lease);
      return;
    }
  }
  Grant grant{object,     entry.incarnation,  entry.target_epoch,
              entry.meta, entry.stripe_count, {lease}};
  send(to, std::move(grant));
  const std::uint64_t place = parcels_polled_ + parcels_.size() - 1;
  if (entry.reduce && entry.committed) send(to, *entry.reduce);
  open_grants_[to] = place;
}

// True if the receiver's edge uses up its sender's room. Slow and mute nodes take next to no
// upload.
bool Directory::counts(const Entry& entry, NodeId receiver, Instant now) const {
  return !entry.holders.at(receiver).leaf_only && !is_mute(entry, receiver, now);
}

SenderEdges Directory::edges_by_sender(const Entry& entry, Instant now) const {
  SenderEdges edges;
  for (const auto& [node, holder] : entry.holders) {
    if (!counts(entry, node, now)) continue;
    for (const Edge& edge : holder.stripes) {
      if (edge.state == StripeState::kReceiving && !edge.orphan) ++edges[edge.sender];
    }
  }
  return edges;
}

std::vector<SenderCandidate> Directory::find_candidates(const Entry& entry, NodeId receiver,
                                                        std::size_t stripe,
                                                        const SenderEdges& edges) const {
  const Edge& wanted = entry.holders.at(receiver).stripes[stripe];
  std::vector<SenderCandidate> candidates;
  const NodeId swamped = is_swamped(entry, config_, live_.size()) ? config_.node : kNoNode;
  for (const auto& [node, holder] : entry.holders) {
    const Edge& edge = holder.stripes[stripe];
    if (node == receiver || edge.state == StripeState::kIdle || edge.orphan) continue;
    const auto depth = depth_of(entry, node, receiver, stripe);
    if (!depth) continue;
    const bool receives = edge.state == StripeState::kReceiving;
    const auto of_node = edges.find(node);
    candidates.push_back(
        {.node = node,
         .complete = edge.state == StripeState::kComplete,
         .origin = holder.pinned,
         .failed = node == wanted.failed,
         .slow = is_below_slow(entry, node, stripe) || (node == swamped && receives),
         .behind = receives && edge.course.ready < wanted.course.ready,
         .preferred = entry.target_epoch.value > 0 ? edge.state == StripeState::kRoot
                                                   : holder.slot % entry.stripe_count == stripe,
         .depth = *depth,
         .edges = of_node == edges.end() ? 0 : of_node->second});
  }
  return candidates;
}

// Returns the number of edges between `node` and a complete or producing holder. Returns nothing if
// `node` depends on `receiver` or on a node that died. The walk takes one step a holder at most.
std::optional<std::uint32_t> Directory::depth_of(const Entry& entry, NodeId node, NodeId receiver,
                                                 std::size_t stripe) const {
  std::uint32_t depth = 0;
  while (node != receiver && depth <= entry.holders.size()) {
    const auto it = entry.holders.find(node);
    if (it == entry.holders.end()) return std::nullopt;
    const Edge& edge = it->second.stripes[stripe];
    if (edge.state == StripeState::kComplete || edge.state == StripeState::kRoot) return depth;
    if (edge.state == StripeState::kIdle || edge.orphan) return std::nullopt;
    node = edge.sender;
    ++depth;
  }
  return std::nullopt;
}

// Answers with a holder of the whole object, preferably the asker itself. If the stripes are only
// spread over nodes, the answer names no node, and the asker fetches the object whole.
void Directory::answer_locates(const ObjectId& object, Entry& entry, Instant now) {
  if (!entry.known || !entry.committed || entry.lost || entry.stripe_count == 0) return;
  const auto has = [](const Edge& edge) {
    return edge.state == StripeState::kComplete || edge.state == StripeState::kRoot;
  };
  for (auto it = entry.locates.begin(); it != entry.locates.end();) {
    const Incarnation asked = it->second.locate.incarnation;
    if (asked.value > 0 && asked != entry.incarnation) {
      if (asked < entry.incarnation) {
        send(it->first, Lost{object, Code::kObjectLost,
                             "object " + short_name(object) + " was put again by a later attempt"});
        it = entry.locates.erase(it);
      } else {
        ++it;
      }
      continue;
    }
    NodeId best = kNoNode;
    bool spread = true;
    for (std::size_t stripe = 0; stripe < entry.stripe_count; ++stripe) {
      spread = spread && std::any_of(entry.holders.begin(), entry.holders.end(),
                                     [&](const auto& h) { return has(h.second.stripes[stripe]); });
    }
    for (const auto& [node, holder] : entry.holders) {
      if (!std::all_of(holder.stripes.begin(), holder.stripes.end(), has)) continue;
      const bool failed = node == it->second.locate.failed;
      if (best == kNoNode || node == it->first || best == it->second.locate.failed) {
        if (!failed || best == kNoNode) best = node;
      }
    }
    if (best == kNoNode && !spread) {
      ++it;
      continue;
    }
    const bool only_failed = best != kNoNode && best == it->second.locate.failed;
    if (only_failed && now - it->second.since < config_.regrant_delay) {
      wake_at(entry, it->second.since + config_.regrant_delay);
      ++it;
      continue;
    }
    const auto own = entry.holders.find(config_.node);
    const bool is_here = own != entry.holders.end() &&
                         std::all_of(own->second.stripes.begin(), own->second.stripes.end(), has);
    const bool carries = is_here && best != it->first && entry.meta.size_bytes > 0 &&
                         entry.meta.size_bytes <= it->second.locate.bytes_max &&
                         entry.meta.size_bytes <= config_.inline_bytes_max;
    send(it->first, Located{object, entry.incarnation, entry.meta, best}, carries);
    it = entry.locates.erase(it);
  }
}

void Directory::wake_at(Entry& entry, Instant at) {
  if (!entry.deadline || at < *entry.deadline) entry.deadline = at;
}

void Directory::schedule(const ObjectId& object, Entry& entry) {
  if (entry.deadline) timers_.insert({*entry.deadline, object});
}

void Directory::check_invariants() const {
  deletions_.check_invariants();
  for (const auto& [at, object] : timers_) {
    HOPLITE_CHECK(entries_.contains(object));
    HOPLITE_CHECK(entries_.at(object).deadline == at);
  }
  for (const auto& [object, entry] : entries_) {
    if (entry.deadline) HOPLITE_CHECK(timers_.contains({*entry.deadline, object}));
    if (!entry.known) continue;
    for (const auto& [node, holder] : entry.holders) {
      for (std::size_t stripe = 0; stripe < holder.stripes.size(); ++stripe) {
        const Edge& edge = holder.stripes[stripe];
        if (edge.state != StripeState::kReceiving || edge.orphan) continue;
        HOPLITE_CHECK(edge.sender != node);
        // No cycle: the walk to the root ends before it has passed every holder.
        NodeId at = node;
        std::size_t steps = 0;
        while (entry.holders.contains(at) && entry.holders.at(at).stripes.size() > stripe &&
               entry.holders.at(at).stripes[stripe].state == StripeState::kReceiving &&
               !entry.holders.at(at).stripes[stripe].orphan) {
          HOPLITE_CHECK(++steps <= entry.holders.size());
          at = entry.holders.at(at).stripes[stripe].sender;
        }
      }
    }
  }
}

}  // namespace hoplite
