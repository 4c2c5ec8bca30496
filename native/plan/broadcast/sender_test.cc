// SPDX-License-Identifier: Apache-2.0
// The sending end: credit, order, and refused receivers.
#include "plan/broadcast/sender.h"

#include <gtest/gtest.h>

#include <deque>

namespace hoplite {
namespace {

constexpr NodeId kB{2}, kC{3};
const ObjectId kLong{{1}};
const ObjectId kShort{{2}};

class SenderTest : public ::testing::Test {
 protected:
  SenderTest() {
    add(kLong, 8);
    add(kShort, 2);
    rails_.handle_link_up(kB, 1);
    rails_.handle_link_up(kC, 1);
  }
  void add(const ObjectId& id, std::uint32_t blocks) {
    LocalObject& object = objects_[id];
    object.incarnation = Incarnation{1};
    object.meta = {
        std::uint64_t{blocks} * 1024, 1024, {{DType::kOpaque, std::uint64_t{blocks} * 1024}}, ""};
    object.extent = Extent{std::uint64_t{id.bytes[0]} * 65536, object.meta.size_bytes};
    object.stripes.resize(1);
    object.stripes[0].state = StripeState::kComplete;
  }

  // ---- verbs ----
  struct Pulled {
    std::uint32_t from = 0, credits = 100, life = 1;
    std::uint16_t stripe_count = 1, stripe = 0;
  };
  bool start(NodeId to, std::uint64_t transfer, const ObjectId& id) {
    return start(to, transfer, id, Pulled());
  }
  bool start(NodeId to, std::uint64_t transfer, const ObjectId& id, const Pulled& pulled) {
    const PullStart want{.object = id,
                         .incarnation = Incarnation{pulled.life},
                         .target_epoch = {},
                         .stripe_count = pulled.stripe_count,
                         .stripe = StripeIndex{pulled.stripe},
                         .from = pulled.from,
                         .credits = pulled.credits};
    return sender_.handle_start(to, TransferId{transfer}, want, objects_);
  }
  // Everything that goes out now, as (transfer, block).
  using Sent = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  Sent send() {
    Sent sent;
    while (const auto next = poll()) {
      const SendBlock& block = next->block;
      EXPECT_EQ(block.extent.offset,
                objects_.at(block.header.object).extent->offset + block.header.offset);
      sent.emplace_back(block.header.transfer.value, block.header.offset / 1024);
    }
    return sent;
  }

  // The next of the blocks that go out now.
  std::optional<Sender::Next> poll() {
    if (taken_.empty()) {
      for (Sender::Next& next : take(~0ULL)) taken_.push_back(std::move(next));
    }
    if (taken_.empty()) return std::nullopt;
    Sender::Next next = std::move(taken_.front());
    taken_.pop_front();
    return next;
  }
  std::vector<Sender::Next> take(std::uint64_t fold_bytes_left) {
    return sender_.take_blocks(objects_, rails_, inventory_, fold_bytes_left, now_);
  }

  LocalObjects objects_;
  Inventory inventory_{1_MiB, 1_s};
  Rails rails_{64_KiB, kLinkBytesPerS};
  Sender sender_{NodeId{1}, kCombinedBytesMax};
  Instant now_{1};

 private:
  std::deque<Sender::Next> taken_;
};

TEST_F(SenderTest, SendsNoMoreThanItHasCreditFor) {
  ASSERT_TRUE(start(kB, 1, kLong, {.credits = 2}));
  EXPECT_EQ(send(), (Sent{{1, 0}, {1, 1}}));
  sender_.handle_credit(kB, TransferId{1}, 1);
  sender_.handle_credit(kC, TransferId{1}, 5);  // another receiver's
  EXPECT_EQ(send(), (Sent{{1, 2}}));
}

TEST_F(SenderTest, SendsTheBlocksOfTheStripeFromWhereItIsAsked) {
  ASSERT_TRUE(start(kB, 1, kLong, {.from = 1, .stripe_count = 3, .stripe = 2}));
  EXPECT_EQ(send(), (Sent{{1, 5}}));
  EXPECT_EQ(sender_.edge_count(), 0U) << "it is done";
}

// The object as if its bytes from 1000 on were one of 500-byte blocks.
TEST_F(SenderTest, SendsARangeInBlocksOfItsOwn) {
  PullStart want;
  want.object = kLong;
  want.incarnation = Incarnation{1};
  want.credits = 9;
  want.range = {1000, 1200};
  want.is_range = true;
  want.block_bytes = 500;
  ASSERT_TRUE(sender_.handle_start(kB, TransferId{1}, want, objects_));
  const std::uint64_t at = objects_.at(kLong).extent->offset + 1000;
  for (const std::uint64_t offset : {0, 500, 1000}) {
    const auto next = poll();
    ASSERT_TRUE(next);
    EXPECT_EQ(next->block.header.offset, offset);
    EXPECT_EQ(next->block.extent, (Extent{at + offset, offset < 1000 ? 500U : 200U}));
  }
  EXPECT_EQ(sender_.edge_count(), 0U) << "it is done";
}

// The sender looks at each pull for every block, whichever receiver the block is for.
TEST_F(SenderTest, ServesNoMorePullsOfOnePeerThanItCanLookAt) {
  PullStart early;
  early.object.bytes[0] = 99;
  early.of_branch = true;
  const auto pull = [&](NodeId to, std::uint64_t transfer) {
    return sender_.handle_start(to, TransferId{transfer}, early, objects_);
  };
  for (std::size_t i = 0; i < kEarlyPullsMax; ++i) ASSERT_TRUE(pull(kB, i));
  EXPECT_FALSE(pull(kB, kEarlyPullsMax));
  EXPECT_TRUE(pull(kC, 0)) << "of another peer";
  EXPECT_TRUE(start(kB, kEarlyPullsMax, kLong)) << "which is here";
  EXPECT_FALSE(sender_.handle_stop(kB, TransferId{0}).empty());
  EXPECT_TRUE(pull(kB, 0));
  early.beside.resize(kPulledObjectsMax - 1);
  EXPECT_FALSE(pull(kC, 1)) << "it names one object more than that";
  sender_.handle_link_down(kC);
  EXPECT_TRUE(pull(kC, 1));
}

TEST_F(SenderTest, SendsNothingOfARangeThatIsOutsideOfTheObject) {
  PullStart want;
  want.object = kShort;
  want.incarnation = Incarnation{1};
  want.credits = 9;
  want.is_range = true;
  want.block_bytes = 512;
  std::uint64_t transfer = 0;
  for (const Extent range : {Extent{1024, 1025}, {~0ULL, 2}, {4096, 1}}) {
    want.range = range;
    EXPECT_FALSE(sender_.handle_start(kB, TransferId{++transfer}, want, objects_));
  }
  EXPECT_TRUE(send().empty());
}

TEST_F(SenderTest, LetsTheReaderOfABranchWaitThatWasToldOfItBeforeItsOwner) {
  const ObjectId branch{{3}};
  PullStart want;
  want.object = branch;
  want.incarnation = Incarnation{1};
  want.credits = 9;
  EXPECT_FALSE(sender_.handle_start(kB, TransferId{1}, want, objects_)) << "it is none";
  want.of_branch = true;
  EXPECT_TRUE(sender_.handle_start(kB, TransferId{1}, want, objects_));
  EXPECT_TRUE(send().empty());
  add(branch, 2);
  EXPECT_EQ(send(), (Sent{{1, 0}, {1, 1}}));
}

TEST_F(SenderTest, SendsNothingOfAnObjectWithoutBlocks) {
  objects_.at(kShort).meta.block_bytes = 0;  // as a hostile peer may have described it
  start(kB, 1, kShort);
  EXPECT_TRUE(send().empty());
}

class CombiningSender : public SenderTest {
 protected:
  CombiningSender() {
    for (const ObjectId& id : {kOne, kOther}) {
      add(id, 2);
      objects_.at(id).meta.parts = {{DType::kFloat32, 2048}};
    }
  }
  PullStart both() const {
    PullStart want;
    want.object = kOne;
    want.incarnation = Incarnation{1};
    want.credits = 9;
    want.beside = {{kOther, Incarnation{1}}};
    return want;
  }
  bool start_both(std::uint64_t transfer) {
    return sender_.handle_start(kB, TransferId{transfer}, both(), objects_);
  }
  const ObjectId kOne{{4}}, kOther{{5}};
};

TEST_F(CombiningSender, SendsOneBlockForThoseOfSeveralObjects) {
  ASSERT_TRUE(start_both(1));
  EXPECT_TRUE(sender_.serves(kOther)) << "it is not evicted meanwhile";
  EXPECT_TRUE(take(0).empty()) << "this turn has folded enough";
  std::vector<BlockTicket> tickets;
  for (const std::uint64_t offset : {0, 1024}) {
    const auto next = poll();
    ASSERT_TRUE(next);
    tickets.push_back(next->block.ticket);
    EXPECT_EQ(next->combined, (std::vector{kOne, kOther}));
    EXPECT_EQ(next->range, (Extent{offset, 1024}));
    EXPECT_EQ(next->block.header.offset, offset);
  }
  EXPECT_FALSE(sender_.serves(kOther));
  EXPECT_EQ(inventory_.used_bytes(), 2048U);
  for (const BlockTicket ticket : tickets) {
    const auto sent = sender_.handle_sent(kB, ticket);
    ASSERT_TRUE(sent && sent->borrowed);
    inventory_.release_borrowed(*sent->borrowed);
  }
  EXPECT_EQ(inventory_.used_bytes(), 0U);
}

// A rail that opens late: its first blocks wait on another rail, and a later one overtakes them.
TEST_F(CombiningSender, ALaterBlockThatLeavesFirstGivesBackItsOwnRange) {
  ASSERT_TRUE(start_both(1));
  const auto first = poll();
  const auto later = poll();
  ASSERT_TRUE(first && later);
  ASSERT_EQ(first->block.rail, later->block.rail);
  const auto sent = sender_.handle_sent(kB, later->block.ticket);
  ASSERT_TRUE(sent && sent->borrowed);
  EXPECT_EQ(*sent->borrowed, later->block.extent);
  EXPECT_FALSE(sender_.handle_sent(kB, later->block.ticket)) << "it was said before";
  const auto unsent = sender_.take_unsent(kB);
  ASSERT_EQ(unsent.size(), 1U);
  EXPECT_EQ(unsent.front().borrowed, first->block.extent);
}

TEST_F(CombiningSender, WaitsForTheBlocksOfAll) {
  LocalObject& other = objects_.at(kOther);
  other.put_request = Waiter{};
  other.written_bytes = 1500;
  ASSERT_TRUE(start_both(1));
  EXPECT_TRUE(poll());
  EXPECT_FALSE(poll());
  other.written_bytes = 2048;
  EXPECT_TRUE(poll());
}

TEST_F(CombiningSender, RefusesWhatItCanNotCombine) {
  const auto refused = [&](auto change) {
    const LocalObject before = objects_.at(kOther);
    change(objects_.at(kOther));
    const bool is_refused = !start_both(1);
    objects_.at(kOther) = before;
    return is_refused;
  };
  EXPECT_TRUE(refused([](LocalObject& o) { o.incarnation = Incarnation{2}; }));
  EXPECT_TRUE(refused([](LocalObject& o) { o.finality = Finality::kTentative; }));
  EXPECT_TRUE(refused([](LocalObject& o) { o.meta.parts = {{DType::kInt32, 2048}}; }));
  EXPECT_TRUE(refused([](LocalObject& o) { o.stripes.clear(); }));
  objects_.erase(kOther);
  EXPECT_FALSE(start_both(1));
}

// A peer may ask for anything; a kernel folds whole elements into as many.
TEST_F(CombiningSender, RefusesWhatNoKernelFolds) {
  PullStart want = both();
  want.is_range = true;
  want.range = {64, 1024};
  want.block_bytes = 512;
  const auto served = [&] { return sender_.handle_start(kB, TransferId{1}, want, objects_); };
  EXPECT_TRUE(served());
  want.range = {66, 1024};
  EXPECT_FALSE(served()) << "it begins inside an element";
  want.range = {64, 1022};
  EXPECT_FALSE(served()) << "it ends inside one";
  want.range = {64, 1024};
  want.block_bytes = 510;
  EXPECT_FALSE(served()) << "its blocks do";
  want.block_bytes = 512;
  want.target_epoch = TargetEpoch{1};
  EXPECT_FALSE(served()) << "sources of a fold have none";
  want.target_epoch = TargetEpoch{0};
  want.beside.assign(kCombinedBytesMax / 512, {kOther, Incarnation{1}});
  EXPECT_FALSE(served()) << "all else would wait while they are folded";
  want.beside.pop_back();
  EXPECT_TRUE(served());
  for (const DType dtype : {DType::kOpaque, DType::kBool, DType::kBfloat16, DType::kFloat16}) {
    for (const ObjectId& id : {kOne, kOther}) objects_.at(id).meta.parts = {{dtype, 2048}};
    EXPECT_FALSE(served());
  }
}

TEST_F(CombiningSender, RefusesWhatIsOfOtherPartsByNow) {
  ASSERT_TRUE(start_both(1));
  EXPECT_EQ(take(1).size(), 1U) << "the turn has folded enough then";
  objects_.at(kOther).meta.parts = {{DType::kFloat64, 2048}};
  EXPECT_FALSE(poll());
  EXPECT_TRUE(sender_.poll_refused());
}

// A block that waits for the next turn's folds, or for room, holds up no other receiver.
TEST_F(CombiningSender, SendsOtherBlocksWhileCombinedOnesWait) {
  ASSERT_TRUE(start_both(1));
  ASSERT_TRUE(start(kC, 2, kLong));
  const auto blocks = take(0);
  ASSERT_EQ(blocks.size(), 8U);
  for (const Sender::Next& each : blocks) EXPECT_EQ(each.block.to, kC);
}

TEST_F(CombiningSender, CountsTheSameOneTwice) {
  PullStart want = both();
  want.beside[0].object = kOne;
  ASSERT_TRUE(sender_.handle_start(kB, TransferId{1}, want, objects_));
  const auto next = poll();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->combined, (std::vector{kOne, kOne}));
}

TEST_F(CombiningSender, RefusesWhenOneOfThemIsDroppedOrMemoryIsShort) {
  ASSERT_TRUE(start_both(1));
  const auto dropped = sender_.drop(kOther);
  ASSERT_EQ(dropped.size(), 1U);
  EXPECT_EQ(dropped[0].objects, (std::vector{kOne, kOther}));
  ASSERT_TRUE(start_both(2));
  while (inventory_.borrow(64_KiB)) {
  }
  EXPECT_FALSE(poll());
  const auto refused = sender_.poll_refused();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->transfer, TransferId{2});
  EXPECT_EQ(sender_.edge_count(), 0U);
}

TEST_F(SenderTest, ServesWhoeverHasTheLeastLeftFirst) {
  ASSERT_TRUE(start(kB, 1, kLong));
  ASSERT_TRUE(start(kC, 2, kShort));
  const Sent sent = send();
  ASSERT_EQ(sent.size(), 10U);
  EXPECT_EQ(sent[0], (std::pair<std::uint64_t, std::uint64_t>(2, 0)));
  EXPECT_EQ(sent[1], (std::pair<std::uint64_t, std::uint64_t>(2, 1)));
}

TEST_F(SenderTest, GivesTheReceiversOfOneObjectABlockEachInTurn) {
  start(kB, 1, kLong, {.stripe_count = 2, .stripe = 0});
  start(kC, 2, kLong, {.stripe_count = 2, .stripe = 1});
  start(kC, 3, kLong, {.from = 6});
  const Sent sent = send();
  EXPECT_EQ(sent,
            (Sent{{1, 0}, {2, 1}, {3, 6}, {1, 2}, {2, 3}, {3, 7}, {1, 4}, {2, 5}, {1, 6}, {2, 7}}));
}

TEST_F(SenderTest, SendsAnObjectThatIsBeingWrittenAsFarAsItIs) {
  LocalObject& object = objects_.at(kLong);
  object.put_request = Waiter{};
  object.written_bytes = 1500;
  ASSERT_TRUE(start(kB, 1, kLong));
  EXPECT_EQ(send(), (Sent{{1, 0}}));
  object.written_bytes = 2048;
  EXPECT_EQ(send(), (Sent{{1, 1}}));
}

TEST_F(SenderTest, RefusesWhatItDoesNotHave) {
  EXPECT_FALSE(start(kB, 1, ObjectId{{9}}));
  EXPECT_FALSE(start(kB, 1, kLong, {.life = 2}));
  EXPECT_FALSE(start(kB, 1, kLong, {.stripe_count = 0}));
  EXPECT_FALSE(start(kB, 1, kLong, {.stripe_count = 2, .stripe = 2}));
  EXPECT_FALSE(start(kB, 1, kLong, {.stripe_count = kStripesMax + 1}));
  objects_.at(kLong).stripes.clear();
  EXPECT_FALSE(start(kB, 1, kLong)) << "it waits for its range";
  EXPECT_EQ(sender_.edge_count(), 0U);
}

TEST_F(SenderTest, LetsAReceiverWaitThatWasToldOfItsGrantFirst) {
  const ObjectId later{{3}};
  objects_[later].waiters.push_back({});
  ASSERT_TRUE(start(kB, 1, later));
  EXPECT_TRUE(send().empty());
  add(later, 2);
  EXPECT_EQ(send().size(), 2U);
}

TEST_F(SenderTest, StopsWhenItIsTold) {
  ASSERT_TRUE(start(kB, 1, kLong));
  sender_.handle_stop(kC, TransferId{1});
  EXPECT_EQ(sender_.edge_count(), 1U) << "somebody else's";
  sender_.handle_stop(kB, TransferId{1});
  EXPECT_TRUE(send().empty());
}

TEST_F(SenderTest, NamesTheTransfersToRefuseWhenAnObjectGoes) {
  ASSERT_TRUE(start(kB, 1, kLong));
  ASSERT_TRUE(start(kC, 2, kLong));
  ASSERT_TRUE(start(kC, 3, kShort));
  EXPECT_EQ(sender_.drop(kLong).size(), 2U);
  EXPECT_EQ(send(), (Sent{{3, 0}, {3, 1}}));
}

TEST_F(SenderTest, NamesTheBlocksThatHadNotLeftWhenALinkBreaks) {
  ASSERT_TRUE(start(kB, 1, kShort));
  ASSERT_TRUE(start(kC, 2, kShort));
  std::map<NodeId, BlockTicket> first_to;
  while (const auto next = poll()) first_to.try_emplace(next->block.to, next->block.ticket);
  const auto sent = sender_.handle_sent(kB, first_to.at(kB));
  ASSERT_TRUE(sent);
  EXPECT_EQ(std::pair(sent->object, sent->incarnation), std::pair(kShort, Incarnation{1}));
  sender_.handle_link_down(kB);
  EXPECT_EQ(sender_.take_unsent(kB).size(), 1U);
  EXPECT_EQ(sender_.take_unsent(kB).size(), 0U);
  EXPECT_FALSE(sender_.handle_sent(kB, first_to.at(kB))) << "late news";
  EXPECT_TRUE(sender_.handle_sent(kC, first_to.at(kC)).has_value());
}

TEST_F(SenderTest, SendsNothingOverALinkThatIsDown) {
  rails_.handle_link_down(kB);
  ASSERT_TRUE(start(kB, 1, kLong));
  ASSERT_TRUE(start(kC, 2, kShort));
  EXPECT_EQ(send(), (Sent{{2, 0}, {2, 1}}));
}

// Room for part of a block is no room: the others must not wait behind that receiver.
TEST_F(SenderTest, SendsToOthersWhileOneReceiversQueueIsAlmostFull) {
  ASSERT_TRUE(rails_.take(kB, 64_KiB - 512, now_));
  ASSERT_TRUE(start(kB, 1, kShort));
  ASSERT_TRUE(start(kC, 2, kLong));
  EXPECT_EQ(send().size(), 8U);
  rails_.handle_sent({kB, RailId{0}, 64_KiB - 512}, now_);
  EXPECT_EQ(send(), (Sent{{1, 0}, {1, 1}}));
}

TEST_F(SenderTest, TheStripesOfOneObjectKeepPaceAtOneReceiver) {
  ASSERT_TRUE(start(kB, 1, kLong, {.stripe_count = 2, .stripe = 0}));
  ASSERT_TRUE(start(kB, 2, kLong, {.stripe_count = 2, .stripe = 1}));
  const Sent in_turn{{1, 0}, {2, 1}, {1, 2}, {2, 3}, {1, 4}, {2, 5}, {1, 6}, {2, 7}};
  EXPECT_EQ(send(), in_turn);
}

}  // namespace
}  // namespace hoplite
