// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/reduce_shape.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "plan/broadcast/broadcast.h"

namespace hoplite {
namespace {

ReduceCase on_nodes(std::uint32_t nodes, std::uint64_t size_bytes) {
  return {.nodes = nodes, .size_bytes = size_bytes, .block_bytes = 8_KiB};
}

TEST(ReduceShape, FewNodesAreOneLevel) {
  for (std::uint32_t nodes = 1; nodes <= 5; ++nodes) {
    for (const std::uint64_t bytes : {0_KiB, 1_KiB, 8_KiB, 64_KiB}) {
      EXPECT_EQ(choose_degree(on_nodes(nodes, bytes)), nodes) << bytes;
    }
  }
}

TEST(ReduceShape, ManyNodesAreATreeThatPullsFromFewAtATime) {
  EXPECT_EQ(choose_degree(on_nodes(15, 64_KiB)), 2U);
  EXPECT_EQ(choose_degree(on_nodes(63, 64_KiB)), 2U);
  EXPECT_EQ(choose_degree(on_nodes(63, 8_KiB)), 4U);
  EXPECT_LE(choose_degree(on_nodes(4095, 8_KiB)), 8U);
}

TEST(ReduceShape, AUnaryTreeIsShorterWhereABlockTakesLongerThanAHop) {
  const auto is_unary = [](std::uint32_t nodes, std::uint64_t block_bytes, std::uint64_t rate) {
    return is_unary_shorter({nodes, 1024 * block_bytes, block_bytes, rate});
  };
  constexpr std::uint64_t kOfTenGbit = 1'250'000'000, kOfHalf = 62'500'000;
  EXPECT_FALSE(is_unary(7, 8_KiB, kOfTenGbit));
  EXPECT_TRUE(is_unary(7, 8_KiB, kOfHalf));
  EXPECT_TRUE(is_unary(63, 8_KiB, kOfHalf));
  EXPECT_TRUE(is_unary(7, 32_KiB, kOfTenGbit));
  EXPECT_FALSE(is_unary(63, 32_KiB, kOfTenGbit));
  EXPECT_TRUE(is_unary(1, 8_KiB, kOfTenGbit)) << "one that sends what it has";
}

ReduceCase large(std::uint32_t nodes, std::uint64_t size_bytes) {
  return {.nodes = nodes,
          .size_bytes = size_bytes,
          .block_bytes = choose_block_bytes(size_bytes, EngineConfig{})};
}

TEST(ReduceShape, ManyNodesTakeTwoLevelsWhereThatSavesAnEighth) {
  for (const std::uint64_t bytes : {128_KiB, 256_KiB, 1_MiB, 4_MiB, 32_MiB}) {
    for (const std::uint32_t nodes : {2U, 3U, 8U, 16U}) {
      EXPECT_EQ(choose_wide(large(nodes, bytes), nodes).branches, 0U) << nodes << " " << bytes;
    }
    for (const std::uint32_t nodes : {200U, 256U, 512U, 1024U, 4096U}) {
      EXPECT_GE(choose_wide(large(nodes, bytes), nodes - 2).branches, 2U) << nodes << " " << bytes;
    }
  }
  for (const std::uint64_t bytes : {1_MiB, 32_MiB}) {
    EXPECT_EQ(choose_wide(large(64, bytes), 64).branches, 0U) << bytes;
  }
}

TEST(ReduceShape, OfTwoLevelsANodeOwnsOneStripeOfEachAtMost) {
  for (const std::uint64_t bytes : {128_KiB, 1_MiB, 32_MiB}) {
    for (std::uint32_t nodes = 16; nodes < 1024; nodes += 7) {
      const WideShape shape = choose_wide(large(nodes, bytes), nodes - 1);
      if (shape.branches == 0) continue;
      EXPECT_LE(shape.branches * shape.branch_stripes, nodes - 1);
      EXPECT_LE(shape.stripes, kStripesMax);
      EXPECT_EQ(shape.stripes % shape.branch_stripes, 0);
      EXPECT_LT(shape.stripes / shape.branch_stripes, shape.branches) << "none in the last branch";
    }
  }
}

TEST(ReduceShape, SlowLinksMakeAChainOfFewNodes) {
  ReduceCase few = on_nodes(7, 32_KiB);
  EXPECT_EQ(choose_degree(few), 7U);
  few.link_bytes_per_s = 62'500'000;
  EXPECT_EQ(choose_degree(few), 1U);
}

TEST(ReduceShape, DepthIsThatOfAnEvenTree) {
  EXPECT_EQ(tree_depth(0, 2), 0U);
  EXPECT_EQ(tree_depth(2, 2), 1U);
  EXPECT_EQ(tree_depth(6, 2), 2U);
  EXPECT_EQ(tree_depth(7, 2), 3U);
  EXPECT_EQ(tree_depth(62, 2), 5U);
  EXPECT_EQ(tree_depth(12, 3), 2U);
  EXPECT_EQ(tree_depth(63, 63), 1U);
  EXPECT_EQ(tree_depth(9, 1), 9U);  // a chain
}

TEST(ReduceShape, ASourceIsCarriedWhereAllTogetherAreLittle) {
  EngineConfig config;
  EXPECT_EQ(carried_bytes_max(8, config), 16_KiB);
  EXPECT_EQ(carried_bytes_max(64, config), 4_KiB);
  EXPECT_EQ(carried_bytes_max(4096, config), 64U);
  EXPECT_EQ(carried_bytes_max(0, config), 16_KiB);
  config.carried_bytes_max = 256;
  EXPECT_EQ(carried_bytes_max(8, config), 256U);
  config.carried_together_bytes_max = 1_KiB;
  EXPECT_EQ(carried_bytes_max(8, config), 128U);
}

TEST(ReduceShape, LateNodesOwnNothingWhereLittleIsLostIfTheyAreNotLate) {
  EXPECT_FALSE(can_leave_out(0, 8, 8));
  EXPECT_FALSE(can_leave_out(1, 2, 8)) << "one owner takes as long as two";
  EXPECT_TRUE(can_leave_out(1, 3, 8)) << "3/2 for 4/3";
  EXPECT_FALSE(can_leave_out(1, 3, 9));
  EXPECT_TRUE(can_leave_out(1, 8, 16)) << "13/7 for 7/4";
  EXPECT_FALSE(can_leave_out(1, 7, 16));
  EXPECT_FALSE(can_leave_out(2, 8, 8));
  EXPECT_TRUE(can_leave_out(2, 9, 8));
  EXPECT_FALSE(can_leave_out(3, 14, 8));
  EXPECT_TRUE(can_leave_out(3, 15, 8));
  EXPECT_FALSE(can_leave_out(32, 64, 1)) << "the others would send as much as the late ones";
}

}  // namespace
}  // namespace hoplite
