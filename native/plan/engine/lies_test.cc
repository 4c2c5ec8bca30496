// SPDX-License-Identifier: Apache-2.0
// Messages of a member, and commands of a client, that are well-formed and untrue: they stop no
// node, and nothing is written outside of a range (docs/internals/attacks.md).
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

const NodeId kHome{2};
const NodeId kLiar{3};

class Lies : public OneEngine {
 protected:
  Lies() : OneEngine(3, kHome) {}

  Grant grant(std::uint32_t lease, const ObjectMeta& of) const {
    return {id_, Incarnation{1}, {}, of, 1, {{StripeIndex{0}, kHome, LeaseId{lease}}}};
  }
  ReduceOwn plan() const {
    ReduceOwn own;
    own.target = id_;
    own.target_epoch = TargetEpoch{1};
    own.meta = meta();
    own.stripe_count = 2;
    own.owned = {StripeIndex{1}};
    own.source_count = own.count = 1;
    own.members = {{0, source_, Incarnation{1}, false, kNoNode, false}};
    return own;
  }
  // A client here reduces one source, which kHome has, under a target whose home is here.
  void plan_here(bool is_branch) {
    const ObjectId target = Nodes(3).object_at(0, 7), source = Nodes(3).object_at(0, 8);
    hear(kHome, claim_of(source, meta()));
    ReduceCommand reduce;
    reduce.target = target;
    reduce.source_count = reduce.count = 1;
    ask(reduce);
    ask(ReduceSourceCommand{target, {0, source, Incarnation{1}, false, kHome, is_branch}, true});
  }
  static Claim claim_of(const ObjectId& object, const ObjectMeta& of) {  // of all its bytes
    Claim has;
    has.object = object;
    has.incarnation = Incarnation{1};
    has.meta = of;
    has.pinned = true;
    has.stripes = {{StripeIndex{0}, StripeState::kComplete, {}, {}, 0}};
    return has;
  }
  static ReduceReport loss(const ReduceOwn& own) {  // of its first member
    ReduceReport lost;
    lost.target = own.target;
    lost.target_epoch = own.target_epoch;
    lost.lost = {0};
    return lost;
  }

  const ObjectId source_ = Nodes(3).object_at(2, 9);
};

// Blocks of the larger object must not land behind the range of the smaller one.
TEST_F(Lies, AGrantChangesNoShapeOfWhatIsHere) {
  ask(GetCommand{id_, true});
  hear(kHome, grant(1, meta()));
  ASSERT_EQ(deeds<OpenReceive>().size(), 1U);
  ObjectMeta larger = floats_meta(900'000);
  larger.block_bytes = meta().block_bytes;
  hear(kHome, grant(2, larger));
  EXPECT_TRUE(deeds<OpenReceive>().empty());
}

// Otherwise the range gets the shape that a message without an attempt has named.
TEST_F(Lies, BytesWithoutAnAttemptAreNotAdopted) {
  hear(kHome, Adopt{id_, Incarnation{0}, TargetEpoch{1}, meta(), kLiar});
  EXPECT_EQ(engine_.stats().objects, 0U);
}

// Otherwise its copy stays here, because its home doesn't know of it.
TEST_F(Lies, AClaimIsHeardByTheHomeAlone) {
  ObjectMeta empty;
  empty.block_bytes = 1;
  hear(kLiar, claim_of(id_, empty));
  EXPECT_EQ(engine_.stats().objects, 0U);
  EXPECT_EQ(engine_.stats().directory_entries, 0U);
}

// No home takes a claim of such a copy, so no deletion would reach it.
TEST_F(Lies, BytesWithoutAShapeAreNotCopied) {
  const ObjectId at_home = Nodes(3).object_at(0, 7);
  hear(kLiar, claim_of(at_home, {}));
  EXPECT_EQ(engine_.stats().objects, 0U);
}

// Its home is here and has to know of this copy, so that a deletion reaches it.
TEST_F(Lies, WhatIsPushedInPlaceOfAResultIsDeletedWithIt) {
  const ObjectId target = Nodes(3).object_at(0, 7), source = Nodes(3).object_at(0, 8);
  ObjectMeta small = floats_meta(16);
  small.block_bytes = 64;
  hear(kHome, claim_of(source, small));
  ReduceCommand reduce;
  reduce.target = target;
  reduce.source_count = reduce.count = 2;
  ask(reduce);
  ask(ReduceSourceCommand{target, {0, source, Incarnation{1}, false, kHome, false}, true});
  ask(GetCommand{target, true});
  Push push;
  push.object = target;
  push.incarnation = Incarnation{3};
  push.meta.block_bytes = 1;
  hear(kLiar, push);
  hear(kHome, Delete{target, {}});
  EXPECT_EQ(engine_.stats().objects, 0U);
}

TEST_F(Lies, AGrantIsTheHomesAlone) {
  ask(GetCommand{id_, true});
  hear(kLiar, grant(1, meta()));
  EXPECT_TRUE(deeds<OpenReceive>().empty());
}

// Otherwise the stripe that is folded here lies outside of the stripes.
TEST_F(Lies, AGrantCutsNothingThatIsFoldedHere) {
  ask(PutCommand{source_, Incarnation{1}, floats_meta(meta().size_bytes), {}});
  ask(GetCommand{id_, true});
  hear(kHome, plan());
  Grant other = grant(1, meta());
  other.target_epoch = TargetEpoch{1};
  deeds<OpenReceive>();
  hear(kHome, other);
  EXPECT_TRUE(deeds<OpenReceive>().empty()) << "stripe 0 of 1 lies where both of 2 are folded";
  ask(WroteCommand{source_, Incarnation{1}, meta().size_bytes, false});
  EXPECT_EQ(deeds<Fold>().size(), meta().block_count() / 2);
}

// Blocks of the result must not be folded behind the put's range, or into stripes that the put does
// not have.
TEST_F(Lies, APutUnderTheNameOfAResultEndsItsFold) {
  ReduceOwn own = plan();
  own.sealed = true;
  hear(kHome, own);
  PutCommand put{id_, Incarnation{2}, floats_meta(70'000), {}};
  ask(put);
  deeds<Fold>();
  hear(kLiar, Located{source_, Incarnation{1}, meta(), kLiar});
  for (const OpenReceive& opened : deeds<OpenReceive>()) {
    for (std::uint32_t block = 1; block < meta().block_count(); block += 2) {
      engine_.handle_io(BlockLanded{kLiar, opened.transfer, BlockIndex{block}}, now_);
      engine_.check_invariants();
    }
  }
  EXPECT_TRUE(deeds<Fold>().empty());
}

// The node must not stop when a peer names a branch that does not exist.
TEST_F(Lies, ASourceIsNoBranchBecauseAClientSaysSo) {
  plan_here(true);
  const auto owns = said<ReduceOwn>();
  ASSERT_FALSE(owns.empty());
  ASSERT_EQ(owns[0].members.size(), 1U);
  EXPECT_FALSE(owns[0].members[0].is_branch);
  hear(kHome, loss(owns[0]));
}

TEST_F(Lies, OnlyAnOwnerLosesAMember) {
  plan_here(false);
  const auto owns = said<ReduceOwn>();
  ASSERT_EQ(owns.size(), 1U) << "the source's node does it alone";
  hear(kLiar, loss(owns[0]));
  EXPECT_TRUE(said<Locate>().empty());
  EXPECT_TRUE(deeds<ReplyToClient>().empty());
}

// The node must not repeat all of its objects for each of many small messages in one turn.
TEST_F(Lies, EverythingIsSaidAgainAFewTimesHoweverOftenAMemberAsks) {
  const ObjectId id = Nodes(3).object_at(2);
  ask(PutCommand{id, Incarnation{1}, floats_meta(100'000), {}});
  ask(WroteCommand{id, Incarnation{1}, 100'000, false});
  deeds<SendMessage>();
  for (std::size_t i = 0; i < 10 * kResyncsMax; ++i) hear(kLiar, ResyncWanted{});
  EXPECT_EQ(said<Claim>().size(), kResyncsMax);
}

// The home must not look at all objects of the shard for each message.
TEST_F(Lies, AMemberThatHasBegunToDrainDoesNotTakeItBack) {
  const ObjectId id = Nodes(3).object_at(0);
  hear(kLiar, ResyncDone{true});
  hear(kLiar, ResyncDone{false});
  Claim has;
  has.object = id;
  has.incarnation = Incarnation{1};
  has.meta = meta();
  has.pinned = true;
  has.stripes = {{StripeIndex{0}, StripeState::kComplete, {}, {}, 0}};
  hear(kLiar, has);
  EXPECT_EQ(said<PullStart>().size() + said<Adopt>().size(), 1U) << "another one is to keep it";
}

// The node must not stop: no frame of a message carries a large object.
TEST_F(Lies, APushOfOtherBytesIsNotPassedOn) {
  ask(PutCommand{id_, Incarnation{1}, floats_meta(100'000), {}});
  ask(WroteCommand{id_, Incarnation{1}, 100'000, false});
  deeds<SendMessage>();
  ObjectMeta small = floats_meta(64);
  small.block_bytes = 64;
  const Push push{id_, Incarnation{1}, {}, small, {kHome}};
  engine_.handle_io(MessageIn{kLiar, Message{Epoch{1}, {}, {}, push}, Bytes(64)}, now_);
  for (const SendMessage& sent : deeds<SendMessage>()) EXPECT_FALSE(sent.payload);
}

// The put must end when its range becomes void, and get one answer only.
TEST_F(Lies, AReduceThatHasTheNameOfAPutEndsIt) {
  ask(PutCommand{id_, Incarnation{1}, floats_meta(100'000), {}});
  EXPECT_EQ(deeds<ReplyToClient>().size(), 1U) << "it has a range";
  ReduceState state;
  state.target = id_;
  state.target_epoch = TargetEpoch{2};
  hear(kHome, state);
  hear(kHome, Drop{id_, Incarnation{1}, false});
  EXPECT_TRUE(deeds<ReplyToClient>().empty()) << "its client hears of it when it is done";
  const RequestId last = ask(WroteCommand{id_, Incarnation{1}, 100'000, false});
  const auto replies = deeds<ReplyToClient>();
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].request, last);
  EXPECT_EQ(engine_.stats().arena_bytes_used, 0U);
}

TEST_F(Lies, ANodeThatSendsItNothingFailsNoGet) {
  ask(GetCommand{id_, true});
  hear(kLiar, Lost{id_, Code::kStoreFull, "full"});
  hear(kHome, grant(1, meta()));
  hear(kLiar, Lost{id_, Code::kStoreFull, "full"});
  EXPECT_TRUE(deeds<ReplyToClient>().empty());
}

// Otherwise the list of one reduce grows with each report of its caller.
TEST_F(Lies, TheLostSourcesOfAFailedReduceAreThoseOfTheLastReport) {
  ReduceWant want;
  want.target = Nodes(3).object_at(0, 5);
  want.source_count = want.count = 3;
  hear(kLiar, want);
  ReduceReport report;
  report.target = want.target;
  report.caller = kLiar;
  report.code = Code::kReduceFailed;
  for (const auto& lost : {std::vector<std::uint32_t>{0}, std::vector<std::uint32_t>{1, 2}}) {
    report.lost = lost;
    hear(kLiar, report);
    const auto states = said<ReduceState>();
    ASSERT_FALSE(states.empty());
    EXPECT_EQ(states.back().phase, ReducePhase::kFailed);
    EXPECT_EQ(states.back().lost, lost);
  }
}

// Otherwise the ReduceState of that reduce is longer than a frame may be.
TEST_F(Lies, ACallerNamesNoMoreLostSourcesThanAReduceMayHave) {
  ReduceWant want;
  want.target = Nodes(3).object_at(0, 5);
  want.source_count = want.count = kReduceSourcesMax;
  ReduceReport report;
  report.target = want.target;
  report.caller = kLiar;
  report.code = Code::kReduceFailed;
  for (std::uint32_t i = 0; i < kReduceSourcesMax; ++i) {
    report.lost.push_back(kReduceSourcesMax + i);
    want.confirmed.push_back({i, {}, {}, true});
  }
  hear(kLiar, report);
  hear(kLiar, want);
  report.code = Code::kOk;
  report.committed = {0};
  hear(kLiar, report);
  const auto states = said<ReduceState>();
  ASSERT_FALSE(states.empty());
  for (const ReduceState& state : states) EXPECT_LE(state.lost.size(), kReduceSourcesMax);
}

TEST_F(Lies, AHomeThatNamesLostSourcesTwiceAndOutOfOrderIsPutRight) {
  ReduceCommand reduce;
  reduce.target = id_;
  reduce.source_count = reduce.count = 3;
  ask(reduce);
  ReduceState failed;
  failed.target = id_;
  failed.phase = ReducePhase::kFailed;
  failed.code = Code::kReduceFailed;
  failed.caller = NodeId{1};
  failed.lost = {2, 0, 2, 9};
  hear(kHome, failed);
  const auto replies = deeds<ReplyToClient>();
  ASSERT_EQ(replies.size(), 1U);
  const auto* answer = std::get_if<ReduceFailed>(&replies[0].reply);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->lost, (std::vector<std::uint32_t>{0, 2}));
}

// A later attempt comes under the name of a reduce that fails.
class LiesAboutALaterAttempt : public Lies {
 protected:
  LiesAboutALaterAttempt() {
    ask(GetCommand{id_, true});
    Grant later = grant(1, meta());
    later.incarnation = Incarnation{2};
    hear(kHome, later);
    failed_.target = id_;
    failed_.target_epoch = TargetEpoch{1};
    failed_.phase = ReducePhase::kFailed;
    failed_.code = Code::kCancelled;
  }
  ReduceState failed_;
};

// Otherwise the orphan stays when its memory is needed.
TEST_F(LiesAboutALaterAttempt, AnOrphanThatNoGetWantsAnyMoreIsEvictable) {
  hear(kHome, Standing{id_, Incarnation{2}, true, false});
  EXPECT_GT(engine_.stats().arena_bytes_pinned, 0U);
  hear(kHome, failed_);
  EXPECT_EQ(engine_.stats().waiters, 0U);
  EXPECT_EQ(engine_.stats().arena_bytes_pinned, 0U);
}

// Otherwise the part stays for ever: it is not evictable, and no pull brings the rest.
TEST_F(LiesAboutALaterAttempt, APartThatNoGetWantsAnyMoreGoes) {
  ASSERT_EQ(said<PullStart>().size(), 1U);
  hear(kHome, PullRefused{}, transfer_);
  hear(kHome, failed_);
  EXPECT_EQ(deeds<CloseReceive>().size(), 1U);
  EXPECT_EQ(engine_.stats().objects, 0U);
  EXPECT_EQ(engine_.stats().arena_bytes_used, 0U);
}

class LiesToASpillingNode : public OneEngine {
 protected:
  LiesToASpillingNode() : OneEngine(3, kHome, WhenFull::kSpill) {}
};

// A replaced pull must release its object. Otherwise the object counts as one that is being sent,
// and is never spilled.
TEST_F(LiesToASpillingNode, APullMayTakeThePlaceOfAnother) {
  for (const ObjectId& id : {id_, Nodes(3).object_at(2, 9)}) {
    ask(PutCommand{id, Incarnation{1}, floats_meta(100'000), {}});
    ask(WroteCommand{id, Incarnation{1}, 100'000, false});
    hear(kLiar, PullStart{id, Incarnation{1}, {}, 1, StripeIndex{0}, 0, 0}, TransferId{5});
  }
}

}  // namespace
}  // namespace hoplite
