// SPDX-License-Identifier: Apache-2.0
// Orphans and adoptions inside one engine whose peers may send untrue messages.
#include "plan/broadcast/broadcast.h"
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

const NodeId kPeer{2};

class Keeping : public OneEngine {
 protected:
  Keeping() : OneEngine(2, NodeId{1}) {}
};

// A peer tells this node to keep an attempt that the home does not know. The home answers each of
// this node's claims by a grant of another attempt.
TEST_F(Keeping, IsAskedByTheHomeAlone) {
  hear(kPeer, Adopt{id_, Incarnation{0xff000001}, TargetEpoch{0}, meta(), kPeer});
  EXPECT_TRUE(said<PullStart>().empty());
  EXPECT_EQ(engine_.stats().objects, 0U);
}

TEST_F(Keeping, AsksAnotherNodeToKeepWhatOnlyADrainingOneHas) {
  ask(PutCommand{id_, Incarnation{1}, floats_meta(100'000), {}});
  ask(WroteCommand{id_, Incarnation{1}, 100'000});
  EXPECT_TRUE(said<Adopt>().empty());
  ask(DrainCommand{});
  EXPECT_EQ(engine_.stats().sole_copies, 1U);
  EXPECT_EQ(said<Adopt>().size(), 1U);
  Claim declines;
  declines.object = id_;
  hear(kPeer, declines);
  EXPECT_TRUE(said<Adopt>().empty()) << "it has said no, and there is nobody else";
  engine_.handle_timeout(now_ + 1_s);
  EXPECT_EQ(said<Adopt>().size(), 1U) << "it may have room by now";
}

// Without a limit each adopted object waits for room with its bytes on the heap, as many as the
// peers put meanwhile.
TEST_F(Keeping, MakesNoCopyOfASmallPutWhereThereIsNoRoom) {
  ask(PutCommand{Nodes(2).object_at(1, 3), Incarnation{1}, floats_meta(800'000), {}});
  const std::uint64_t objects = engine_.stats().objects;
  Claim claim;
  claim.object = id_;
  claim.incarnation = Incarnation{1};
  claim.meta = floats_meta(1'000);
  claim.meta.block_bytes = 8192;
  claim.pinned = true;
  claim.stripes = {{StripeIndex{0}, StripeState::kComplete, {}, {}, 0}};
  engine_.handle_io(MessageIn{kPeer, Message{Epoch{1}, {}, {}, claim}, Bytes(1'000)}, now_);
  engine_.check_invariants();
  EXPECT_EQ(engine_.stats().objects, objects);
  ask(GetCommand{id_, true});
  EXPECT_EQ(said<PushTo>().size(), 1U) << "its putter sends it";
}

class KeepingCopies : public OneEngine {
 protected:
  KeepingCopies() : OneEngine(4, NodeId{1}) { ask(PutCommand{id_, Incarnation{1}, meta_, {}}); }
  RequestId keep(std::uint8_t copies) { return ask(KeepCommand{id_, Incarnation{1}, copies}); }
  void write() { ask(WroteCommand{id_, Incarnation{1}, meta_.size_bytes}); }
  std::vector<NodeId> take_adopters() {
    std::vector<NodeId> asked;
    for (const SendMessage& sent : deeds<SendMessage>()) {
      const auto* adopt = std::get_if<Adopt>(&sent.message.body);
      if (adopt == nullptr) continue;
      EXPECT_EQ(adopt->copies, 3);
      EXPECT_EQ(adopt->owner, kNoNode) << "as with no owner, they are no orphans without it";
      asked.push_back(sent.to);
    }
    return asked;
  }
  void claim(NodeId node, StripeState state) {
    Claim claim;
    claim.object = id_;
    claim.incarnation = Incarnation{1};
    claim.meta = floats_meta(100'000);
    claim.meta.block_bytes = choose_block_bytes(100'000, config(WhenFull::kWait));
    claim.pinned = true;
    claim.wants = state == StripeState::kIdle;
    claim.copies = 3;
    if (state == StripeState::kComplete) claim.stripes = {{StripeIndex{0}, state, {}, {}, 0}};
    hear(node, claim);
  }
  // Returns the answers to this request since the last call of this.
  std::vector<Reply> answers_to(RequestId request) {
    std::vector<Reply> found;
    for (const ReplyToClient& said : deeds<ReplyToClient>()) {
      if (said.request == request) found.push_back(said.reply);
    }
    return found;
  }
  const ObjectMeta meta_ = floats_meta(100'000);
};

TEST_F(KeepingCopies, AreAskedForWhileTheObjectIsWritten) {
  keep(3);
  EXPECT_EQ(take_adopters().size(), 2U);
  keep(3);
  EXPECT_TRUE(take_adopters().empty()) << "both are asked";
}

TEST_F(KeepingCopies, AreAnsweredWhenAllAreWhole) {
  const RequestId request = keep(3);
  const std::vector<NodeId> adopters = take_adopters();
  ASSERT_EQ(adopters.size(), 2U);
  for (const NodeId node : adopters) claim(node, StripeState::kIdle);
  write();
  claim(adopters[0], StripeState::kComplete);
  EXPECT_TRUE(answers_to(request).empty());
  claim(adopters[1], StripeState::kComplete);
  const auto answers = answers_to(request);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Done>(answers[0]));
  const RequestId again = keep(2);
  EXPECT_EQ(answers_to(again).size(), 1U) << "they are there";
}

TEST_F(KeepingCopies, AreMadeAgainForThoseThatDie) {
  keep(3);
  write();
  const std::vector<NodeId> adopters = take_adopters();
  for (const NodeId node : adopters) claim(node, StripeState::kComplete);
  EXPECT_TRUE(take_adopters().empty());
  engine_.handle_io(PeerDead{adopters[0], Incarnation{1}}, now_);
  const std::vector<NodeId> third = take_adopters();
  ASSERT_EQ(third.size(), 1U);
  EXPECT_NE(third[0], adopters[1]);
}

TEST_F(KeepingCopies, EndWithTheObjectAndWithTheirClient) {
  const RequestId deleted = keep(3);
  ask(DeleteCommand{id_, Incarnation{}});
  auto answers = answers_to(deleted);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(error_of(answers[0])->code, Code::kObjectLost);
  answers = answers_to(keep(3));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(error_of(answers[0])->code, Code::kObjectLost) << "it is deleted";
  ask(ClientLostCommand{});
}

TEST_F(KeepingCopies, AreAtLeastOneAndAtMostThree) {
  for (const std::uint8_t copies : std::vector<std::uint8_t>{0, 4, 255}) {
    const auto answers = answers_to(keep(copies));
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(error_of(answers[0])->code, Code::kInvalidArgument) << int{copies};
  }
  EXPECT_TRUE(take_adopters().empty());
}

class KeepingElsewhere : public OneEngine {
 protected:
  KeepingElsewhere() : OneEngine(2, kPeer) {}
  // A small object has come, to be kept here. Its range has to wait, because there is no room for a
  // slab of small objects.
  void adopt_without_room() {
    ask(PutCommand{Nodes(2).object_at(0, 3), Incarnation{1}, floats_meta(600'000), {}});
    ask(PutCommand{Nodes(2).object_at(0, 4), Incarnation{1}, floats_meta(250'000), {}});
    ask(WroteCommand{Nodes(2).object_at(0, 4), Incarnation{1}, 250'000});
    hear(kPeer, Adopt{id_, Incarnation{1}, TargetEpoch{0}, small_, kPeer});
    const Push push{id_, Incarnation{1}, TargetEpoch{0}, small_, {}};
    engine_.handle_io(MessageIn{kPeer, Message{Epoch{1}, {}, {}, push}, Bytes(60'000)}, now_);
    deeds<SendMessage>();
  }
  const ObjectMeta small_ = [] {
    ObjectMeta meta = floats_meta(60'000);
    meta.block_bytes = 8192;
    return meta;
  }();
};

// A home that takes the adoption for declined forgets this node. A later deletion then does not
// reach this node, and its copy stays for ever once it has a range. Seed 101 of `hoplite_sim
// --limits small`.
TEST_F(KeepingElsewhere, ACopyThatWaitsForItsRangeIsStillWanted) {
  adopt_without_room();
  hear(kPeer, Adopt{id_, Incarnation{1}, TargetEpoch{0}, small_, kPeer});
  const auto claims = said<Claim>();
  ASSERT_EQ(claims.size(), 1U);
  EXPECT_TRUE(claims[0].wants);
  EXPECT_TRUE(claims[0].pinned);
  hear(kPeer, Drop{id_, Incarnation{1}, true});
  EXPECT_EQ(engine_.stats().objects, 2U);
}

// The node must not answer Lost here: its claim would want the object, and the home would answer
// Lost again, without end.
TEST_F(KeepingElsewhere, ACopyThatWaitsForItsRangeOutlivesTheOthers) {
  adopt_without_room();
  hear(kPeer, Lost{id_, Code::kObjectLost, "no other node has it"});
  EXPECT_TRUE(said<Claim>().empty());
  ask(DeleteCommand{Nodes(2).object_at(0, 4), Incarnation{1}});
  const auto claims = said<Claim>();
  ASSERT_FALSE(claims.empty());
  EXPECT_EQ(claims.back().object, id_);
  EXPECT_TRUE(claims.back().pinned);
  ASSERT_EQ(claims.back().stripes.size(), 1U);
  EXPECT_EQ(claims.back().stripes[0].state, StripeState::kComplete);
}

// The bytes that it was asked to keep are of an older attempt. A claim that names their owner would
// make the new put an orphan as soon as that owner leaves.
TEST_F(KeepingElsewhere, APutReplacesWhatIsBeingAdopted) {
  hear(kPeer, Adopt{id_, Incarnation{1}, TargetEpoch{0}, meta(), kPeer});
  EXPECT_EQ(said<Claim>().back().owner, kPeer);
  ask(PutCommand{id_, Incarnation{2}, floats_meta(100'000), {}});
  ask(WroteCommand{id_, Incarnation{2}, 100'000});
  const auto claims = said<Claim>();
  ASSERT_FALSE(claims.empty());
  EXPECT_TRUE(claims.back().pinned);
  EXPECT_EQ(claims.back().owner, kNoNode);
}

// The node must not stop: an object that nothing waits for is forgotten, and must not be looked up
// again.
TEST(KeepingWithoutGrace, DeclinesWhatItHasNoRoomFor) {
  EngineConfig config;
  config.node = NodeId{1};
  config.arena_bytes = 1_MiB;
  config.admission_grace = Duration{};
  Engine engine(config, 7);
  const Instant now{1'000'000};
  const auto ask = [&](CommandBody body) {
    engine.handle_command({ClientId{1}, RequestId{1}, std::move(body)}, now);
  };
  ask(SetViewCommand{Epoch{1}, {{NodeId{1}, Incarnation{1}, {}}, {kPeer, Incarnation{1}, {}}}});
  engine.handle_io(LinkUp{kPeer, Incarnation{1}}, now);
  ask(PutCommand{Nodes(2).object_at(1, 3), Incarnation{1}, floats_meta(800'000), {}});
  ObjectMeta meta = floats_meta(400'000);
  meta.block_bytes = 8192;
  const Adopt adopt{Nodes(2).object_at(1, 4), Incarnation{1}, TargetEpoch{0}, meta, kPeer};
  engine.handle_io(MessageIn{kPeer, Message{Epoch{1}, {}, {}, adopt}, {}}, now);
  engine.check_invariants();
}

}  // namespace
}  // namespace hoplite
