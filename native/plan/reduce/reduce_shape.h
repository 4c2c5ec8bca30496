// SPDX-License-Identifier: Apache-2.0
// The shape of a reduce. A small one is a tree, whose degree follows from the time that one level
// and that a tree take (Hoplite, section 4.2). A large one is a chain or striped (design decision
// 5). Policy only, no state.
#pragma once

#include <cstdint>

#include "plan/messages/engine_config.h"

namespace hoplite {

struct ReduceCase {
  std::uint32_t nodes = 0;  // that have sources, beside the root
  std::uint64_t size_bytes = 0;
  std::uint64_t block_bytes = 0;  // what goes up a tree at a time; a single level has one block
  std::uint64_t link_bytes_per_s = kLinkBytesPerS;
};

// How many others a node of the tree pulls from: `nodes` for one level, else 1 or more.
// Cost: O(sqrt(nodes) x log(nodes)).
[[nodiscard]] std::uint32_t choose_degree(const ReduceCase& reduce);

// True if a chain of all nodes that ends at the root takes less time than stripes, which all nodes
// fold at once and send to the root.
[[nodiscard]] bool is_unary_shorter(const ReduceCase& reduce);

// A large reduce in two levels. A wide branch folds the sources of its nodes in stripes, each on
// one of them, and the owner of a stripe of the result pulls it from all branches (decision 5p).
struct WideShape {
  std::uint32_t branches = 0;  // 0: one level takes no longer
  std::uint16_t branch_stripes = 0;
  std::uint16_t stripes = 0;  // of the result: a multiple of the branches' stripes
};
// `able`: nodes of the case that may own stripes. Cost: O(nodes).
[[nodiscard]] WideShape choose_wide(const ReduceCase& reduce, std::uint32_t able);

// True if telling all nodes that they own stripes takes longer than a copy. A node that owns a
// stripe of a branch and reads the result then receives both one after the other anyway.
[[nodiscard]] bool is_telling_longer(const ReduceCase& reduce);

// True if `late` of `nodes` nodes, which all read the result, are to own no stripe: the reduce
// takes less time when their sources come last, and at most a `part`-th more when they come at
// once.
[[nodiscard]] bool can_leave_out(std::uint32_t late, std::uint32_t nodes, std::uint32_t part);

// The most bytes that each of `sources` sources may send with the answer to Locate.
[[nodiscard]] std::uint32_t carried_bytes_max(std::uint32_t sources, const EngineConfig& config);

// Edges between the root and the farthest of so many nodes below it, of which each pulls from at
// most `degree` others, as even as can be. REQUIRES: degree >= 1.
[[nodiscard]] std::uint32_t tree_depth(std::uint32_t nodes, std::uint32_t degree);

}  // namespace hoplite
