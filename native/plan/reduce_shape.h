// How deep the reduce tree of a small object is: what one level of it and what a tree of degree d
// take, and the least of them (Hoplite, section 4.2; design decision 5). Policy only, no state.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace hoplite {

struct ReduceCase {
  std::uint32_t sources = 0;  // that are there at the same time
  std::uint32_t nodes = 1;    // they are on, or fewer
  std::uint64_t size_bytes = 0;
};

// Members per node of the tree: `sources` for one level, else 2 or more. Cost: O(sqrt(sources)).
[[nodiscard]] std::uint32_t choose_degree(const ReduceCase& reduce);

// How many of `sources`, in order of arrival, each child of the root takes: at most `degree`
// children with at most a power of it each, as even as can be. Degree 1 is a chain: all but the
// last one, and the last one. REQUIRES: sources > degree.
[[nodiscard]] std::vector<std::uint32_t> split_sources(std::uint32_t sources, std::uint32_t degree);

}  // namespace hoplite
