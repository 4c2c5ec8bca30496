// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/local_object.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

const ObjectId kId{{1}};

// Four blocks in two stripes: stripe 0 has the blocks 0 and 2, stripe 1 the blocks 1 and 3.
LocalObject in_stripes(StripeState first, StripeState second) {
  LocalObject object;
  object.incarnation = Incarnation{1};
  object.meta = {3500, 1000, {{DType::kOpaque, 3500}}, ""};
  object.extent = Extent{10'000, 3500};
  object.stripes.resize(2);
  object.stripes[0].state = first;
  object.stripes[1].state = second;
  return object;
}
LocalObject being_written(std::uint64_t upto) {
  LocalObject object = in_stripes(StripeState::kRoot, StripeState::kRoot);
  object.stripes.resize(1);
  object.put_request = Waiter{};
  object.written_bytes = upto;
  return object;
}
Claim claim_of(const LocalObject& object) { return make_claim(kId, object, false); }

TEST(LocalObject, IsCompleteWithEveryStripe) {
  using enum StripeState;
  EXPECT_TRUE(in_stripes(kComplete, kComplete).is_complete());
  EXPECT_FALSE(in_stripes(kComplete, kReceiving).is_complete());
  EXPECT_FALSE(in_stripes(kRoot, kRoot).is_complete());
  EXPECT_FALSE(being_written(3500).is_complete());
  EXPECT_FALSE(LocalObject{}.is_complete());
}

TEST(LocalObject, SizesAroundTwoAndFourGibibytesAreCutWhole) {
  for (const std::uint64_t size : {2_GiB - 1, 2_GiB, 2_GiB + 1, 4_GiB - 1, 4_GiB, 4_GiB + 1}) {
    const ObjectMeta meta{size, kBlockBytesMax, {{DType::kOpaque, size}}, ""};
    for (const std::uint16_t stripes : {std::uint16_t{1}, std::uint16_t{3}, std::uint16_t{8}}) {
      std::uint64_t bytes = 0;
      std::uint64_t end = 0;
      for (std::uint16_t j = 0; j < stripes; ++j) {
        const auto count = stripe_blocks(meta.block_count(), stripes, StripeIndex{j});
        for (std::uint32_t n = 0; n < count; ++n) {
          const Extent block = block_extent(meta, stripe_block(stripes, StripeIndex{j}, n));
          bytes += block.size_bytes;
          end = std::max(end, block.offset + block.size_bytes);
        }
      }
      EXPECT_EQ(bytes, size);
      EXPECT_EQ(end, size);
    }
  }
}

TEST(LocalObject, HasTheBlocksBelowReadyAndThoseThatCameBeforeTheirTurn) {
  LocalObject object = in_stripes(StripeState::kComplete, StripeState::kReceiving);
  object.stripes[1].beyond = {1};
  EXPECT_TRUE(object.has_block(BlockIndex{2}));
  EXPECT_FALSE(object.has_block(BlockIndex{1}));
  EXPECT_TRUE(object.has_block(BlockIndex{3}));
  object.stripes[1].ready = 1;
  EXPECT_TRUE(object.has_block(BlockIndex{1}));
}

TEST(LocalObject, HasOnlyWholeBlocksOfAPutThatIsBeingWritten) {
  EXPECT_TRUE(being_written(1999).has_block(BlockIndex{0}));
  EXPECT_FALSE(being_written(1999).has_block(BlockIndex{1}));
  EXPECT_FALSE(being_written(3499).has_block(BlockIndex{3}));
  EXPECT_TRUE(being_written(3500).has_block(BlockIndex{3})) << "the last block is short";
}

TEST(LocalObject, HasARangeWhoseBlocksAreAllHere) {
  LocalObject object = in_stripes(StripeState::kComplete, StripeState::kIdle);
  object.stripes[1].ready = 1;  // blocks 0, 1 and 2 of four
  EXPECT_TRUE(object.has_range({500, 2500}));
  EXPECT_FALSE(object.has_range({500, 2501}));
  EXPECT_FALSE(object.has_range({3499, 1}));
  EXPECT_TRUE(being_written(1999).has_range({1500, 499}));
  EXPECT_FALSE(being_written(1999).has_range({1500, 500}));
}

TEST(LocalObject, HasTheLeadingBytesUpToTheFirstBlockThatAStripeLacks) {
  using enum StripeState;
  LocalObject object = in_stripes(kReceiving, kReceiving);
  EXPECT_EQ(object.ready_bytes(), 0U);
  object.stripes[1].ready = 2;
  EXPECT_EQ(object.ready_bytes(), 0U) << "block 0 is of stripe 0";
  object.stripes[0].ready = 1;
  EXPECT_EQ(object.ready_bytes(), 2000U);
  object.stripes[0].beyond = {1};
  EXPECT_EQ(object.ready_bytes(), 2000U) << "a block before its turn is none of the leading ones";
  object.stripes[0].ready = 2;
  EXPECT_EQ(object.ready_bytes(), 3500U) << "the last block is short";
  EXPECT_EQ(in_stripes(kComplete, kComplete).ready_bytes(), 3500U);
  EXPECT_EQ(in_stripes(kComplete, kIdle).ready_bytes(), 1000U);
  EXPECT_EQ(being_written(1999).ready_bytes(), 1999U);
  LocalObject gone = in_stripes(kComplete, kComplete);
  gone.extent.reset();
  EXPECT_EQ(gone.ready_bytes(), 0U);
  EXPECT_EQ(LocalObject{}.ready_bytes(), 0U);
}

TEST(LocalObject, HasNoRangeThatIsOutsideOfIt) {
  const LocalObject object = in_stripes(StripeState::kComplete, StripeState::kComplete);
  EXPECT_TRUE(object.has_range({3500, 0}));
  EXPECT_FALSE(object.has_range({3499, 2}));
  EXPECT_FALSE(object.has_range({~0ULL, 2}));
  LocalObject uncut = object;  // as a hostile peer may have described it
  uncut.meta.block_bytes = 0;
  EXPECT_FALSE(uncut.has_range({0, 1}));
}

TEST(LocalObject, KnowsWhereABlockLies) {
  const LocalObject object = being_written(0);
  EXPECT_EQ(object.in_arena({1000, 1000}), (Extent{11'000, 1000}));
  EXPECT_EQ(object.in_arena({3000, 500}), (Extent{13'000, 500}));
}

TEST(LocalObject, MayBeEvictedOnlyWhenNobodyNeedsIt) {
  const LocalObject idle = in_stripes(StripeState::kComplete, StripeState::kComplete);
  EXPECT_TRUE(idle.may_leave());
  const auto needed = [&](auto change) {
    LocalObject object = idle;
    change(object);
    return !object.may_leave();
  };
  EXPECT_TRUE(needed([](LocalObject& o) { o.keep = Keep::kMade; }));
  EXPECT_TRUE(needed([](LocalObject& o) { o.pins[ClientId{1}] = 1; }));
  EXPECT_TRUE(needed([](LocalObject& o) { o.waiters.push_back({}); }));
  EXPECT_TRUE(needed([](LocalObject& o) { o.wanted_by_fold = true; }));
  EXPECT_TRUE(needed([](LocalObject& o) { o.finality = Finality::kTentative; }));
  EXPECT_TRUE(needed([](LocalObject& o) { o.stripes[0].state = StripeState::kIdle; }));
}

TEST(LocalObject, IsPinnedWhereItWasMadeOrAdoptedUnlessItsHomeSaysOtherwise) {
  struct Case {
    Keep keep;
    bool orphaned, elsewhere, is_pinned;
  };
  for (const Case& one : {Case{Keep::kCopy, false, false, false},
                          {Keep::kMade, false, false, true},
                          {Keep::kAdopted, false, false, true},
                          {Keep::kMade, true, false, false},
                          {Keep::kMade, false, true, false},
                          {Keep::kAdopted, true, true, false}}) {
    LocalObject object = in_stripes(StripeState::kComplete, StripeState::kComplete);
    object.owner = NodeId{5};
    object.keep = one.keep;
    object.orphaned = one.orphaned;
    object.elsewhere = one.elsewhere;
    EXPECT_EQ(object.is_pinned(), one.is_pinned);
    EXPECT_EQ(claim_of(object).pinned, one.is_pinned);
    EXPECT_EQ(claim_of(object).owner, one.keep == Keep::kAdopted ? NodeId{5} : kNoNode);
  }
}

TEST(LocalObject, KeepsNothingOfOlderBytesButItsWishes) {
  LocalObject object = in_stripes(StripeState::kComplete, StripeState::kComplete);
  object.keep = Keep::kMade;
  object.wanted_by_fold = true;
  const ObjectMeta meta{10, 10, {{DType::kOpaque, 10}}, ""};
  object.begin({Incarnation{2}, TargetEpoch{3}}, meta, Keep::kCopy,
               finality_of_copy(TargetEpoch{3}));
  EXPECT_EQ(name_of_bytes(object), (BytesName{Incarnation{2}, TargetEpoch{3}}));
  EXPECT_EQ(object.meta, meta);
  EXPECT_FALSE(object.is_pinned() || object.is_final());
  EXPECT_TRUE(object.is_wanted());
  EXPECT_EQ(finality_of_copy(TargetEpoch{0}), Finality::kFinal);
}

TEST(LocalObject, ClaimsNothingButItsWishBeforeItHasARange) {
  LocalObject object;
  object.waiters.push_back({});
  object.exists = true;
  const Claim claim = claim_of(object);
  EXPECT_TRUE(claim.wants && claim.exists && claim.stripes.empty());
  EXPECT_FALSE(make_claim(kId, object, true).wants) << "without a range it can be nobody's sender";
}

TEST(LocalObject, ClaimsAPutAsOneRootAndAWholeCopyAsOneCompleteStripe) {
  const Claim written = claim_of(being_written(10));
  ASSERT_EQ(written.stripes.size(), 1U);
  EXPECT_EQ(written.stripes[0].state, StripeState::kRoot);
  LocalObject whole = in_stripes(StripeState::kComplete, StripeState::kComplete);
  whole.waiters.push_back({});
  ASSERT_EQ(claim_of(whole).stripes.size(), 1U);
  EXPECT_EQ(claim_of(whole).stripes[0].state, StripeState::kComplete);
  EXPECT_FALSE(claim_of(whole).wants) << "it has it";
}

TEST(LocalObject, ClaimsEachStripeOfAPartialCopy) {
  LocalObject object = in_stripes(StripeState::kReceiving, StripeState::kIdle);
  object.stripes[0].sender = NodeId{4};
  object.stripes[0].lease = LeaseId{9};
  object.stripes[0].ready = 1;
  const Claim claim = claim_of(object);
  ASSERT_EQ(claim.stripes.size(), 2U);
  EXPECT_EQ(claim.stripes[0],
            (StripeClaim{StripeIndex{0}, StripeState::kReceiving, LeaseId{9}, NodeId{4}, 1}));
  EXPECT_EQ(claim.stripes[1].stripe, StripeIndex{1});
}

}  // namespace
}  // namespace hoplite
