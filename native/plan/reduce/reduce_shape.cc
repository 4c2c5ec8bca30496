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

std::int64_t blocks_of(const ReduceCase& reduce) {
  const std::uint64_t block = std::max<std::uint64_t>(reduce.block_bytes, 1);
  return std::max<std::int64_t>(static_cast<std::int64_t>((reduce.size_bytes + block - 1) / block),
                                1);
}
std::int64_t part(std::int64_t whole, std::int64_t parts) { return (whole + parts - 1) / parts; }
std::int64_t frame_ns(const ReduceCase& reduce) {
  return copy_ns(reduce, reduce.block_bytes) + kMessageNs;
}
// Nodes or stripes that share the blocks evenly, as far as one level allows.
std::int64_t owners_max(const ReduceCase& reduce, std::int64_t nodes) {
  return std::min<std::int64_t>({nodes, blocks_of(reduce), kStripesMax});
}

// Time until the last block of the result is folded, from when the sources are known. The planner
// tells each owner, an owner asks each node, and a block of each other node comes to its owner.
std::int64_t flat_ns(const ReduceCase& reduce) {
  const std::int64_t owners = owners_max(reduce, reduce.nodes);
  return 2 * owners * kMessageNs +
         (reduce.nodes - 1) * part(blocks_of(reduce), owners) * frame_ns(reduce);
}
std::int64_t unary_ns(const ReduceCase& reduce) {
  return reduce.nodes * (kHopNs + frame_ns(reduce)) + blocks_of(reduce) * frame_ns(reduce);
}
// A block of each node comes to its owner in the branch, and one of each branch to the result's.
std::int64_t wide_ns(const ReduceCase& reduce, const WideShape& shape) {
  const std::int64_t told = std::int64_t{shape.branches} * shape.branch_stripes + shape.stripes;
  const std::int64_t asked = shape.branch_stripes + shape.stripes / shape.branch_stripes;
  const std::int64_t below = part(reduce.nodes, shape.branches) - 1;
  const std::int64_t blocks = blocks_of(reduce);
  const std::int64_t folded = below * part(blocks, shape.branch_stripes) +
                              (shape.branches - 1) * part(blocks, shape.stripes);
  return 2 * kHopNs + (told + asked) * kMessageNs + folded * frame_ns(reduce);
}

}  // namespace

bool is_telling_longer(const ReduceCase& reduce) {
  return copy_ns(reduce, reduce.size_bytes) < reduce.nodes * kMessageNs;
}

// Two levels must save an eighth, because a loss in them costs the whole fold.
WideShape choose_wide(const ReduceCase& reduce, std::uint32_t able) {
  const std::int64_t one_level = std::min(flat_ns(reduce), unary_ns(reduce));
  std::int64_t least = one_level - one_level / 8;
  WideShape best;
  for (std::uint32_t branches = 2; branches <= able / 2; ++branches) {
    // The fewest owners of which none has more blocks.
    const std::int64_t blocks = blocks_of(reduce);
    const std::int64_t of_branch = part(blocks, part(blocks, owners_max(reduce, able / branches)));
    // A node owns at most one stripe of the result, and none of the last branch does.
    const auto times = std::min<std::int64_t>(owners_max(reduce, reduce.nodes) / of_branch,
                                              std::max(branches - 1, 1U));
    const WideShape shape{branches, static_cast<std::uint16_t>(of_branch),
                          static_cast<std::uint16_t>(of_branch * times)};
    const std::int64_t took = wide_ns(reduce, shape);
    if (took >= least) continue;
    least = took;
    best = shape;
  }
  return best;
}

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
