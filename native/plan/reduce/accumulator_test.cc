// SPDX-License-Identifier: Apache-2.0
// An owner's bitmaps: nothing is folded twice, and a new epoch voids only what it must.
#include "plan/reduce/accumulator.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

ReduceSource source(std::uint32_t index) {
  return {
      .index = index, .object = ObjectId{{static_cast<std::uint8_t>(index)}}, .incarnation = {}};
}
ReduceOwn own(std::uint32_t epoch, const std::vector<std::uint32_t>& members, bool sealed = true) {
  ReduceOwn own;
  own.target_epoch = TargetEpoch{epoch};
  own.meta = {4096, 1024, {{DType::kFloat32, 4096}}, ""};
  own.stripe_count = 2;
  own.owned = {StripeIndex{1}};  // blocks 1 and 3
  own.source_count = own.count = 100;
  for (const std::uint32_t index : members) own.members.push_back(source(index));
  own.sealed = sealed;
  return own;
}
constexpr StripeIndex kMine{1};
constexpr BlockIndex kFirst{1}, kSecond{3};

// Returns the blocks that an owner can finish at this point, in order.
std::vector<BlockIndex> finish_all(Accumulator& folds) {
  std::vector<BlockIndex> finished;
  while (const auto whole = folds.poll_whole(kMine)) finished.push_back(whole->block);
  return finished;
}
using Blocks = std::vector<BlockIndex>;
// Returns true if `member` is the first in the block; nothing if the block already holds it.
std::optional<bool> take(Accumulator& folds, std::uint32_t member, BlockIndex block) {
  const auto steps = folds.take(member, block);
  if (!steps) return std::nullopt;
  EXPECT_EQ(steps->size(), 1U);
  EXPECT_EQ(steps->front().into, 0U);
  return steps->front().first;
}

TEST(Accumulator, SaysWhetherAFoldIsTheBlocksFirstAndRefusesToRepeatIt) {
  Accumulator folds(own(1, {0, 70}));
  EXPECT_EQ(take(folds, 70, kFirst), true);
  EXPECT_EQ(take(folds, 0, kFirst), false);
  EXPECT_EQ(take(folds, 70, kFirst), std::nullopt);
  EXPECT_EQ(take(folds, 0, kFirst), std::nullopt);
  EXPECT_EQ(take(folds, 0, kSecond), true) << "blocks are told apart";
}

TEST(Accumulator, HasBegunWhenTheBlockAtASixteenthHoldsAllThatAreKnown) {
  Accumulator folds(own(1, {0, 1}, false));
  EXPECT_FALSE(folds.has_begun());
  take(folds, 0, kFirst);
  take(folds, 1, kSecond);
  EXPECT_FALSE(folds.has_begun());
  take(folds, 1, kFirst);
  EXPECT_TRUE(folds.has_begun());
  EXPECT_TRUE(folds.handle_own(own(1, {2}, false)));
  EXPECT_FALSE(folds.has_begun()) << "of the third one nothing";
  ReduceOwn none = own(2, {0, 1}, false);
  none.owned.clear();
  EXPECT_FALSE(Accumulator(none).has_begun());
}

// Ten blocks, of which half are owned: its first is at a sixteenth, its second at a quarter.
class AccumulatorOfTen : public testing::Test {
 protected:
  static Accumulator of(const std::vector<std::uint32_t>& members) {
    ReduceOwn many = own(1, members, false);
    many.meta.size_bytes = 10 * many.meta.block_bytes;
    many.meta.parts = {{DType::kFloat32, many.meta.size_bytes}};
    return Accumulator(many);
  }
  static void fold(Accumulator& folds, const std::vector<std::uint32_t>& members,
                   std::uint32_t blocks) {
    for (const std::uint32_t member : members) {
      for (std::uint32_t n = 0; n < blocks; ++n) take(folds, member, BlockIndex{1 + 2 * n});
    }
  }
};

TEST_F(AccumulatorOfTen, OfManyThatCameOneByOneHasBegunOnlyWhenAllThatAreKnownAreFolded) {
  Accumulator together = of({0, 1, 2, 3, 4, 5});
  fold(together, {0}, 5);  // is on this node
  fold(together, {1, 2, 3, 4, 5}, 1);
  EXPECT_TRUE(together.has_begun());
  Accumulator staggered = of({0, 1, 2, 3, 4, 5});
  fold(staggered, {0, 1, 2}, 5);
  fold(staggered, {3, 4, 5}, 2);
  EXPECT_FALSE(staggered.has_begun()) << "a new cut would void what is folded";
  fold(staggered, {3, 4, 5}, 5);
  EXPECT_TRUE(staggered.has_begun()) << "and nothing is left to do but to wait";
}

// Cut for five owners instead of six, it saves 1/15 of a copy's time, and voids 1/16.
TEST_F(AccumulatorOfTen, OfFiveThatCameOneByOneHasBegunAsOfFiveThatCameTogether) {
  Accumulator staggered = of({0, 1, 2, 3, 4});
  fold(staggered, {0, 1, 2}, 5);
  EXPECT_FALSE(staggered.has_begun());
  fold(staggered, {3, 4}, 1);
  EXPECT_TRUE(staggered.has_begun());
}

TEST(Accumulator, KnowsWhereAMemberIsToBeContinued) {
  Accumulator folds(own(1, {0, 1}));
  EXPECT_EQ(folds.first_lacking(0, kMine), 0U);
  take(folds, 0, kSecond);
  EXPECT_EQ(folds.first_lacking(0, kMine), 0U);
  take(folds, 0, kFirst);
  EXPECT_EQ(folds.first_lacking(0, kMine), std::nullopt);
  EXPECT_TRUE(folds.lacks(1, kFirst));
}

TEST(Accumulator, TakesMembersThatWereCombinedTogetherOrNotAtAll) {
  Accumulator folds(own(1, {0, 1, 2}));
  const std::vector<std::uint32_t> first{0, 2}, second{1, 2};
  const auto steps = folds.take(first, kFirst);
  ASSERT_TRUE(steps);
  EXPECT_EQ(*steps, (std::vector{FoldStep{0, std::nullopt, true}}));
  EXPECT_FALSE(folds.lacks(0, kFirst) || folds.lacks(2, kFirst));
  EXPECT_FALSE(folds.take(second, kFirst)) << "2 would count twice";
  EXPECT_TRUE(folds.lacks(1, kFirst));
  EXPECT_TRUE(folds.handle_own(own(2, {0, 1})));  // 2 is gone, and its sum with 0 is void
  EXPECT_TRUE(folds.lacks(0, kFirst));
  EXPECT_FALSE(folds.take(second, kFirst)) << "2 is no member any more";
}

TEST(Accumulator, KnowsWhichMembersLackTheSameBlocks) {
  Accumulator folds(own(1, {0, 1}));
  EXPECT_TRUE(folds.lacks_alike(0, 1, kMine));
  take(folds, 0, kSecond);
  EXPECT_FALSE(folds.lacks_alike(0, 1, kMine));
  take(folds, 1, kSecond);
  EXPECT_TRUE(folds.lacks_alike(0, 1, kMine));
}

TEST(Accumulator, LetsSendersCombineWhereNoRoundingOrOrderIsLost) {
  EXPECT_TRUE(Accumulator(own(1, {0})).can_combine());
  ReduceOwn halves = own(1, {0});
  halves.meta.parts = {{DType::kFloat32, 2048}, {DType::kBfloat16, 2048}};
  EXPECT_FALSE(Accumulator(halves).can_combine());
  ReduceOwn fixed = own(1, {0});
  fixed.deterministic = true;
  EXPECT_FALSE(Accumulator(fixed).can_combine());
}

TEST(Accumulator, IsFinalOnlyWithEveryMemberOfASealedSet) {
  Accumulator folds(own(1, {0}, false));
  take(folds, 0, kFirst);
  EXPECT_EQ(finish_all(folds), Blocks{}) << "another member may come";
  ReduceOwn more = own(1, {1});
  EXPECT_TRUE(folds.handle_own(more));
  EXPECT_EQ(finish_all(folds), Blocks{});
  take(folds, 1, kFirst);
  EXPECT_EQ(folds.final_blocks(kMine), 0U) << "it is not finished";
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
  EXPECT_EQ(folds.final_blocks(kMine), 1U);
  EXPECT_FALSE(folds.is_folded(kMine));
  take(folds, 0, kSecond);
  take(folds, 1, kSecond);
  EXPECT_EQ(finish_all(folds), Blocks{kSecond}) << "each block once";
  EXPECT_TRUE(folds.is_folded(kMine));
}

TEST(Accumulator, CountsOnlyTheLeadingBlocksAsFinal) {
  Accumulator folds(own(1, {0}));
  take(folds, 0, kSecond);
  EXPECT_EQ(finish_all(folds), Blocks{});
  EXPECT_EQ(folds.final_blocks(kMine), 0U);
  take(folds, 0, kFirst);
  EXPECT_EQ(finish_all(folds), (Blocks{kFirst, kSecond}));
}

TEST(Accumulator, GoesPastBlocksThatWereReceived) {
  Accumulator folds(own(1, {0}));
  folds.accept_final(kMine, 1);
  take(folds, 0, kSecond);
  EXPECT_EQ(finish_all(folds), Blocks{kSecond});
  EXPECT_TRUE(folds.is_folded(kMine));
}

TEST(Accumulator, FinishesAVoidedBlockAgainAndAKeptOneNot) {
  Accumulator folds(own(1, {0, 1}));
  for (const std::uint32_t member : {0, 1}) take(folds, member, kFirst);
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
  EXPECT_TRUE(folds.handle_own(own(2, {0, 1})));
  EXPECT_EQ(finish_all(folds), Blocks{}) << "another home, the same members";
  EXPECT_EQ(folds.final_blocks(kMine), 1U);
  EXPECT_TRUE(folds.handle_own(own(3, {0, 2})));
  EXPECT_EQ(finish_all(folds), Blocks{});
  EXPECT_EQ(take(folds, 2, kFirst), true) << "from the start";
  EXPECT_EQ(take(folds, 0, kFirst), false);
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
}

TEST(Accumulator, FoldsAMeanAnewWhenItMayGetAnotherMember) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    ReduceOwn one = own(1, {0});
    one.op = op;
    Accumulator folds(one);
    take(folds, 0, kFirst);
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
  take(folds, 0, kFirst);
  take(folds, 1, kFirst);
  take(folds, 0, kSecond);
  EXPECT_TRUE(folds.handle_own(own(2, {0, 2})));
  EXPECT_TRUE(folds.lacks(0, kFirst)) << "it held member 1";
  EXPECT_FALSE(folds.lacks(0, kSecond));
  EXPECT_EQ(take(folds, 2, kSecond), false);
  EXPECT_EQ(take(folds, 2, kFirst), true);
}

// home of epoch 1: stripe 1 -> us │ we fold member 0 │ home of epoch 2: stripe 0 -> us │ another
// owner's sum of stripe 1 is received into the result, for a get │ home of epoch 3: stripe 1 -> us.
// The block must not count member 0 as folded, because member 1 would be added to the whole sum.
TEST(Accumulator, ForgetsTheBlocksOfAStripeThatItOwnsNoMore) {
  for (const bool is_raised : {true, false}) {
    Accumulator folds(own(1, {0}, false));
    take(folds, 0, kFirst);
    ReduceOwn others = own(is_raised ? 2 : 1, {0, 1});
    others.owned = {StripeIndex{0}};
    EXPECT_TRUE(folds.handle_own(others));
    EXPECT_TRUE(folds.handle_own(own(3, {0, 1})));
    EXPECT_EQ(take(folds, 1, kFirst), true) << "what lies there is no part of it";
    EXPECT_EQ(take(folds, 0, kFirst), false);
  }
}

TEST(Accumulator, KeepsTheBlocksThatAreOwnedUnderBothCuts) {
  Accumulator folds(own(1, {0, 1}));
  take(folds, 0, kFirst);
  take(folds, 0, kSecond);
  ReduceOwn finer = own(2, {0, 1});
  finer.stripe_count = 4;  // stripe 1 is block 1 only
  EXPECT_TRUE(folds.handle_own(finer));
  EXPECT_FALSE(folds.lacks(0, kFirst));
  EXPECT_TRUE(folds.handle_own(own(3, {0, 1})));
  EXPECT_FALSE(folds.lacks(0, kFirst));
  EXPECT_TRUE(folds.lacks(0, kSecond)) << "another node owned it under the finer cut";
}

TEST(Accumulator, IsNoLongerSealedInANewEpochUnlessToldSo) {
  Accumulator folds(own(1, {0}));
  take(folds, 0, kFirst);
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
  Accumulator folds(own(1, {0}, false));
  folds.members().at(0).sender = NodeId{4};
  folds.members().at(0).source.incarnation = Incarnation{3};  // as Located said
  folds.handle_own(own(1, {0, 1}));
  EXPECT_EQ(folds.members().at(0).sender, NodeId{4});
  EXPECT_EQ(folds.members().at(0).source.incarnation, Incarnation{3});
  EXPECT_TRUE(folds.members().contains(1));
}

TEST(Accumulator, TakesNobodyElseOnceItIsSealedNorMoreThanItsCount) {
  ReduceOwn few = own(1, {0, 1}, false);
  few.count = 2;
  Accumulator folds(few);
  few.members = {source(5)};
  folds.handle_own(few);
  EXPECT_FALSE(folds.members().contains(5));
  Accumulator sealed(own(1, {0}));
  sealed.handle_own(own(1, {1}));
  EXPECT_FALSE(sealed.members().contains(1));
}

TEST(Accumulator, KnowsWhoHoldsAMemberWhenTheHomeDoes) {
  ReduceOwn told = own(1, {0, 1});
  told.members[1].holder = NodeId{7};
  Accumulator folds(told);
  EXPECT_FALSE(folds.members().at(0).located);
  EXPECT_TRUE(folds.members().at(1).located);
  EXPECT_EQ(folds.members().at(1).sender, NodeId{7});
}

ReduceOwn deterministic(std::uint32_t epoch, const std::vector<std::uint32_t>& members,
                        bool sealed = true) {
  ReduceOwn fixed = own(epoch, members, sealed);
  fixed.deterministic = true;
  fixed.source_count = 4;
  fixed.count = 3;
  return fixed;
}

TEST(Accumulator, KeepsWhatALostMemberHadNoPartInWhenItIsDeterministic) {
  Accumulator folds(deterministic(1, {0, 1, 3}));
  for (const std::uint32_t member : {0, 1, 3}) EXPECT_TRUE(folds.take(member, kFirst));
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
  for (const std::uint32_t member : {0, 1}) EXPECT_TRUE(folds.take(member, kSecond));
  EXPECT_TRUE(folds.handle_own(deterministic(2, {0, 1, 2})));
  for (const std::uint32_t member : {0, 1}) {
    EXPECT_TRUE(folds.lacks(member, kFirst)) << "the root had member 3 in it";
    EXPECT_FALSE(folds.lacks(member, kSecond)) << "0 and 1 are a pair as they were";
  }
  EXPECT_EQ(folds.take(2, kSecond)->size(), 2U) << "into a cell, and to the pair";
}

TEST(Accumulator, UndoesPairsThatASpareComesBetween) {
  Accumulator folds(deterministic(1, {0, 2, 3}));
  EXPECT_TRUE(folds.take(0, kFirst));
  EXPECT_TRUE(folds.take(2, kFirst));
  EXPECT_TRUE(folds.take(3, kFirst));
  EXPECT_TRUE(folds.handle_own(deterministic(2, {0, 1, 2})));
  EXPECT_TRUE(folds.lacks(0, kFirst)) << "it had gone in with 2 and 3 already";
  EXPECT_TRUE(folds.lacks(2, kFirst));
}

TEST(Accumulator, HasNothingToFoldInAStripeWithoutBlocks) {
  ReduceOwn tiny = own(1, {0});
  tiny.meta.size_bytes = 100;  // block 0 only, of the other stripe
  EXPECT_TRUE(Accumulator(tiny).is_folded(kMine));
  EXPECT_EQ(Accumulator(tiny).first_lacking(0, kMine), std::nullopt);
}

TEST(Accumulator, AnotherObjectUnderAnIndexOfBeforeIsAnotherMember) {
  Accumulator folds(own(1, {0, 1}));
  for (const std::uint32_t member : {0U, 1U}) {
    take(folds, member, kFirst);
  }
  EXPECT_EQ(finish_all(folds), Blocks{kFirst});
  ReduceOwn next = own(2, {0, 1});  // the branch is made again
  next.members[1].object = ObjectId{{99}};
  EXPECT_TRUE(folds.handle_own(next));
  EXPECT_EQ(finish_all(folds), Blocks{});
  EXPECT_TRUE(folds.lacks(0, kFirst));  // its block held the old branch and is void
  EXPECT_TRUE(folds.lacks(1, kFirst));
  EXPECT_EQ(folds.members().at(1).source.object, ObjectId{{99}});
}

}  // namespace
}  // namespace hoplite
