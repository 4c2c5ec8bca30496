// SPDX-License-Identifier: Apache-2.0
// Repair of edges that are alive but silent or slow. Every receiver reports its stripes each
// window, and the home moves single edges, which resume where they are (decision 4c). The home
// judges rates over periods in which all edges get some blocks, never a lag in bytes. It judges an
// edge only if the sender has blocks that the receiver lacks.
#include <algorithm>
#include <utility>

#include "plan/directory/directory.h"

namespace hoplite {
namespace {

constexpr std::uint8_t kSilentPeriods = 2;
constexpr std::uint8_t kSlowPeriods = 3;
// Blocks that an average edge gets in a period (decision 4c). With fewer, a single late block looks
// like a slow edge.
constexpr std::int64_t kBlocksPerPeriod = 8;
// Periods for which a moved edge rests, doubled with each move. Large blocks on a slow link arrive
// before the edge is moved again.
constexpr std::int64_t kRestPeriods = 4;
constexpr std::uint8_t kRestDoublingsMax = 8;

// Blocks by which a new sender may be behind the receiver: they arrive while the edge is set up.
constexpr std::uint32_t kBlocksBehindMax = 4;

bool receives(const DirectoryEntry::Edge& edge) {
  return edge.state == StripeState::kReceiving && !edge.orphan;
}

// True if the sender of `edge` has blocks that its receiver lacks, as far as claims and reports
// say.
bool has_more(const DirectoryEntry& entry, const DirectoryEntry::Edge& edge, std::size_t stripe) {
  const auto sender = entry.holders.find(edge.sender);
  if (sender == entry.holders.end()) return false;
  const DirectoryEntry::Edge& its = sender->second.stripes[stripe];
  if (its.state == StripeState::kComplete) return true;
  if (its.state == StripeState::kReceiving) return its.course.ready > edge.course.ready;
  // A producer does not report its progress. Another receiver that is ahead got its blocks from
  // there.
  return its.state == StripeState::kRoot &&
         std::any_of(entry.holders.begin(), entry.holders.end(), [&](const auto& holder) {
           return holder.second.stripes[stripe].course.ready > edge.course.ready;
         });
}

// Begins a period without judging the last one: the receiver's link was busy with other objects, so
// no other sender would have been faster.
void start_period(DirectoryEntry::Holder& holder, Instant now) {
  holder.marked = now;
  holder.slow = 0;
  for (DirectoryEntry::Edge& edge : holder.stripes) {
    edge.course.mark = edge.course.ready;
    edge.course.silent = edge.course.slow = 0;
  }
}

struct Others {  // rates of the edges besides the judged one
  std::optional<std::uint64_t> median;
  bool move = false;

  explicit Others(const std::vector<std::uint64_t>& rates)
      : median(median_of(rates)),
        move(std::any_of(rates.begin(), rates.end(), [](auto rate) { return rate > 0; })) {}
};

}  // namespace

void Directory::handle_progress(NodeId from, const Progress& progress, Instant now) {
  serve_claims();
  const auto at = entries_.find(progress.object);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  const auto it = entry.holders.find(from);
  const bool current = entry.known && entry.stripe_count > 0 && !entry.lost &&
                       name_of_bytes(progress) == name_of_bytes(entry);
  if (!current || it == entry.holders.end()) return;
  Holder& holder = it->second;
  for (const StripeProgress& stripe : progress.stripes) {
    if (stripe.stripe.value >= holder.stripes.size()) continue;
    Edge& edge = holder.stripes[stripe.stripe.value];
    if (!receives(edge) || edge.lease != stripe.lease)
      continue;  // fenced: the report is about an older edge
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

// Judges the edges of the node at the end of a period, and moves silent and slow ones. Returns true
// if the node itself turns out to be slow.
bool Directory::judge(const ObjectId& object, Entry& entry, NodeId node, Instant now) {
  Holder& holder = entry.holders.at(node);
  const Duration elapsed = now - holder.marked;
  if (elapsed * 4 < period_of(entry, now) * 3) return false;  // a report may come a little early
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
    if (course.begun > began) continue;  // the edge began within the period
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

// True if another node gets its bytes of the stripe through this one.
bool Directory::feeds(const Entry& entry, NodeId node, std::size_t stripe) const {
  return std::any_of(entry.holders.begin(), entry.holders.end(), [&](const auto& each) {
    const auto& [other, holder] = each;
    return other != node && stripe < holder.stripes.size() && receives(holder.stripes[stripe]) &&
           !depth_of(entry, other, node, stripe);
  });
}

// Returns the rates of the other edges in their last period, except for edges of `stripe` that get
// their bytes through `node`, because they are held up with it.
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

// Returns a window, or longer: the time in which an average edge gets kBlocksPerPeriod blocks. With
// large blocks on a slow network, a window without a block means nothing.
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

// True if the node is receiving and has reported nothing for two windows.
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

// True if the node gets the stripe from a holder and will go on to: no node on the way is mute or
// to be a leaf, and no edge on the way is silent.
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

// Moves the edge to a sound sender that is not behind the receiver. Neighbours that moved away from
// the same node are about as far. Returns true if there was such a sender.
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

// Makes the node a leaf: moves the receivers that it feeds to other senders.
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
