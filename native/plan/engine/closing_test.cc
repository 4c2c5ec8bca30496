// SPDX-License-Identifier: Apache-2.0
// Receives that are closed and may still write (decision 6f), and the leases that open them.
#include <algorithm>

#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

const NodeId kHome{2};
const NodeId kOther{3};

class ClosingReceives : public OneEngine {
 protected:
  ClosingReceives() : OneEngine(3, kHome) { closes_at_once_ = false; }

  // The actions that matter here, since the last call.
  struct Deeds {
    std::vector<OpenReceive> opened;
    std::vector<CloseReceive> closed;
    std::vector<Fold> folded;
    std::size_t fetched = 0;   // answers to gets
    std::size_t reserved = 0;  // and to puts
    std::size_t started = 0;   // pulls
  };
  Deeds take() {
    Deeds deeds;
    while (const auto action = engine_.poll_action()) {
      if (const auto* open = std::get_if<OpenReceive>(&*action)) deeds.opened.push_back(*open);
      if (const auto* close = std::get_if<CloseReceive>(&*action)) deeds.closed.push_back(*close);
      if (const auto* fold = std::get_if<Fold>(&*action)) deeds.folded.push_back(*fold);
      const auto* reply = std::get_if<ReplyToClient>(&*action);
      if (reply != nullptr && std::holds_alternative<Fetched>(reply->reply)) ++deeds.fetched;
      if (reply != nullptr && std::holds_alternative<Reserved>(reply->reply)) ++deeds.reserved;
      const auto* sent = std::get_if<SendMessage>(&*action);
      if (sent != nullptr && std::holds_alternative<PullStart>(sent->message.body)) ++deeds.started;
    }
    return deeds;
  }
  Grant grant(const std::vector<StripeLease>& leases, std::uint16_t stripes,
              std::uint32_t target_epoch = 0) const {
    return {id_, Incarnation{1}, TargetEpoch{target_epoch}, meta(), stripes, leases};
  }
  // Returns the receive of all of the object, from its home.
  OpenReceive receive() {
    ask(GetCommand{id_, true});
    hear(kHome, grant({{StripeIndex{0}, kHome, LeaseId{1}}}, 1));
    const auto opened = take().opened;
    EXPECT_EQ(opened.size(), 1U);
    return opened.empty() ? OpenReceive{} : opened[0];
  }
  // Returns the end of that receive, whose blocks have all come. The client has mapped the object.
  CloseReceive receive_all() {
    const OpenReceive open = receive();
    for (std::uint32_t block = 0; block < meta().block_count(); ++block) {
      engine_.handle_io(BlockLanded{kHome, open.transfer, BlockIndex{block}}, now_);
    }
    const Deeds deeds = take();
    EXPECT_EQ(deeds.fetched, 1U) << "answered before the receive has ended";
    EXPECT_EQ(deeds.closed.size(), 1U);
    return deeds.closed.empty() ? CloseReceive{} : deeds.closed[0];
  }
  // This node folds stripe 1 of 2 of the object, of one source.
  ReduceOwn plan(std::uint32_t epoch, const ObjectId& source) const {
    ReduceOwn own;
    own.target = id_;
    own.target_epoch = TargetEpoch{epoch};
    own.meta = meta();
    own.stripe_count = 2;
    own.owned = {StripeIndex{1}};
    own.source_count = own.count = 1;
    own.members = {{0, source, Incarnation{1}, false, kNoNode, false}};
    return own;
  }
  [[nodiscard]] std::uint64_t arena_bytes() const { return engine_.stats().arena_bytes_used; }

  const ObjectId source_ = Nodes(3).object_at(2, 9);
};

TEST_F(ClosingReceives, OpensTheNextReceiveOfAStripeWhenTheFirstWritesNoMore) {
  const OpenReceive first = receive();
  hear(kHome, grant({{StripeIndex{0}, kOther, LeaseId{2}}}, 1));
  const Deeds now = take();
  ASSERT_EQ(now.closed.size(), 1U);
  EXPECT_EQ(now.closed[0].transfer, first.transfer);
  EXPECT_TRUE(now.opened.empty());
  EXPECT_EQ(now.started, 0U);
  end_receive(now.closed[0]);
  const Deeds then = take();
  ASSERT_EQ(then.opened.size(), 1U);
  EXPECT_EQ(then.opened[0].from, kOther);
  EXPECT_EQ(then.opened[0].base, first.base);
  EXPECT_EQ(then.started, 1U);
}

TEST_F(ClosingReceives, ClosesNoReceiveThatIsNotOpenYet) {
  receive();
  hear(kHome, grant({{StripeIndex{0}, kOther, LeaseId{2}}}, 1));
  const Deeds now = take();
  hear(kHome, grant({{StripeIndex{0}, kHome, LeaseId{3}}}, 1));
  EXPECT_TRUE(take().closed.empty());
  end_receive(now.closed.at(0));
  const Deeds then = take();
  ASSERT_EQ(then.opened.size(), 1U);
  EXPECT_EQ(then.opened[0].from, kHome);
}

TEST_F(ClosingReceives, ARangeIsFreeWhenItsReceiveWritesNoMore) {
  receive();
  const std::uint64_t before = arena_bytes();
  hear(kHome, Drop{id_, Incarnation{1}, true});
  const Deeds now = take();
  ASSERT_EQ(now.closed.size(), 1U);
  EXPECT_EQ(arena_bytes(), before);
  end_receive(now.closed[0]);
  EXPECT_EQ(arena_bytes(), 0U);
}

TEST_F(ClosingReceives, ARangeIsKeptAfterTheLastPinOfADeletedObject) {
  const CloseReceive closed = receive_all();
  const std::uint64_t before = arena_bytes();
  hear(kHome, Drop{id_, Incarnation{1}, true});
  ask(ReleaseCommand{id_, Incarnation{1}});
  EXPECT_EQ(arena_bytes(), before);
  end_receive(closed);
  EXPECT_EQ(arena_bytes(), 0U);
}

TEST_F(ClosingReceives, APutWaitsForTheRangeOfACopyThatWasEvicted) {
  const CloseReceive closed = receive_all();
  ask(ReleaseCommand{id_, Incarnation{1}});
  ask(PutCommand{source_, Incarnation{1}, floats_meta(900'000), {}});
  EXPECT_EQ(engine_.stats().evictions, 1U);
  EXPECT_EQ(take().reserved, 0U);
  end_receive(closed);
  EXPECT_EQ(take().reserved, 1U);
}

TEST_F(ClosingReceives, ALinkThatIsDownGivesBackNoReceive) {
  receive();
  const std::uint64_t before = arena_bytes();
  engine_.handle_io(LinkDown{kHome}, now_);
  engine_.handle_io(LinkUp{kHome, Incarnation{1}}, now_);
  hear(kHome, grant({{StripeIndex{0}, kHome, LeaseId{2}}}, 1));
  const Deeds now = take();
  ASSERT_EQ(now.closed.size(), 1U);
  EXPECT_TRUE(now.opened.empty());
  end_receive(now.closed[0]);
  EXPECT_EQ(take().opened.size(), 1U);
  EXPECT_EQ(arena_bytes(), before);
}

// home: this node receives stripe 1 from kOther │ kOther dies │ home: this node folds stripe 1, in
// the same place.
TEST_F(ClosingReceives, FoldsNothingIntoAStripeThatAClosedReceiveMayStillWrite) {
  ask(PutCommand{source_, Incarnation{1}, floats_meta(meta().size_bytes), {}});
  ask(WroteCommand{source_, Incarnation{1}, meta().size_bytes, false});
  ask(GetCommand{id_, true});
  hear(kHome, grant({{StripeIndex{1}, kOther, LeaseId{1}}}, 2, 1));
  ASSERT_EQ(take().opened.size(), 1U);
  hear(kHome, plan(2, source_));
  const Deeds now = take();
  ASSERT_EQ(now.closed.size(), 1U);
  EXPECT_TRUE(now.folded.empty());
  end_receive(now.closed[0]);
  EXPECT_EQ(take().folded.size(), meta().block_count() / 2);
}

TEST_F(ClosingReceives, ASlotIsFilledAgainWhenItsReceiveWritesNoMore) {
  hear(kHome, plan(1, source_));
  Located located;
  located.object = source_;
  located.incarnation = Incarnation{1};
  located.meta = meta();
  located.sender = kOther;
  hear(kOther, located);
  ASSERT_EQ(take().opened.size(), 1U);
  hear(kHome, plan(2, source_));  // a member has gone: all pulls begin anew
  const Deeds now = take();
  ASSERT_EQ(now.closed.size(), 1U);
  EXPECT_TRUE(now.opened.empty());
  const std::uint64_t before = arena_bytes();
  end_receive(now.closed[0]);
  ASSERT_EQ(take().opened.size(), 1U);
  hear(kHome, Drop{id_, Incarnation{1}, true});
  const Deeds then = take();
  ASSERT_EQ(then.closed.size(), 1U);
  EXPECT_LT(arena_bytes(), before) << "the result has gone";
  EXPECT_GT(arena_bytes(), 0U) << "the slots are kept";
  end_receive(then.closed[0]);
  EXPECT_EQ(arena_bytes(), 0U);
}

TEST_F(ClosingReceives, AGrantOpensAReceiveForEachStripeThatItLeases) {
  ask(GetCommand{id_, true});
  hear(kHome, grant({{StripeIndex{2}, kOther, LeaseId{7}},
                     {StripeIndex{0}, kHome, LeaseId{5}},
                     {StripeIndex{1}, kOther, LeaseId{6}}},
                    4));
  Deeds deeds = take();
  ASSERT_EQ(deeds.opened.size(), 3U);
  EXPECT_EQ(deeds.started, 3U);
  std::ranges::sort(deeds.opened, {}, &OpenReceive::stripe);
  for (std::uint16_t i = 0; i < 3; ++i) {
    EXPECT_EQ(deeds.opened[i].stripe, StripeIndex{i});
    EXPECT_EQ(deeds.opened[i].from, i == 0 ? kHome : kOther);
    EXPECT_EQ(deeds.opened[i].stripe_count, 4);
  }
  // The next grant has one lease that is older than its stripe's own.
  hear(kHome,
       grant({{StripeIndex{0}, kOther, LeaseId{4}}, {StripeIndex{3}, kHome, LeaseId{8}}}, 4));
  deeds = take();
  EXPECT_TRUE(deeds.closed.empty());
  ASSERT_EQ(deeds.opened.size(), 1U);
  EXPECT_EQ(deeds.opened[0].stripe, StripeIndex{3});
}

}  // namespace
}  // namespace hoplite
