// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/units.h"

namespace hoplite {
namespace {

ReduceCase on_nodes(std::uint32_t sources, std::uint64_t size_bytes) {
  return {.sources = sources, .nodes = sources, .size_bytes = size_bytes};
}

TEST(ReduceShape, FewSourcesAreOneLevel) {
  for (std::uint32_t sources = 1; sources <= 8; ++sources) {
    for (const std::uint64_t bytes : {0_KiB, 1_KiB, 8_KiB, 64_KiB}) {
      EXPECT_EQ(choose_degree(on_nodes(sources, bytes)), sources) << bytes;
    }
  }
}

TEST(ReduceShape, ManySmallSourcesAreATree) {
  EXPECT_EQ(choose_degree(on_nodes(16, 64_KiB)), 4U);
  EXPECT_EQ(choose_degree(on_nodes(64, 64_KiB)), 4U);
  EXPECT_EQ(choose_degree(on_nodes(64, 8_KiB)), 8U);
  EXPECT_LE(choose_degree(on_nodes(4096, 8_KiB)), 16U);
  // The home has three messages of each source to read and write: a tree of pulls saves too little.
  EXPECT_EQ(choose_degree(on_nodes(64, 1_KiB)), 64U);
}

TEST(ReduceShape, ManySourcesOnFewNodesAreATreeThatUsesAllLinks) {
  for (const std::uint32_t nodes : {2U, 8U, 64U}) {
    const std::uint32_t degree =
        choose_degree({.sources = 512, .nodes = nodes, .size_bytes = 64_KiB});
    EXPECT_GE(degree, 2U) << nodes;
    EXPECT_LE(degree, 23U) << nodes;
  }
  EXPECT_EQ(choose_degree({.sources = 512, .nodes = 1, .size_bytes = 64_KiB}), 512U);  // no link
}

TEST(ReduceShape, ChildrenAreEvenAndNoneIsTooLarge) {
  for (const std::uint32_t degree : {2U, 3U, 4U, 7U, 64U}) {
    for (std::uint32_t sources = degree + 1; sources <= 300; ++sources) {
      const auto sizes = split_sources(sources, degree);
      EXPECT_GE(sizes.size(), 2U);
      EXPECT_LE(sizes.size(), degree);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0U), sources);
      const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
      EXPECT_LE(*most - *least, 1U);
      std::uint64_t leaves = 1;
      while (leaves * degree < sources) leaves *= degree;
      EXPECT_LE(*most, leaves);  // so that no path is longer than the logarithm
    }
  }
}

TEST(ReduceShape, DegreeOneIsAChain) {
  EXPECT_EQ(split_sources(5, 1), (std::vector<std::uint32_t>{4, 1}));
}

}  // namespace
}  // namespace hoplite
