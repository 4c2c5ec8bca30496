// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/workspace.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

constexpr std::uint64_t kSlots = 4096;

// Blocks of 1 KiB: 0 and 1 are float32, 2 is half float32 and half bfloat16, 3 and 4 are bfloat16.
ReduceOwn own(const std::vector<StripeIndex>& stripes) {
  ReduceOwn own;
  own.meta = {4196, 1024, {{DType::kFloat32, 2560}, {DType::kBfloat16, 1636}}, ""};
  own.stripe_count = 2;
  own.owned = stripes;
  return own;
}
constexpr StripeIndex kEven{0}, kOdd{1};
std::uint64_t at(const Workspace& space, BlockIndex block, std::uint32_t cell = 0) {
  return space.cell(own({}).meta, block, cell);
}

TEST(Workspace, HasSlotsAndAccumulatorsOfTheOwnedStripesOnly) {
  Workspace space;
  // Block 2 has 512 bytes of them, block 4 has 100; accumulators are twice as wide, by 64 bytes.
  EXPECT_EQ(space.ask(own({kEven}), kSlots), kSlots + 1024 + 256);
  EXPECT_FALSE(space.is_complete());
  space.place({10'000, kSlots + 1024 + 256});
  EXPECT_TRUE(space.is_complete());
  EXPECT_EQ(at(space, BlockIndex{2}), 10'000);
  EXPECT_EQ(at(space, BlockIndex{4}), 11'024);
  EXPECT_EQ(space.slots(), (Extent{11'280, kSlots}));
  EXPECT_EQ(space.ask(own({kEven}), kSlots), std::nullopt) << "all of it is there";
}

TEST(Workspace, AsksOnceForWhatItWaitsFor) {
  Workspace space;
  EXPECT_TRUE(space.ask(own({kEven}), kSlots));
  EXPECT_EQ(space.ask(own({kEven}), kSlots), std::nullopt);
  EXPECT_EQ(space.ask(own({kEven, kOdd}), kSlots), kSlots + 1024 + 256 + 2048)
      << "more than it waits for";
  EXPECT_EQ(space.ask(own({kEven, kOdd}), kSlots), std::nullopt);
}

TEST(Workspace, AsksForStripesThatMoveHereWithoutTheSlots) {
  Workspace space;
  space.place({0, *space.ask(own({kEven}), kSlots)});
  EXPECT_EQ(space.ask(own({kEven, kOdd}), kSlots), 2048U);
  EXPECT_FALSE(space.is_complete());
  space.place({50'000, 2048});
  EXPECT_EQ(at(space, BlockIndex{3}), 50'000U);
  EXPECT_EQ(space.ranges().size(), 2U);
  EXPECT_EQ(space.slots().size_bytes, kSlots);
}

TEST(Workspace, NeedsOnlySlotsWhereNothingIsWidened) {
  ReduceOwn plain = own({kEven, kOdd});
  plain.meta.parts = {{DType::kFloat64, 4196}};
  Workspace space;
  EXPECT_EQ(space.ask(plain, kSlots), kSlots);
  space.place({0, kSlots});
  plain.owned = {kEven};
  EXPECT_EQ(space.ask(plain, kSlots), std::nullopt);
}

TEST(Workspace, HasCellsForWhatADeterministicFoldKeepsWaiting) {
  ReduceOwn fixed = own({kEven});
  fixed.deterministic = true;
  fixed.source_count = 5;
  fixed.count = 4;
  Workspace space;
  // Four cells: three more of all elements, widened where they have 16 bits. Block 0 has 1024
  // bytes, block 2 has 512 and 512 to be widened, block 4 has 100 of them.
  const std::uint64_t first = 3 * 1024, second = 1024 + 3 * 1536, third = 256 + 3 * 256;
  EXPECT_EQ(space.ask(fixed, kSlots), kSlots + first + second + third);
  space.place({0, kSlots + first + second + third});
  EXPECT_EQ(at(space, BlockIndex{0}, 1), 0);
  EXPECT_EQ(at(space, BlockIndex{0}, 3), 2048);
  EXPECT_EQ(at(space, BlockIndex{2}, 0), first);
  EXPECT_EQ(at(space, BlockIndex{2}, 1), first + 1024);
  EXPECT_EQ(at(space, BlockIndex{4}, 3), first + second + 256 + 512);
  EXPECT_EQ(space.slots(), (Extent{first + second + third, kSlots}));
}

TEST(FoldPulls, HaveTwoBlocksOfAShortStripeUnderWay) {
  ReduceOwn plan = own({kEven});
  plan.count = 4;
  const FoldPulls pulls = fold_pulls(plan, EngineConfig{}, 1_GiB);
  EXPECT_EQ(pulls.at_once, 4U);
  EXPECT_EQ(pulls.window, 2U) << "of blocks 0, 2 and 4";
  EXPECT_EQ(pulls.slot_bytes, 2048U);
}

TEST(FoldPulls, HaveAThirdOfAStripeUnderWayWhereOthersPullTheRest) {
  ReduceOwn plan = own({kEven});
  plan.meta.size_bytes = 126 * 1_KiB;
  plan.count = 8;
  plan.stripe_count = 7;
  EXPECT_EQ(fold_pulls(plan, EngineConfig{}, 1_GiB).window, 6U);
  plan.everywhere = true;
  EXPECT_EQ(fold_pulls(plan, EngineConfig{}, 1_GiB).window, 6U);
  plan.stripe_count = 1;
  EXPECT_EQ(fold_pulls(plan, EngineConfig{}, 1_GiB).window, 126U) << "nobody else waits";
}

TEST(FoldPulls, HaveOneBlockOfEachMemberUnderWayWhereThatIsMuch) {
  ReduceOwn plan = own({kEven});
  plan.meta.size_bytes = 32_MiB;
  plan.meta.block_bytes = 64_KiB;
  plan.count = 31;
  plan.stripe_count = 63;
  EXPECT_EQ(fold_pulls(plan, EngineConfig{}, 1_GiB).window, 2U);
  plan.count = 32;
  EXPECT_EQ(fold_pulls(plan, EngineConfig{}, 1_GiB).window, 1U);
  plan.everywhere = true;
  EXPECT_EQ(fold_pulls(plan, EngineConfig{}, 1_GiB).window, 3U) << "the readers wait for all";
}

TEST(FoldPulls, HaveTheWindowThatIsConfiguredHoweverWide) {
  ReduceOwn plan = own({kEven});
  plan.meta.size_bytes = 1_MiB;
  plan.stripe_count = 1;
  plan.count = 2;
  EngineConfig config;
  config.credit_blocks_min = 2 * kFoldWindowMax;
  config.credit_bytes = 1ULL << 43;  // what it makes of blocks of 1 KiB has no 32 bits
  EXPECT_EQ(fold_pulls(plan, config, 1_GiB).window, 512U);
  config.credit_blocks_min = 2;
  EXPECT_EQ(fold_pulls(plan, config, 1_GiB).window, kFoldWindowMax);
}

// An owner that was the root of a chain has slots for two members only. Its reduce must not wait
// for ever.
TEST(FoldPulls, PullFromFewerMembersWhereThereIsNotASlotForEach) {
  ReduceOwn plan = own({kEven});
  plan.meta.size_bytes = 256_MiB;
  plan.meta.block_bytes = 256_KiB;
  plan.count = 9;
  const FoldPulls pulls = fold_pulls(plan, EngineConfig{}, 2_MiB);
  EXPECT_EQ(pulls.at_once, 8U);
  EXPECT_EQ(pulls.slot_bytes, 256_KiB);
}

TEST(FoldPulls, MakeDoWithTheSlotsThatThereAre) {
  ReduceOwn plan = own({kEven});
  plan.count = 4;
  plan.stripe_count = 5;
  const FoldPulls before = fold_pulls(plan, EngineConfig{}, 1_GiB);
  plan.stripe_count = 1;  // under a later home: longer stripes
  const FoldPulls after = fold_pulls(plan, EngineConfig{}, before.at_once * before.slot_bytes);
  EXPECT_EQ(after.window, 1U);
  EXPECT_EQ(after.slot_bytes, before.slot_bytes);
}

}  // namespace
}  // namespace hoplite
