// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/pairwise.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace hoplite {

std::optional<std::vector<FoldStep>> PairwiseFold::take(std::uint32_t index, const Tree& tree) {
  if (index >= tree.source_count || covers(index)) return std::nullopt;
  std::vector<FoldStep> steps;
  auto at = index % 2 == 1 ? partials_.find(index - 1) : partials_.end();
  if (at != partials_.end()) {  // a right operand, straight from where it landed
    steps.push_back({at->second.cell, std::nullopt, false});
    at->second.level = 1;
  } else {
    const std::uint32_t cell = free_cell();
    if (cell >= tree.cells) return std::nullopt;
    steps.push_back({cell, std::nullopt, true});
    at = partials_.emplace(index, Partial{0, cell}).first;
  }
  climb(at, tree, steps);
  return steps;
}

std::vector<FoldStep> PairwiseFold::close(const Tree& tree) {
  std::vector<FoldStep> steps;
  for (std::size_t before = 0; partials_.size() != before;) {  // until nothing climbs any more
    before = partials_.size();
    std::vector<std::uint64_t> firsts;
    for (const auto& [first, partial] : partials_) firsts.push_back(first);
    for (const std::uint64_t first : firsts) {
      const auto at = partials_.find(first);
      if (at != partials_.end()) climb(at, tree, steps);
    }
  }
  if (partials_.size() != 1) return steps;
  Partial& root = partials_.begin()->second;
  if (root.cell != 0) steps.push_back({0, root.cell, true});
  root.cell = 0;
  return steps;
}

void PairwiseFold::keep(const Tree& tree, const SourceSet& members, SourceSet& taken) {
  for (auto at = partials_.begin(); at != partials_.end();) {
    const std::uint64_t first = at->first;
    const std::uint64_t span = std::uint64_t{1} << at->second.level;
    const std::uint64_t end = std::min<std::uint64_t>(first + span, tree.source_count);
    const std::uint32_t in = taken.count(first, span);
    bool fits = span == 1 || in == end - first ||
                (tree.members != nullptr && in == tree.members->count(first, span));
    for (std::uint64_t index = first; index < end && fits; ++index) {
      const auto source = static_cast<std::uint32_t>(index);
      fits = !taken.contains(source) || members.contains(source);
    }
    if (fits) {
      ++at;
      continue;
    }
    for (std::uint64_t index = first; index < end; ++index) {
      taken.erase(static_cast<std::uint32_t>(index));
    }
    at = partials_.erase(at);
  }
}

// Combines upwards until a member on the other side is missing.
void PairwiseFold::climb(Partials::iterator at, const Tree& tree, std::vector<FoldStep>& steps) {
  const auto levels = static_cast<std::uint32_t>(std::bit_width(tree.source_count - 1));
  while (at->second.level < levels) {
    const std::uint64_t span = std::uint64_t{1} << at->second.level;
    const std::uint64_t beside = at->first ^ span;
    const auto other = partials_.find(beside);
    if (other != partials_.end() && other->second.level == at->second.level) {
      const auto [left, right] = at->first < beside ? std::pair(at, other) : std::pair(other, at);
      steps.push_back({left->second.cell, right->second.cell, false});
      ++left->second.level;
      partials_.erase(right);
      at = left;
      continue;
    }
    const bool nobody = beside >= tree.source_count ||
                        (tree.members != nullptr && tree.members->count(beside, span) == 0);
    if (!nobody) return;
    const Partial higher{at->second.level + 1, at->second.cell};
    const std::uint64_t first = std::min(at->first, beside);
    partials_.erase(at);
    at = partials_.emplace(first, higher).first;
  }
}

bool PairwiseFold::covers(std::uint32_t index) const {
  const auto after = partials_.upper_bound(index);
  if (after == partials_.begin()) return false;
  const auto& [first, partial] = *std::prev(after);
  return index - first < (std::uint64_t{1} << partial.level);
}

std::uint32_t PairwiseFold::free_cell() const {
  std::vector<bool> taken(partials_.size() + 1);
  for (const auto& [first, partial] : partials_) {
    if (partial.cell < taken.size()) taken[partial.cell] = true;
  }
  return static_cast<std::uint32_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
}

}  // namespace hoplite
