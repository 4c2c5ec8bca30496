// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce_shape.h"

#include "base/check.h"

namespace hoplite {
namespace {

// The model's links have 10 Gbit/s, and a message takes a core 5 us at each end.
constexpr std::int64_t kHopNs = 30'000;
constexpr std::int64_t kMessageNs = 5'000;
constexpr std::int64_t copy_ns(std::uint64_t bytes) {
  return static_cast<std::int64_t>(bytes) * 4 / 5;
}
// Want, Locate, Located, ReduceOwn, PullStart, blocks, ReduceReport, ReduceState: one after the
// other, and the first three of them at the home for each source, however deep the tree is.
constexpr std::int64_t kHopsOfAReduce = 8;
constexpr std::int64_t kMessagesOfASource = 3;
// ReduceOwn, PullStart, blocks, ReduceReport; the commit goes with the next level's ReduceOwn.
constexpr std::int64_t kHopsOfALevel = 4;

// What the root and each level of branches take. A branch has one of its members on its own node,
// those of a level are spread over all nodes, and of what is pulled some is there already.
std::int64_t tree_ns(const ReduceCase& reduce, std::uint32_t degree) {
  const std::int64_t pull =
      (copy_ns(reduce.size_bytes) + kMessageNs) * (reduce.nodes - 1) / reduce.nodes;
  std::int64_t took = 0;
  std::uint32_t members = reduce.sources;
  while (members > degree) {
    members = (members + degree - 1) / degree;
    const std::int64_t branches = (members + reduce.nodes - 1) / reduce.nodes;  // of one node
    took += kHopsOfALevel * kHopNs + branches * (degree - 1) * pull;
  }
  return took + members * pull;
}

}  // namespace

// Depth is worth it from an eighth on: what is lost in one level costs less to make again.
std::uint32_t choose_degree(const ReduceCase& reduce) {
  HOPLITE_CHECK(reduce.nodes >= 1);
  const std::int64_t common =
      kHopsOfAReduce * kHopNs + kMessagesOfASource * kMessageNs * reduce.sources;
  const std::int64_t flat = common + tree_ns(reduce, reduce.sources);
  std::int64_t least = flat - flat / 8;
  std::uint32_t best = reduce.sources;
  // Beyond the root of their number a branch has more to pull, and no level is saved.
  for (std::uint64_t d = 2; d < reduce.sources && (d - 1) * (d - 1) < reduce.sources; ++d) {
    const auto degree = static_cast<std::uint32_t>(d);
    const std::int64_t took = common + tree_ns(reduce, degree);
    if (took > least) continue;
    least = took;
    best = degree;
  }
  return best;
}

std::vector<std::uint32_t> split_sources(std::uint32_t sources, std::uint32_t degree) {
  HOPLITE_CHECK(degree >= 1);
  HOPLITE_CHECK(sources > degree);
  if (degree == 1) return {sources - 1, 1};
  std::uint64_t leaves = degree;  // of a child at most: a power of the degree
  while (leaves * degree < sources) leaves *= degree;
  const std::uint64_t children = (sources + leaves - 1) / leaves;
  std::vector<std::uint32_t> sizes;
  for (std::uint64_t i = 0; i < children; ++i) {
    const std::uint64_t first = i * sources / children;
    sizes.push_back(static_cast<std::uint32_t>((i + 1) * sources / children - first));
  }
  return sizes;
}

}  // namespace hoplite
