// Repair of what is alive and doesn't get on: every receiver says each window how far its stripes
// are, and the home moves single edges, resuming where they are (design decision 4). Judged are
// rates over periods in which all get some blocks, never a lag in bytes, and only where the sender
// has what its receiver lacks. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "plan/directory.h"

namespace hoplite {
namespace {

constexpr std::uint8_t kSilentPeriods = 2;
constexpr std::uint8_t kSlowPeriods = 3;  // three strikes
// Blocks that an average edge gets in a period: fewer tell a slow edge from a late block by chance.
constexpr std::int64_t kBlocksPerPeriod = 8;
// An edge that was moved rests for so many periods, twice as many each time: large blocks on a slow
// link arrive before it is moved again.
constexpr std::int64_t kRestPeriods = 4;
constexpr std::uint8_t kRestDoublingsMax = 8;

// A new sender may have so many blocks less: what it lacks comes while the edge is set up.
constexpr std::uint32_t kBlocksBehindMax = 4;

bool receives(const DirectoryEntry::Edge& edge) {
  return edge.state == StripeState::kReceiving && !edge.orphan;
}

// Has the sender of `edge` what its receiver lacks, as far as anybody has said?
bool has_more(const DirectoryEntry& entry, const DirectoryEntry::Edge& edge, std::size_t stripe) {
  const auto sender = entry.holders.find(edge.sender);
  if (sender == entry.holders.end()) return false;
  const DirectoryEntry::Edge& its = sender->second.stripes[stripe];
  if (its.state == StripeState::kComplete) return true;
  if (its.state == StripeState::kReceiving) return its.course.ready > edge.course.ready;
  // A producer says nothing of how far it is; who is ahead of us had it from there.
  return its.state == StripeState::kRoot &&
         std::any_of(entry.holders.begin(), entry.holders.end(), [&](const auto& holder) {
           return holder.second.stripes[stripe].course.ready > edge.course.ready;
         });
}

// Its link was at work for other objects: no other sender would have got it more of this one.
void start_period(DirectoryEntry::Holder& holder, Instant now) {
  holder.marked = now;
  holder.slow = 0;
  for (DirectoryEntry::Edge& edge : holder.stripes) {
    edge.course.mark = edge.course.ready;
    edge.course.silent = edge.course.slow = 0;
  }
}

struct Others {  // what the edges beside one make
  std::optional<std::uint64_t> median;
  bool move = false;

  explicit Others(const std::vector<std::uint64_t>& rates)
      : median(median_of(rates)),
        move(std::any_of(rates.begin(), rates.end(), [](auto rate) { return rate > 0; })) {}
};

}  // namespace

void Directory::handle_progress(NodeId from, const Progress& progress, Instant now) {
  const auto at = entries_.find(progress.object);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  const auto it = entry.holders.find(from);
  const bool current = entry.known && entry.stripe_count > 0 && !entry.lost &&
                       progress.incarnation == entry.incarnation &&
                       progress.target_epoch == entry.target_epoch;
  if (!current || it == entry.holders.end()) return;
  Holder& holder = it->second;
  for (const StripeProgress& stripe : progress.stripes) {
    if (stripe.stripe.value >= holder.stripes.size()) continue;
    Edge& edge = holder.stripes[stripe.stripe.value];
    if (!receives(edge) || edge.lease != stripe.lease) continue;  // fenced: of an edge before it
    edge.course.ready = std::max(edge.course.ready, stripe.ready);
    const std::uint32_t total =
        stripe_blocks(entry.meta.block_count(), entry.stripe_count, stripe.stripe);
    if (!is_beginning(edge.course.ready, total)) entry.has_begun = true;
  }
  holder.heard = now;
  if (progress.stripes.empty()) {
    start_period(holder, now);
    if (has_begun(entry)) return;
    entry.has_begun = true;
    if (entry.stripe_count > 1) grant_whole_plan(progress.object, entry, now);
    return;
  }
  if (judge(progress.object, entry, from, now)) make_leaf(progress.object, entry, from, now);
}

// At the end of a period: which of the node's edges are silent or slow. Returns whether the node
// itself turns out to be.
bool Directory::judge(const ObjectId& object, Entry& entry, NodeId node, Instant now) {
  Holder& holder = entry.holders.at(node);
  const Duration elapsed = now - holder.marked;
  if (elapsed * 4 < period_of(entry, now) * 3) return false;  // reports come a little early as well
  const Instant began = std::exchange(holder.marked, now);
  const Instant since{now.ns - 2 * period_of(entry, now).ns};
  const Others all(rates_beside(entry, node, std::nullopt, since));
  std::vector<std::pair<std::size_t, Capacity>> stuck;
  std::size_t judged = 0;
  std::size_t slow = 0;
  for (std::size_t stripe = 0; stripe < holder.stripes.size(); ++stripe) {
    Edge& edge = holder.stripes[stripe];
    if (!receives(edge)) continue;
    Entry::Course& course = edge.course;
    const std::uint32_t gained = course.ready - std::exchange(course.mark, course.ready);
    if (course.begun > began) continue;  // it had only a part of the period
    ++judged;
    course.judged = now;
    course.rate_bytes_per_s = std::uint64_t{gained} * entry.meta.block_bytes * 1'000'000 /
                              static_cast<std::uint64_t>(elapsed.ns / 1000 + 1);
    const bool fed = has_more(entry, edge, stripe);
    const Others others =
        feeds(entry, node, stripe) ? Others(rates_beside(entry, node, stripe, since)) : all;
    const bool is_slower = fed && is_slow(course.rate_bytes_per_s, others.median);
    course.silent = gained == 0 ? static_cast<std::uint8_t>(course.silent + 1) : std::uint8_t{0};
    course.slow = is_slower ? static_cast<std::uint8_t>(course.slow + 1) : std::uint8_t{0};
    if (is_slower) ++slow;
    const bool is_silent = course.silent >= kSilentPeriods &&
                           ((fed && others.move) || is_mute(entry, edge.sender, now));
    if (is_silent || course.slow >= kSlowPeriods) {
      stuck.emplace_back(stripe, is_silent ? Capacity::kMayOverflow : Capacity::kMustHave);
    }
  }
  for (const auto& [stripe, capacity] : stuck) {
    move_edge(object, entry, node, stripe, capacity, now);
  }
  const bool nearly_all = judged > 0 && slow * 4 >= judged * 3;
  holder.slow = nearly_all ? static_cast<std::uint8_t>(holder.slow + 1) : std::uint8_t{0};
  return holder.slow == kSlowPeriods && !holder.leaf_only;
}

// Does any other node get its bytes of the stripe through this one?
bool Directory::feeds(const Entry& entry, NodeId node, std::size_t stripe) const {
  return std::any_of(entry.holders.begin(), entry.holders.end(), [&](const auto& each) {
    const auto& [other, holder] = each;
    return other != node && stripe < holder.stripes.size() && receives(holder.stripes[stripe]) &&
           !depth_of(entry, other, node, stripe);
  });
}

// What the other edges made in their last period, but for those of the stripe that get their bytes
// through this one and are held up with it.
std::vector<std::uint64_t> Directory::rates_beside(const Entry& entry, NodeId node,
                                                   std::optional<std::size_t> stripe,
                                                   Instant since) const {
  std::vector<std::uint64_t> rates;
  for (const auto& [other, holder] : entry.holders) {
    if (other == node) continue;
    for (std::size_t i = 0; i < holder.stripes.size(); ++i) {
      const Edge& edge = holder.stripes[i];
      if (!receives(edge) || edge.course.judged < since) continue;
      if (i == stripe && !depth_of(entry, other, node, i)) continue;
      rates.push_back(edge.course.rate_bytes_per_s);
    }
  }
  return rates;
}

// A window, or as long as an average edge takes for a few blocks: on a slow network with large
// blocks, no block in a window means nothing.
Duration Directory::period_of(const Entry& entry, Instant now) const {
  std::int64_t blocks = 0;
  std::int64_t taken_ns = 0;
  for (const auto& [node, holder] : entry.holders) {
    for (const Edge& edge : holder.stripes) {
      if (!receives(edge)) continue;
      blocks += edge.course.ready - edge.course.first;
      taken_ns += (now - edge.course.begun).ns;
    }
  }
  return std::max(config_.progress_window,
                  Duration{taken_ns * kBlocksPerPeriod / std::max<std::int64_t>(blocks, 1)});
}

// It is receiving, and has not said so for longer than it should have.
bool Directory::is_mute(const Entry& entry, NodeId node, Instant now) const {
  const auto it = entry.holders.find(node);
  if (it == entry.holders.end()) return false;
  bool is_receiving = false;
  Instant heard = it->second.heard;
  for (const Edge& edge : it->second.stripes) {
    if (!receives(edge)) continue;
    is_receiving = true;
    heard = std::max(heard, edge.course.begun);
  }
  return is_receiving && now - heard > config_.progress_window * 2;
}

// Does it get the stripe, and will it go on to: from a holder, over nobody who is mute or to be a
// leaf, and over no edge that is silent?
bool Directory::is_sound(const Entry& entry, NodeId node, std::size_t stripe, Instant now) const {
  for (std::size_t steps = 0; steps <= entry.holders.size(); ++steps) {
    const auto it = entry.holders.find(node);
    if (it == entry.holders.end() || it->second.leaf_only) return false;
    const Edge& edge = it->second.stripes[stripe];
    if (edge.state != StripeState::kReceiving) return edge.state != StripeState::kIdle;
    if (edge.orphan || is_mute(entry, node, now)) return false;
    if (edge.course.silent >= kSilentPeriods) return false;
    node = edge.sender;
  }
  return false;
}

// To a sound sender that is not behind the receiver; those next to it, moved away from the same
// node, are about as far. Returns whether there was one.
bool Directory::move_edge(const ObjectId& object, Entry& entry, NodeId node, std::size_t stripe,
                          Capacity capacity, Instant now) {
  Edge& edge = entry.holders.at(node).stripes[stripe];
  if (now < edge.course.rests_until) return false;
  auto candidates = find_candidates(entry, node, stripe, edges_by_sender(entry, now));
  std::erase_if(candidates, [&](const SenderCandidate& candidate) {
    const Edge& its = entry.holders.at(candidate.node).stripes[stripe];
    const bool behind = its.state == StripeState::kReceiving &&
                        its.course.ready + kBlocksBehindMax < edge.course.ready;
    const bool full = candidate.edges >= entry.stripe_count;
    return behind || candidate.node == edge.sender ||
           !is_sound(entry, candidate.node, stripe, now) ||
           (full && capacity == Capacity::kMustHave);
  });
  const auto sender = choose_sender(candidates, room_of(entry));
  if (!sender) return false;
  ++stats_.moves;
  edge.failed = edge.sender;
  const auto doublings = std::min(edge.course.moves, kRestDoublingsMax);
  ++edge.course.moves;
  edge.course.rests_until = now + period_of(entry, now) * (kRestPeriods << doublings);
  grant(object, entry, node, stripe, *sender, now);
  return true;
}

// Whoever depends on it moves away.
void Directory::make_leaf(const ObjectId& object, Entry& entry, NodeId node, Instant now) {
  entry.holders.at(node).leaf_only = true;
  for (auto& [other, holder] : entry.holders) {
    for (std::size_t stripe = 0; stripe < holder.stripes.size(); ++stripe) {
      const Edge& edge = holder.stripes[stripe];
      if (!receives(edge) || edge.sender != node) continue;
      move_edge(object, entry, other, stripe, Capacity::kMayOverflow, now);
    }
  }
}

}  // namespace hoplite
