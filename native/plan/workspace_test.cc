// SPDX-License-Identifier: Apache-2.0
#include "plan/workspace.h"

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

TEST(Workspace, HasSlotsAndAccumulatorsOfTheOwnedStripesOnly) {
  Workspace space;
  // Block 2 has 512 bytes of them, block 4 has 100; accumulators are twice as wide, by 64 bytes.
  EXPECT_EQ(space.ask(own({kEven}), kSlots), kSlots + 1024 + 256);
  EXPECT_FALSE(space.is_complete());
  space.place({10'000, kSlots + 1024 + 256});
  EXPECT_TRUE(space.is_complete());
  EXPECT_EQ(space.accumulators(BlockIndex{2}), 10'000);
  EXPECT_EQ(space.accumulators(BlockIndex{4}), 11'024);
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
  EXPECT_EQ(space.accumulators(BlockIndex{3}), 50'000U);
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

}  // namespace
}  // namespace hoplite
