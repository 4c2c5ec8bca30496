// SPDX-License-Identifier: Apache-2.0
// Every order of arrival gives one tree, in as many cells as were promised.
#include "plan/reduce/pairwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "base/prng.h"

namespace hoplite {
namespace {

// Cells that hold what was combined, spelled out: "((0 1) 2)".
class Cells {
 public:
  Cells(std::uint32_t source_count, std::uint32_t count)
      : tree_{source_count, pairwise_cells(source_count, count), nullptr}, cells_(tree_.cells) {}

  bool take(std::uint32_t index) {
    const auto steps = fold_.take(index, tree_);
    if (!steps) return false;
    taken_.insert(index);
    perform(*steps, std::to_string(index));
    return true;
  }
  void seal(const SourceSet& members) {
    members_ = members;
    tree_.members = &members_;
  }
  std::string close() {
    perform(fold_.close(tree_), "nothing");
    return cells_[0];
  }
  // Changes the members. Returns the sources that have to come again.
  std::vector<std::uint32_t> keep(const std::vector<std::uint32_t>& members, bool sealed) {
    members_ = {};
    for (const std::uint32_t index : members) members_.insert(index);
    tree_.members = sealed ? &members_ : nullptr;
    const SourceSet before = taken_;
    fold_.keep(tree_, members_, taken_);
    std::vector<std::uint32_t> again;
    for (std::uint32_t index = 0; index < tree_.source_count; ++index) {
      if (before.contains(index) && !taken_.contains(index)) again.push_back(index);
    }
    return again;
  }

 private:
  void perform(const std::vector<FoldStep>& steps, const std::string& leaf) {
    for (const FoldStep& step : steps) {
      ASSERT_LT(step.into, cells_.size());
      const std::string& from = step.from ? cells_.at(*step.from) : leaf;
      cells_[step.into] = step.first ? from : "(" + cells_[step.into] + " " + from + ")";
    }
  }
  PairwiseFold::Tree tree_;
  PairwiseFold fold_;
  SourceSet members_, taken_;
  std::vector<std::string> cells_;
};

// Spells the tree by its definition.
std::string tree(const std::vector<std::uint32_t>& members, std::uint64_t first,
                 std::uint64_t span) {
  if (span == 1) {
    return std::count(members.begin(), members.end(), first) > 0 ? std::to_string(first) : "";
  }
  const std::string left = tree(members, first, span / 2);
  const std::string right = tree(members, first + span / 2, span / 2);
  if (left.empty() || right.empty()) return left + right;
  return "(" + left + " " + right + ")";
}

TEST(PairwiseFold, PairsNeighboursWhenAllAreMembers) {
  Cells cells(5, 5);
  for (std::uint32_t index = 0; index < 5; ++index) EXPECT_TRUE(cells.take(index));
  EXPECT_EQ(cells.close(), "(((0 1) (2 3)) 4)");
}

TEST(PairwiseFold, IsTheSameTreeInEveryOrderOfArrival) {
  for (std::uint32_t source_count = 1; source_count <= 7; ++source_count) {
    for (std::uint32_t mask = 1; mask < 1U << source_count; ++mask) {
      std::vector<std::uint32_t> order;
      SourceSet members;
      for (std::uint32_t index = 0; index < source_count; ++index) {
        if ((mask >> index & 1U) != 0) order.push_back(index);
      }
      for (const std::uint32_t index : order) members.insert(index);
      const std::string right = tree(order, 0, 8);
      do {
        for (const std::size_t sealed_after : {std::size_t{0}, order.size() / 2, order.size()}) {
          Cells cells(source_count, static_cast<std::uint32_t>(order.size()));
          for (std::size_t i = 0; i < order.size(); ++i) {
            if (i == sealed_after) cells.seal(members);
            ASSERT_TRUE(cells.take(order[i]));
          }
          cells.seal(members);
          ASSERT_EQ(cells.close(), right);
        }
      } while (order.size() < 6 && std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(PairwiseFold, HasCellsEnoughForManySources) {
  Prng prng(7);
  for (const std::uint32_t source_count : {64U, 100U, 129U}) {
    for (const std::uint32_t count : {3U, source_count / 2, source_count}) {
      std::vector<std::uint32_t> order(source_count);
      std::iota(order.begin(), order.end(), 0);
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng.below(i)]);
      order.resize(count);
      SourceSet members;
      Cells cells(source_count, count);
      for (const std::uint32_t index : order) {
        ASSERT_TRUE(cells.take(index));
        members.insert(index);
      }
      cells.seal(members);
      EXPECT_EQ(cells.close(), tree(order, 0, 256));
    }
  }
}

TEST(PairwiseFold, RefusesWhoIsInAndWhoIsNone) {
  Cells cells(3, 3);
  EXPECT_TRUE(cells.take(1));
  EXPECT_FALSE(cells.take(1));
  EXPECT_TRUE(cells.take(0));
  EXPECT_FALSE(cells.take(0)) << "it is in a pair by now";
  EXPECT_FALSE(cells.take(3)) << "there are three";
}

TEST(PairwiseFold, ForgetsOnlyWhatIsNoPartOfTheNewTree) {
  Cells cells(8, 5);
  SourceSet members;
  for (const std::uint32_t index : {0U, 1U, 2U, 4U, 7U}) members.insert(index);
  cells.seal(members);
  for (const std::uint32_t index : {0U, 1U, 2U, 4U}) EXPECT_TRUE(cells.take(index));
  using Indices = std::vector<std::uint32_t>;
  // 7 was lost and 3 takes its place: 2 had joined 0 and 1 alone.
  EXPECT_EQ(cells.keep({0, 1, 2, 3, 4}, true), (Indices{0, 1, 2}));
  for (const std::uint32_t index : {3U, 0U, 2U, 1U}) EXPECT_TRUE(cells.take(index));
  EXPECT_EQ(cells.close(), "(((0 1) (2 3)) 4)");
}

TEST(PairwiseFold, KeepsWholePairsWhileMembersMayStillCome) {
  Cells cells(8, 5);
  SourceSet members;
  for (const std::uint32_t index : {0U, 1U, 4U, 6U}) members.insert(index);
  cells.seal(members);
  for (const std::uint32_t index : {0U, 1U, 4U, 6U}) EXPECT_TRUE(cells.take(index));
  EXPECT_EQ(cells.keep({0, 1, 4, 6}, false), (std::vector<std::uint32_t>{0, 1, 4, 6}))
      << "what joined over a gap";
  Cells pair(8, 5);
  for (const std::uint32_t index : {0U, 1U, 4U}) EXPECT_TRUE(pair.take(index));
  EXPECT_EQ(pair.keep({0, 1, 4}, false), std::vector<std::uint32_t>{});
}

}  // namespace
}  // namespace hoplite
