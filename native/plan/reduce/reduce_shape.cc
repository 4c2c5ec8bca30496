// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/reduce_shape.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace hoplite {
namespace {

std::int64_t copy_ns(const ReduceCase& reduce, std::uint64_t bytes) {
  return static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 /
                                   static_cast<double>(reduce.link_bytes_per_s));
}
// Locate, Located, ReduceOwn and PullStart go one after the other before the first block leaves.
// The root handles the first two for each source, at any depth of the tree.
constexpr std::int64_t kHopsBefore = 4;
constexpr std::int64_t kMessagesOfASource = 2;

// Returns the time from the first block sent to the last one folded at the root. A block goes up
// when it has come from all nodes below. So a level costs a hop and a block of each node, and the
// copies cross each node's link once, at any depth.
std::int64_t tree_ns(const ReduceCase& reduce, std::uint32_t degree) {
  const std::uint64_t block =
      std::max<std::uint64_t>(degree >= reduce.nodes ? reduce.size_bytes : reduce.block_bytes, 1);
  const auto blocks =
      std::max<std::int64_t>(static_cast<std::int64_t>((reduce.size_bytes + block - 1) / block), 1);
  const std::int64_t of_each = copy_ns(reduce, reduce.size_bytes) + blocks * kMessageNs;
  const std::int64_t pulled = std::min(degree, reduce.nodes) * of_each;
  const std::int64_t depth = tree_depth(reduce.nodes, degree);
  return depth * kHopNs + pulled + (depth - 1) * pulled / blocks;
}

}  // namespace

// Both need a copy's time. A chain adds a hop and a block's time for each node. Stripes add two
// hops, and twice a block's time for each node: a row has one block of each member, and is whole
// when the last one has come, once at its owner and once at the reader.
bool is_unary_shorter(const ReduceCase& reduce) {
  const std::int64_t nodes = reduce.nodes;
  const std::int64_t block = copy_ns(reduce, reduce.block_bytes);
  return nodes * (kHopNs + block) < 2 * kHopNs + 2 * nodes * block;
}

// In times of a copy. A node that owns a stripe of n sends n - 1 stripes of its source and its own
// stripe n - 1 times: 2 (n - 1) / n if its source comes last. An owner among m early nodes sends
// m - 1 stripes of its source, while it waits for the late ones, and its own stripe n - 1 times:
// (n - 1) / m, and (n + m - 2) / m if it has not waited.
bool can_leave_out(std::uint32_t late, std::uint32_t nodes, std::uint32_t part) {
  if (late == 0 || 2 * std::uint64_t{late} >= nodes) return false;
  const std::uint64_t n = nodes;
  const std::uint64_t m = nodes - late;
  return part * n * (n + m - 2) <= (part + 1) * 2 * m * (n - 1);
}

std::uint32_t carried_bytes_max(std::uint32_t sources, const EngineConfig& config) {
  const std::uint64_t share = config.carried_together_bytes_max / std::max(sources, 1U);
  return static_cast<std::uint32_t>(std::min(config.carried_bytes_max, share));
}

std::uint32_t tree_depth(std::uint32_t nodes, std::uint32_t degree) {
  HOPLITE_CHECK(degree >= 1);
  std::uint32_t depth = 0;
  for (; nodes > 0; ++depth) nodes = (nodes + degree - 1) / degree - 1;
  return depth;
}

// A tree must save an eighth of the time, because a loss in a single level costs less to repair.
std::uint32_t choose_degree(const ReduceCase& reduce) {
  const std::int64_t common = kHopsBefore * kHopNs + kMessagesOfASource * kMessageNs * reduce.nodes;
  const std::int64_t flat = common + tree_ns(reduce, reduce.nodes);
  std::int64_t least = flat - flat / 8;
  std::uint32_t best = reduce.nodes;
  // A larger degree pulls more, and saves no level.
  for (std::uint64_t d = 1; d < reduce.nodes && (d - 1) * (d - 1) < reduce.nodes; ++d) {
    const auto degree = static_cast<std::uint32_t>(d);
    const std::int64_t took = common + tree_ns(reduce, degree);
    if (took > least) continue;
    least = took;
    best = degree;
  }
  return best;
}

}  // namespace hoplite
