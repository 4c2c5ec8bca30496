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
