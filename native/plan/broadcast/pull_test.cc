// SPDX-License-Identifier: Apache-2.0
// One receiver, one stripe, one sender: blocks in any order, credit, resuming.
#include "plan/broadcast/pull.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/prng.h"

namespace hoplite {
namespace {

PullGoal goal(std::uint32_t blocks, std::uint16_t stripes = 1, std::uint16_t stripe = 0) {
  PullGoal goal;
  goal.meta = {
      std::uint64_t{blocks} * 1024, 1024, {{DType::kFloat32, std::uint64_t{blocks} * 1024}}, ""};
  goal.stripe_count = stripes;
  goal.stripe = StripeIndex{stripe};
  return goal;
}

TEST(Pull, IsDoneWhenEveryBlockHasLandedInWhateverOrder) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Prng random(seed);
    Pull pull(goal(40, 3, 1), 4);
    std::vector<std::uint32_t> order;
    for (std::uint32_t block = 1; block < 40; block += 3) order.push_back(block);
    for (std::size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[random.below(i + 1)]);
    for (const std::uint32_t block : order) {
      EXPECT_FALSE(pull.is_done());
      EXPECT_TRUE(pull.handle_landed(BlockIndex{block}).is_new);
      EXPECT_FALSE(pull.handle_landed(BlockIndex{block}).is_new) << "twice is no news";
    }
    EXPECT_TRUE(pull.is_done());
    EXPECT_TRUE(pull.beyond().empty());
  }
}

TEST(Pull, CountsOnlyLeadingBlocksAsReadyAndRemembersTheOthers) {
  Pull pull(goal(4), 4);
  pull.handle_landed(BlockIndex{2});
  pull.handle_landed(BlockIndex{1});
  EXPECT_EQ(pull.ready(), 0U);
  EXPECT_EQ(pull.beyond(), (std::set<std::uint32_t>{1, 2}));
  pull.handle_landed(BlockIndex{0});
  EXPECT_EQ(pull.ready(), 3U);
  EXPECT_TRUE(pull.beyond().empty());
}

TEST(Pull, IgnoresBlocksOfOtherStripesAndBeyondTheEnd) {
  Pull pull(goal(4, 2, 1), 2);
  EXPECT_FALSE(pull.handle_landed(BlockIndex{0}).is_new);
  EXPECT_FALSE(pull.handle_landed(BlockIndex{5}).is_new);
  EXPECT_TRUE(pull.handle_landed(BlockIndex{3}).is_new);
}

TEST(Pull, GivesAsMuchCreditAsBlocksHaveLanded) {
  Pull pull(goal(100), 8);
  std::uint32_t credits = pull.start().credits;
  EXPECT_EQ(credits, 8U);
  for (std::uint32_t block = 0; block < 90; ++block) {
    ASSERT_LT(block, credits) << "the sender never runs dry";
    credits += pull.handle_landed(BlockIndex{block}).credits;
    EXPECT_LE(credits, block + 1 + 8) << "nor has more than a window under way";
  }
}

TEST(Pull, GivesNoCreditForBlocksThatThereAreNot) {
  Pull pull(goal(20), 8);
  std::uint32_t credits = pull.start().credits;
  for (std::uint32_t block = 0; block < 20; ++block) {
    credits += pull.handle_landed(BlockIndex{block}).credits;
  }
  EXPECT_EQ(credits, 20U);
}

// A fold's blocks land in slots: the n-th and the (n + window)-th in the same one.
TEST(Pull, GivesCreditForASlotOnlyWhenItsBlockHasBeenFolded) {
  Pull pull(goal(100), 4);
  pull.fold = FoldGoal{};
  std::uint32_t credits = pull.start().credits;
  for (const std::uint32_t late : {1U, 2U, 3U}) {
    credits += pull.handle_landed(BlockIndex{late}).credits;
    EXPECT_EQ(credits, 4U) << "block 4 would overwrite block 0, which is still under way";
  }
  credits += pull.handle_landed(BlockIndex{0}).credits;
  EXPECT_EQ(credits, 8U);
}

TEST(Pull, ResumesWhereItIsTold) {
  PullGoal resumed = goal(4);
  resumed.from = 3;
  Pull pull(resumed, 2);
  EXPECT_EQ(pull.start().from, 3U);
  pull.handle_landed(BlockIndex{3});
  EXPECT_TRUE(pull.is_done());
}

TEST(Pull, OfAStripeWithoutBlocksIsDoneAtOnce) {
  EXPECT_TRUE(Pull(goal(2, 4, 3), 2).is_done());
  EXPECT_TRUE(Pull(goal(0), 2).is_done());
}

TEST(Pull, HasAWindowOfItsBytesButNeverMoreThanItsBlocks) {
  EngineConfig config;
  config.credit_blocks_min = 2;
  config.credit_bytes = 64 * 1024;
  EXPECT_EQ(window_blocks(goal(100).meta, config), 64U);
  EXPECT_EQ(window_blocks(goal(10).meta, config), 10U);
  config.credit_bytes = 0;
  EXPECT_EQ(window_blocks(goal(10).meta, config), 2U);
}

}  // namespace
}  // namespace hoplite
