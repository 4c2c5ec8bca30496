// SPDX-License-Identifier: Apache-2.0
// One block of a deterministic reduce (decisions 5, 5i). Its members are combined along a fixed
// binary tree over the source index: 0 with 1, 2 with 3, then these pairs, and so on; a source that
// is no member is left out. The order of arrival does not matter: equal members give equal bits.
// Partials that can't be combined yet wait in cells, a fixed number for each block. Invariant:
// partials are disjoint aligned ranges of indices, and each holds every member of its range.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "plan/reduce/source_set.h"

namespace hoplite {

// `into` = `from` (the first in that cell), or `into` combined with it, as the left operand.
struct FoldStep {
  std::uint32_t into = 0;             // a cell
  std::optional<std::uint32_t> from;  // another cell; none: the member's own block
  bool first = false;
  bool operator==(const FoldStep&) const = default;
};

// Cells that suffice for any order of arrival of `count` of `source_count` sources: one of each
// pair may wait for the other, while another source is brought in.
constexpr std::uint32_t pairwise_cells(std::uint32_t source_count, std::uint32_t count) {
  const std::uint32_t pairs = (source_count + 1) / 2;
  return (count < pairs ? count : pairs) + 1;
}

class PairwiseFold {
 public:
  struct Tree {
    std::uint32_t source_count = 1;
    std::uint32_t cells = 1;
    const SourceSet* members = nullptr;  // once no other can come
  };

  // The steps that bring `index` in; none if it is in, or if there are more of them than cells.
  // Cost: O(cells + log sources).
  std::optional<std::vector<FoldStep>> take(std::uint32_t index, const Tree& tree);
  // Every member is in: the steps that are left until their fold lies in cell 0.
  std::vector<FoldStep> close(const Tree& tree);
  // Call when the members change. Forgets the partials that are no part of the new tree, and erases
  // their sources from `taken`. `members`: those known so far.
  void keep(const Tree& tree, const SourceSet& members, SourceSet& taken);

 private:
  struct Partial {
    std::uint32_t level = 0;  // of 2^level indices
    std::uint32_t cell = 0;
  };
  using Partials = std::map<std::uint64_t, Partial>;  // by their first index

  [[nodiscard]] bool covers(std::uint32_t index) const;
  [[nodiscard]] std::uint32_t free_cell() const;
  void climb(Partials::iterator at, const Tree& tree, std::vector<FoldStep>& steps);

  Partials partials_;
};

}  // namespace hoplite
