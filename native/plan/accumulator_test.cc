// An owner's bitmaps: nothing is folded twice, and a new epoch voids only what it must.
// SPDX-License-Identifier: Apache-2.0
#include "plan/accumulator.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

ReduceSource source(std::uint32_t index) {
  return {index, ObjectId{{static_cast<std::uint8_t>(index)}}, {}, false};
}
ReduceOwn own(std::uint32_t epoch, const std::vector<std::uint32_t>& members, bool sealed = true) {
  ReduceOwn own;
  own.target_epoch = TargetEpoch{epoch};
  own.meta = {4096, 1024, {{DType::kFloat32, 4096}}, ""};
  own.stripe_count = 2;
  own.owned = {StripeIndex{1}};  // blocks 1 and 3
  for (const std::uint32_t index : members) own.members.push_back(source(index));
  own.sealed = sealed;
  return own;
}
constexpr StripeIndex kMine{1};
constexpr BlockIndex kFirst{1}, kSecond{3};

// What an owner finishes now, in order.
std::vector<BlockIndex> finish_all(Accumulator& folds) {
  std::vector<BlockIndex> finished;
  while (const auto block = folds.poll_whole(kMine)) finished.push_back(*block);
  return finished;
}
using Blocks = std::vector<BlockIndex>;

TEST(Accumulator, SaysWhetherAFoldIsTheBlocksFirstAndRefusesToRepeatIt) {
  Accumulator folds(own(1, {0, 70}));
  EXPECT_EQ(folds.take(70, kFirst), true);
  EXPECT_EQ(folds.take(0, kFirst), false);
  EXPECT_EQ(folds.take(70, kFirst), std::nullopt);
  EXPECT_EQ(folds.take(0, kFirst), std::nullopt);
  EXPECT_EQ(folds.take(0, kSecond), true) << "blocks are told apart";
}

TEST(Accumulator, KnowsWhereAMemberIsToBeContinued) {
  Accumulator folds(own(1, {0, 1}));
  EXPECT_EQ(folds.first_lacking(0, kMine), 0U);
  folds.take(0, kSecond);
  EXPECT_EQ(folds.first_lacking(0, kMine), 0U);
  folds.take(0, kFirst);
  EXPECT_EQ(folds.first_lacking(0, kMine), std::nullopt);
  EXPECT_TRUE(folds.lacks(1, kFirst));
}

TEST(Accumulator, IsFinalOnlyWithEveryMemberOfASealedSet) {
  Accumulator folds(own(1, {0}, false));
  folds.take(0, kFirst);
  EXPECT_EQ(finish_all(folds), Blocks{}) << "another member may come";
  ReduceOwn more = own(1, {1});
  more.first = 1;
  EXPECT_TRUE(folds.handle_own(more));
  EXPECT_EQ(finish_all(folds), Blocks{});
  folds.take(1, kFirst);
  EXPECT_EQ(folds.final_blocks(kMine), 0U) << "it is not finished";
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
  EXPECT_EQ(folds.final_blocks(kMine), 1U);
  EXPECT_FALSE(folds.is_folded(kMine));
  folds.take(0, kSecond);
  folds.take(1, kSecond);
  EXPECT_EQ(finish_all(folds), Blocks{kSecond}) << "each block once";
  EXPECT_TRUE(folds.is_folded(kMine));
}

TEST(Accumulator, CountsOnlyTheLeadingBlocksAsFinal) {
  Accumulator folds(own(1, {0}));
  folds.take(0, kSecond);
  EXPECT_EQ(finish_all(folds), Blocks{});
  EXPECT_EQ(folds.final_blocks(kMine), 0U);
  folds.take(0, kFirst);
  EXPECT_EQ(finish_all(folds), (Blocks{kFirst, kSecond}));
}

TEST(Accumulator, GoesPastBlocksThatWereReceived) {
  Accumulator folds(own(1, {0}));
  folds.accept_final(kMine, 1);
  folds.take(0, kSecond);
  EXPECT_EQ(finish_all(folds), Blocks{kSecond});
  EXPECT_TRUE(folds.is_folded(kMine));
}

TEST(Accumulator, FinishesAVoidedBlockAgainAndAKeptOneNot) {
  Accumulator folds(own(1, {0, 1}));
  for (const std::uint32_t member : {0, 1}) folds.take(member, kFirst);
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
  EXPECT_TRUE(folds.handle_own(own(2, {0, 1})));
  EXPECT_EQ(finish_all(folds), Blocks{}) << "another home, the same members";
  EXPECT_EQ(folds.final_blocks(kMine), 1U);
  EXPECT_TRUE(folds.handle_own(own(3, {0, 2})));
  EXPECT_EQ(finish_all(folds), Blocks{});
  EXPECT_EQ(folds.take(2, kFirst), true) << "from the start";
  EXPECT_EQ(folds.take(0, kFirst), false);
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
}

TEST(Accumulator, FoldsAMeanAnewWhenItMayGetAnotherMember) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    ReduceOwn one = own(1, {0});
    one.op = op;
    Accumulator folds(one);
    folds.take(0, kFirst);
    EXPECT_EQ(finish_all(folds), Blocks{kFirst});
    ReduceOwn unsealed = own(2, {0}, false);
    unsealed.op = op;
    EXPECT_TRUE(folds.handle_own(unsealed));
    EXPECT_EQ(folds.lacks(0, kFirst), op == ReduceOp::kMean) << "it was divided in its place";
    EXPECT_EQ(finish_all(folds), Blocks{});
  }
}

TEST(Accumulator, VoidsOnlyBlocksWithARemovedMemberWhenTheEpochIsRaised) {
  Accumulator folds(own(1, {0, 1}));
  folds.take(0, kFirst);
  folds.take(1, kFirst);
  folds.take(0, kSecond);
  EXPECT_TRUE(folds.handle_own(own(2, {0, 2})));
  EXPECT_TRUE(folds.lacks(0, kFirst)) << "it held member 1";
  EXPECT_FALSE(folds.lacks(0, kSecond));
  EXPECT_EQ(folds.take(2, kSecond), false);
  EXPECT_EQ(folds.take(2, kFirst), true);
}

TEST(Accumulator, IsNoLongerSealedInANewEpochUnlessToldSo) {
  Accumulator folds(own(1, {0}));
  folds.take(0, kFirst);
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
  folds.handle_own(own(2, {0}, false));
  EXPECT_EQ(finish_all(folds), Blocks{});
  EXPECT_EQ(folds.final_blocks(kMine), 0U);
}

TEST(Accumulator, IgnoresNewsOfAnOlderEpoch) {
  Accumulator folds(own(2, {0}));
  EXPECT_FALSE(folds.handle_own(own(1, {1})));
  EXPECT_TRUE(folds.members().contains(0));
  EXPECT_FALSE(folds.members().contains(1));
}

TEST(Accumulator, KeepsWhatItKnowsOfMembersThatItIsToldOfAgain) {
  Accumulator folds(own(1, {0}));
  folds.members().at(0).sender = NodeId{4};
  folds.members().at(0).source.incarnation = Incarnation{3};  // as Located said
  folds.handle_own(own(1, {0, 1}));
  EXPECT_EQ(folds.members().at(0).sender, NodeId{4});
  EXPECT_EQ(folds.members().at(0).source.incarnation, Incarnation{3});
  EXPECT_TRUE(folds.members().contains(1));
}

TEST(Accumulator, HasNothingToFoldInAStripeWithoutBlocks) {
  ReduceOwn tiny = own(1, {0});
  tiny.meta.size_bytes = 100;  // block 0 only, of the other stripe
  EXPECT_TRUE(Accumulator(tiny).is_folded(kMine));
  EXPECT_EQ(Accumulator(tiny).first_lacking(0, kMine), std::nullopt);
}

}  // namespace
}  // namespace hoplite
