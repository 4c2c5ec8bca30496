// SPDX-License-Identifier: Apache-2.0
#include "plan/broadcast/broadcast.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace hoplite {
namespace {

// Beyond eight stripes the trees get no shallower for 64 receivers, and each stripe is one stream
// more.
constexpr std::uint16_t kStripesWorthwhile = 8;
// Four stripes where there are as many receivers. A slow or silent node then delays only a quarter
// of the bytes of the receivers below it, until the home has moved them.
constexpr std::uint16_t kStripesAtLeast = 4;
// From this size on a transfer lasts for several progress windows on 10 Gbit/s. It can be repaired,
// and stripes pay even for receivers that have not asked yet.
constexpr std::uint64_t kLargeBytes = 8_MiB;

// The hops of a chain that a block size is chosen for. The block size must not depend on the number
// of nodes, because all sources of a reduce need the same one.
constexpr double kHopsOfBlocks = 31;

// Bytes that a link carries in the time of a hop without its bytes.
std::uint64_t hop_bytes(const BroadcastSize& size) {
  return size.link_bytes_per_s / 1000 * (kHopNs + kMessageNs) / 1'000'000;
}

// Levels of a tree over `receivers` whose root, fed by the origin, and every node feed `stripes`.
std::uint64_t levels(std::size_t receivers, std::uint16_t stripes) {
  std::uint64_t depth = 0;
  std::uint64_t reached = 0;
  for (std::uint64_t level = 1; reached < receivers; level *= stripes, ++depth) reached += level;
  return depth;
}

// Smaller is better, field by field.
auto rank_of(const SenderCandidate& c, const SenderRoom& room) {
  // The cost of one more edge for the slowest receiver, in stripes: edges beyond the room, and
  // depth.
  const std::uint32_t over = std::max(c.edges + 1, room.edges) - room.edges + c.depth / room.depth;
  return std::tuple(c.failed,                    // try any other candidate first
                    c.slow,                      // a leaf, as long as others can feed
                    over > 0,                    // one copy's worth of upload per node
                    over > 0 && c.origin,        // the origin overflows last
                    c.behind,                    // has nothing to send yet
                    over,                        // spread what overflows
                    over > 0 ? c.depth : 0U,     // high enough that the next ones find room
                    !c.complete,                 // a complete copy never stalls
                    !c.preferred, c.depth,       // interior for this stripe; close to the source
                    c.origin, c.edges, c.node);  // spare the origin; then any fixed order
}

}  // namespace

std::uint32_t choose_block_bytes(std::uint64_t size_bytes, const EngineConfig& config) {
  const double least_squared = static_cast<double>(size_bytes) * kMessageNs * 1e-9 *
                               static_cast<double>(config.link_bytes_per_s) / kHopsOfBlocks;
  std::uint64_t bytes = config.block_bytes_min;
  const auto is_too_small = [&] {
    const auto of_block = static_cast<double>(bytes);
    return bytes * kBlocksPerObjectAim < size_bytes || 2 * of_block * of_block < least_squared;
  };
  while (bytes < config.block_bytes_max && is_too_small()) bytes *= 2;
  return static_cast<std::uint32_t>(bytes);
}

std::uint16_t choose_stripes(const BroadcastSize& size) {
  const bool large = size.size_bytes >= kLargeBytes;
  const bool all_wait = size.waiting >= size.members;
  const std::size_t receivers = large ? std::max(size.waiting, size.members) : size.waiting;
  const auto blocks = size.size_bytes / std::max(size.block_bytes, 1U);
  // The lower number holds also where more receivers may ask later, because the first ones become
  // interior in all stripes.
  const auto worthwhile = large && !all_wait ? kStripesAtLeast : kStripesWorthwhile;
  const auto most = static_cast<std::uint16_t>(
      std::min<std::uint64_t>({worthwhile, receivers, std::max<std::uint64_t>(blocks, 1)}));
  std::uint16_t best = 1;
  std::uint64_t best_cost = UINT64_MAX;
  for (std::uint16_t k = std::min(kStripesAtLeast, most); k <= most; ++k) {
    const std::uint64_t depth = levels(receivers, k);
    const std::uint64_t cost = depth * hop_bytes(size) + (depth - 1) * k * size.block_bytes;
    if (cost <= best_cost) std::tie(best, best_cost) = std::tuple(k, cost);
  }
  return std::max<std::uint16_t>(best, 1);
}

ForestPlan::ForestPlan(std::uint32_t receivers, std::uint16_t stripes)
    : receivers_(receivers), stripes_(stripes) {
  HOPLITE_CHECK(stripes > 0);
  senders_.assign(std::size_t{receivers} * stripes, kOrigin);
  if (receivers < 2) return;
  std::vector<std::uint32_t> spare(receivers, stripes);
  std::vector<std::vector<std::uint32_t>> edges(stripes, std::vector<std::uint32_t>(receivers));
  std::vector<std::uint32_t> missing(stripes, receivers - 1);  // the origin feeds the first one
  const auto give = [&](std::uint32_t node, std::uint16_t stripe) {
    const std::uint32_t given = std::min(spare[node], missing[stripe]);
    edges[stripe][node] += given;
    spare[node] -= given;
    missing[stripe] -= given;
  };
  for (std::uint32_t node = 0; node < receivers; ++node) {
    give(node, static_cast<std::uint16_t>(node % stripes));
  }
  for (std::uint16_t stripe = 0; stripe < stripes; ++stripe) {
    while (missing[stripe] > 0) {
      const auto most = std::max_element(spare.begin(), spare.end());
      HOPLITE_CHECK(*most > 0);  // receivers * k edges in all, less than there are
      give(static_cast<std::uint32_t>(most - spare.begin()), stripe);
    }
    grow(stripe, edges[stripe]);
  }
}

// Breadth first, those with most edges nearest to the origin.
void ForestPlan::grow(std::uint16_t stripe, const std::vector<std::uint32_t>& edges) {
  std::vector<std::uint32_t> order(receivers_);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(edges[b], a) < std::pair(edges[a], b);
  });
  std::size_t feeding = 0;
  std::uint32_t fed = 0;
  for (std::size_t i = 1; i < order.size(); ++i) {
    while (fed == edges[order[feeding]]) {
      ++feeding;
      fed = 0;
    }
    HOPLITE_CHECK(feeding < i);
    senders_[std::size_t{order[i]} * stripes_ + stripe] = order[feeding];
    ++fed;
  }
}

std::uint32_t choose_depth(const BroadcastSize& size, std::uint16_t stripes) {
  const std::uint64_t per_level = stripes * (hop_bytes(size) + size.block_bytes);
  const std::uint64_t depth = std::max<std::uint64_t>(size.size_bytes / per_level, 2);
  return size.members <= 2 * depth ? UINT32_MAX : static_cast<std::uint32_t>(depth);
}

std::optional<NodeId> choose_sender(std::span<const SenderCandidate> candidates,
                                    const SenderRoom& room) {
  const SenderCandidate* best = nullptr;
  for (const SenderCandidate& candidate : candidates) {
    if (best == nullptr || rank_of(candidate, room) < rank_of(*best, room)) {
      best = &candidate;
    }
  }
  if (best == nullptr) return std::nullopt;
  return best->node;
}

std::optional<std::uint64_t> median_of(std::vector<std::uint64_t> rates) {
  if (rates.empty()) return std::nullopt;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

bool is_slow(std::uint64_t rate, std::optional<std::uint64_t> median_of_others) {
  return median_of_others && rate * 10 < *median_of_others * 6;
}

}  // namespace hoplite
