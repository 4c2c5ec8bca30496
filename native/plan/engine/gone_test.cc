// SPDX-License-Identifier: Apache-2.0
// A node that is asked for bytes that it no longer has must tell the waiting nodes so.
#include <algorithm>

#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

class Gone : public OneEngine {
 protected:
  Gone() : OneEngine(3, NodeId{2}) {
    put(Incarnation{1});
    ask(WroteCommand{id_, Incarnation{1}, meta().size_bytes, false});
  }
  RequestId put(Incarnation attempt) {
    return ask(PutCommand{id_, attempt, floats_meta(meta().size_bytes), {}});
  }
  bool is_refused(Incarnation attempt) {
    said<PullRefused>();
    hear(NodeId{3}, PullStart{id_, attempt, TargetEpoch{0}, 1, StripeIndex{0}, 0, 4});
    return !said<PullRefused>().empty();
  }
};

// The refusal must be sent: the home declares the object lost only when that receiver has said how
// far it is.
TEST_F(Gone, RefusesWhoWasLeasedTheBytesThatALaterAttemptReplacedAndGaveUp) {
  EXPECT_FALSE(is_refused(Incarnation{1}));
  cancel(put(Incarnation{2}));
  ask(GetCommand{id_, true});
  EXPECT_TRUE(is_refused(Incarnation{1}));
}

TEST_F(Gone, LetsThoseWaitWhoAreLeasedALaterAttemptBeforeWeAre) {
  cancel(put(Incarnation{2}));
  ask(GetCommand{id_, true});
  EXPECT_FALSE(is_refused(Incarnation{3}));
}

TEST_F(Gone, ServesAgainWhatItIsGrantedAgain) {
  cancel(put(Incarnation{2}));
  ask(GetCommand{id_, true});
  hear(NodeId{2}, Grant{id_,
                        Incarnation{1},
                        TargetEpoch{0},
                        meta(),
                        1,
                        {{StripeIndex{0}, NodeId{2}, LeaseId{1}}}});
  EXPECT_FALSE(is_refused(Incarnation{1}));
}

// this node: Delete, Locate -> home, which remembers few deletions │ home: Deleted │ home: the
// Locate is of an object that it has not heard of, and waits. The caller must not wait as well.
TEST_F(Gone, EndsAReduceThatWaitsForASourceThatIsDeletedHere) {
  const std::pair<Incarnation, Incarnation> deleted[] = {{Incarnation{0}, Incarnation{0}},
                                                         {Incarnation{0}, Incarnation{1}},
                                                         {Incarnation{3}, Incarnation{0}},
                                                         {Incarnation{3}, Incarnation{3}}};
  std::uint8_t number = 8;
  for (const auto& [wanted, upto] : deleted) {
    const ObjectId target = Nodes(3).object_at(1, number++);
    const ObjectId source = Nodes(3).object_at(1, number++);
    ask(ReduceCommand{target, ReduceOp::kSum, 1, 1});
    ask(ReduceSourceCommand{target, ReduceSource{0, source, wanted, false}, false});
    said<ReduceWant>();
    ask(DeleteCommand{source, upto});
    const auto wants = said<ReduceWant>();
    ASSERT_EQ(wants.size(), 1U) << wanted.value << " up to " << upto.value;
    ASSERT_EQ(wants[0].confirmed.size(), 1U);
    EXPECT_TRUE(wants[0].confirmed[0].failed);
  }
}

TEST_F(Gone, WaitsForALaterAttemptOfASourceThanTheOneThatIsDeletedHere) {
  const ObjectId target = Nodes(3).object_at(1, 8), source = Nodes(3).object_at(1, 9);
  ask(ReduceCommand{target, ReduceOp::kSum, 1, 1});
  ask(ReduceSourceCommand{target, ReduceSource{0, source, Incarnation{2}, false}, false});
  said<ReduceWant>();
  ask(DeleteCommand{source, Incarnation{1}});
  EXPECT_TRUE(said<ReduceWant>().empty());
}

TEST_F(Gone, EndsAReduceThatWaitsForASourceThatItsHomeSaysIsDeleted) {
  const ObjectId target = Nodes(3).object_at(1, 8), source = Nodes(3).object_at(1, 9);
  ask(ReduceCommand{target, ReduceOp::kSum, 1, 1});
  ask(ReduceSourceCommand{target, ReduceSource{0, source, {}, false}, false});
  said<ReduceWant>();
  hear(NodeId{2}, Drop{source, Incarnation{1}, true});
  const auto wants = said<ReduceWant>();
  ASSERT_EQ(wants.size(), 1U);
  EXPECT_TRUE(wants[0].confirmed.at(0).failed);
}

// caller's node: Delete -> home, which remembers few deletions │ home: Deleted │ caller's node: a
// want with a lost source -> home, which takes it for a new reduce and keeps how it fails.
TEST_F(Gone, EndsACallWhoseTargetIsDeleted) {
  std::uint8_t number = 8;
  for (const bool is_here : {true, false}) {
    const ObjectId target = Nodes(3).object_at(1, number++);
    const ObjectId source = Nodes(3).object_at(1, number++);
    const RequestId reduce = ask(ReduceCommand{target, ReduceOp::kSum, 1, 1});
    ask(ReduceSourceCommand{target, ReduceSource{0, source, {}, false}, false});
    deeds<ReplyToClient>();
    if (is_here) ask(DeleteCommand{target, {}});
    if (!is_here) hear(NodeId{2}, Drop{target, Incarnation{1}, true});
    const auto replies = deeds<ReplyToClient>();
    const auto answer = std::ranges::find(replies, reduce, &ReplyToClient::request);
    ASSERT_NE(answer, replies.end());
    EXPECT_EQ(std::get<Error>(answer->reply).code, Code::kCancelled);
    ask(DeleteCommand{source, {}});
    EXPECT_TRUE(said<ReduceWant>().empty());
  }
}

// A Delete that is lost with its link must be repeated for the newest attempt. Otherwise only the
// first attempt is deleted, and a later one stays.
TEST_F(Gone, DeletesWhateverThereIsUntilItsHomeSaysThatNothingIsLeft) {
  const NodeId home{2};
  const auto link_breaks = [&] {
    engine_.handle_io(LinkDown{home}, now_);
    engine_.handle_io(LinkUp{home, Incarnation{1}}, now_);
  };
  const ObjectId id = Nodes(3).object_at(1, 9);
  ask(DeleteCommand{id, Incarnation{0}});
  said<Delete>();
  link_breaks();
  const auto deletes = said<Delete>();
  ASSERT_EQ(deletes.size(), 1U);
  EXPECT_EQ(deletes[0].upto, Incarnation{0});
  hear(home, Drop{id, Incarnation{70}, true});  // another node's deletion, which may be under way
  link_breaks();
  EXPECT_EQ(said<Delete>().size(), 1U);
  hear(home, Deleted{id, Incarnation{0}});
  link_breaks();
  EXPECT_TRUE(said<Delete>().empty());
}

// A node joins and asks its home, which has joined as well, for an object. This node and the old
// home have an older view: their deletion has ended, and no other node tells the new home of it.
TEST_F(Gone, TellsANewHomeOfADeletionThatTheOldOneHasAnswered) {
  const auto members = [](std::uint64_t count) {
    std::vector<Member> all;
    for (std::uint64_t node = 1; node <= count; ++node) {
      all.push_back({NodeId{node}, Incarnation{1}, {}});
    }
    return all;
  };
  const NodeId home{2}, joined{4};
  Membership before(NodeId{1});
  ASSERT_TRUE(before.handle_view(Epoch{1}, members(3)));
  std::uint8_t number = 1;
  while (before.home_of(Nodes(4).object_at(3, number)) != home) ++number;
  const ObjectId moves = Nodes(4).object_at(3, number), stays = Nodes(4).object_at(1, number);
  for (const ObjectId& id : {moves, stays}) {
    ask(DeleteCommand{id, Incarnation{0}});
    hear(home, Deleted{id, Incarnation{0}});
  }
  said<Delete>();
  ask(SetViewCommand{Epoch{2}, members(4)});
  engine_.handle_io(LinkUp{joined, Incarnation{1}}, now_);
  const auto deletes = said<Delete>();
  ASSERT_EQ(deletes.size(), 1U);
  EXPECT_EQ(deletes[0], (Delete{moves, Incarnation{1}}));
}

TEST_F(Gone, TellsAHomeThatHasRestartedOfADeletionThatItHasAnswered) {
  const NodeId home{2};
  const ObjectId id = Nodes(3).object_at(1, 9);
  ask(DeleteCommand{id, Incarnation{7}});
  hear(home, Deleted{id, Incarnation{7}});
  said<Delete>();
  const Member restarted{home, Incarnation{2}, {}};
  ask(SetViewCommand{Epoch{2}, {{NodeId{1}, Incarnation{1}, {}}, restarted}});
  engine_.handle_io(LinkUp{home, Incarnation{2}}, now_);
  const auto deletes = said<Delete>();
  ASSERT_EQ(deletes.size(), 1U);
  EXPECT_EQ(deletes[0], (Delete{id, Incarnation{7}}));
}

TEST_F(Gone, HoldsDeletionsBackBeyondItsBoundUntilOthersAreAnswered) {
  deeds<ReplyToClient>();
  std::vector<ObjectId> ids;
  for (std::uint8_t number = 0; number <= kDeletesMaxHere; ++number) {
    ids.push_back(Nodes(3).object_at(1, static_cast<std::uint8_t>(10 + number)));
    ask(DeleteCommand{ids.back(), Incarnation{1}});
  }
  EXPECT_EQ(deeds<ReplyToClient>().size(), kDeletesMaxHere);
  hear(NodeId{2}, Deleted{ids[0], Incarnation{1}});
  EXPECT_EQ(said<Delete>().size(), 1U) << "the held one";
  engine_.handle_io(LinkDown{NodeId{2}}, now_);
  engine_.handle_io(LinkUp{NodeId{2}, Incarnation{1}}, now_);
  EXPECT_EQ(said<Delete>().size(), kDeletesMaxHere) << "all but the answered one";
}

// Thousands of deletions wait for one home which is frozen. The memory of the others is freed.
TEST_F(Gone, ASilentHomeHoldsBackNoDeletionOfAnothersObjects) {
  for (std::uint8_t number = 0; number <= kDeletesMaxHere; ++number) {
    ask(DeleteCommand{Nodes(3).object_at(1, static_cast<std::uint8_t>(10 + number)), {}});
  }
  deeds<ReplyToClient>();
  ask(DeleteCommand{Nodes(3).object_at(2, 5), Incarnation{1}});
  EXPECT_EQ(deeds<ReplyToClient>().size(), 1U);
}

TEST_F(Gone, CountsDeletionsThatAreOpenAndThoseThatItRemembers) {
  const std::uint64_t remembered = engine_.stats().deletions_remembered;
  ask(DeleteCommand{id_, Incarnation{1}});
  EXPECT_EQ(engine_.stats().deletions_open, 1U);
  EXPECT_EQ(engine_.stats().deletions_remembered, remembered + 1);
  hear(NodeId{2}, Deleted{id_, Incarnation{1}});
  EXPECT_EQ(engine_.stats().deletions_open, 0U);
}

TEST_F(Gone, AnswersEveryDropByAClaimOfWhatIsLeft) {
  const ObjectId id = Nodes(3).object_at(1, 9);
  said<Claim>();
  hear(NodeId{2}, Drop{id, Incarnation{1}, true});
  const auto claims = said<Claim>();
  ASSERT_EQ(claims.size(), 1U);
  EXPECT_TRUE(claims[0].stripes.empty());
}

}  // namespace
}  // namespace hoplite
