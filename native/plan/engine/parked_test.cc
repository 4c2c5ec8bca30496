// SPDX-License-Identifier: Apache-2.0
// A member whose view comes late. Its peers' messages of the newer view do not fit into its memory.
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

constexpr NodeId kPeer{2};

class ParkedEngine : public OneEngine {
 protected:
  ParkedEngine() : OneEngine(2, NodeId{1}) {}

  static constexpr std::uint8_t kObjects = kParkedMax + 1;
  static constexpr ResyncDone kAnswered{.draining = false, .is_asked = true};

  static ObjectId object(std::uint8_t which) { return Nodes(2).object_at(0, which); }

  // The peer sends, in a view, a claim for each object and then ResyncDone.
  void hear_all(Epoch epoch, const ResyncDone& end = {}) {
    for (std::uint8_t i = 0; i < kObjects; ++i) hear_in(epoch, claim_of(object(i)));
    hear_in(epoch, end);
  }
  static Claim claim_of(const ObjectId& object) {
    Claim claim;
    claim.object = object;
    claim.incarnation = Incarnation{1};
    claim.meta = meta();
    claim.pinned = claim.committed = true;
    claim.stripes = {{StripeIndex{0}, StripeState::kComplete, {}, {}, 0}};
    return claim;
  }
  void hear_in(Epoch epoch, PeerMessage body) {
    engine_.handle_io(MessageIn{kPeer, Message{epoch, {}, {}, std::move(body)}, {}}, now_);
  }
  void view(Epoch epoch) {
    ask(SetViewCommand{epoch, {{NodeId{1}, Incarnation{1}, {}}, {kPeer, Incarnation{1}, {}}}});
  }
};

TEST_F(ParkedEngine, LosesNothingThatAPeerSaidInAViewThatCameLate) {
  hear_all(Epoch{1});
  hear_all(Epoch{2});
  said<ResyncWanted>();
  view(Epoch{2});
  EXPECT_EQ(said<ResyncWanted>().size(), 1u);
  const ObjectId first = object(0);
  hear_in(Epoch{2}, Locate{first, Incarnation{0}, kNoNode, true});
  EXPECT_TRUE(said<Lost>().empty());
  hear_all(Epoch{2}, kAnswered);
  hear_in(Epoch{2}, Locate{first, Incarnation{0}, kNoNode, true});
  EXPECT_EQ(said<Located>().size(), 1u);
  engine_.check_invariants();
}

// peer: claims of view 2 │ home, in view 1: too many, dropped │ home: view 2, ResyncWanted │
// peer's ResyncDone, which it sent before it was asked. That word must not end the recovery.
TEST_F(ParkedEngine, DoesNotTakeTheEndOfWhatItDroppedForTheEndOfTheAnswer) {
  hear_all(Epoch{1});
  for (std::uint8_t i = 0; i < kObjects; ++i) hear_in(Epoch{2}, claim_of(object(i)));
  view(Epoch{2});
  EXPECT_EQ(said<ResyncWanted>().size(), 1u);
  hear_in(Epoch{2}, ResyncDone{});
  deeds<SendMessage>();
  ask(GetCommand{object(0), true});
  EXPECT_EQ(deeds<OpenReceive>().size(), 1u) << "the peer has it, and will say so again";
  hear_all(Epoch{2}, kAnswered);
  engine_.check_invariants();
}

TEST_F(ParkedEngine, CountsWhatItKeepsForANewerView) {
  hear_in(Epoch{2}, claim_of(object(0)));
  EXPECT_EQ(engine_.stats().parked_messages, 1U);
  EXPECT_GT(engine_.stats().parked_bytes, sizeof(Claim));
  view(Epoch{2});
  EXPECT_EQ(engine_.stats().parked_messages + engine_.stats().parked_bytes, 0U);
}

TEST_F(ParkedEngine, TakesWhatAPeerSaysOverANewLinkForAllThatItHas) {
  for (std::uint8_t i = 0; i < kObjects; ++i) hear_in(Epoch{2}, claim_of(object(i)));
  view(Epoch{2});
  engine_.handle_io(LinkDown{kPeer}, now_);
  engine_.handle_io(LinkUp{kPeer, Incarnation{1}}, now_);
  hear_in(Epoch{2}, ResyncDone{});
  hear_in(Epoch{2}, Locate{object(0), Incarnation{0}, kNoNode, false});
  EXPECT_EQ(said<Located>().size(), 1u) << "nothing is there, and the shard knows it";
}

// The home must not grant copies that a dead node has claimed.
TEST_F(ParkedEngine, ForgetsWhatAPeerSaidBeforeItDied) {
  hear_in(Epoch{2}, claim_of(object(0)));
  engine_.handle_io(PeerDead{kPeer, Incarnation{1}, true}, now_);
  view(Epoch{2});
  ask(GetCommand{object(0), true});
  EXPECT_TRUE(deeds<OpenReceive>().empty());
}

TEST_F(ParkedEngine, AsksAgainAPeerThatHasDroppedTheQuestion) {
  for (std::uint8_t i = 0; i < kObjects; ++i) hear_in(Epoch{2}, claim_of(object(i)));
  view(Epoch{2});
  EXPECT_EQ(said<ResyncWanted>().size(), 1u);
  hear_in(Epoch{2}, ResyncWanted{});
  EXPECT_EQ(said<ResyncWanted>().size(), 1u);
  hear_all(Epoch{2}, kAnswered);
  hear_in(Epoch{2}, ResyncWanted{});
  EXPECT_TRUE(said<ResyncWanted>().empty());
}

TEST_F(ParkedEngine, SaysEverythingAgainToAPeerThatHasDroppedIt) {
  ask(PutCommand{id_, Incarnation{1}, meta(), {}});
  said<ResyncDone>();
  hear(kPeer, ResyncWanted{});
  const auto ends = said<ResyncDone>();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(ends[0].is_asked);
}

}  // namespace
}  // namespace hoplite
