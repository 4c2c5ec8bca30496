// A member whose view comes late: what its peers say meanwhile does not fit into its memory.
// SPDX-License-Identifier: Apache-2.0
#include "plan/one_engine_test.h"

namespace hoplite {
namespace {

constexpr NodeId kPeer{2};

class ParkedEngine : public OneEngine {
 protected:
  ParkedEngine() : OneEngine(2, NodeId{1}) {}

  static constexpr std::uint8_t kObjects = kParkedMax + 1;

  static ObjectId object(std::uint8_t which) { return Nodes(2).object_at(0, which); }

  // What the peer says in a view: that it has each object, and that this is all.
  void hear_all(Epoch epoch) {
    for (std::uint8_t i = 0; i < kObjects; ++i) hear_in(epoch, claim_of(object(i)));
    hear_in(epoch, ResyncDone{});
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
  hear_all(Epoch{2});  // the peer's answer
  hear_in(Epoch{2}, Locate{first, Incarnation{0}, kNoNode, true});
  EXPECT_EQ(said<Located>().size(), 1u);
  engine_.check_invariants();
}

// The home went on to grant what a dead node had said that it has.
TEST_F(ParkedEngine, ForgetsWhatAPeerSaidBeforeItDied) {
  hear_in(Epoch{2}, claim_of(object(0)));
  engine_.handle_io(PeerDead{kPeer, Incarnation{1}, true}, now_);
  view(Epoch{2});
  ask(GetCommand{object(0), true});
  EXPECT_TRUE(deeds<OpenReceive>().empty());
}

TEST_F(ParkedEngine, SaysEverythingAgainToAPeerThatHasDroppedIt) {
  ask(PutCommand{id_, Incarnation{1}, meta(), {}});
  said<ResyncDone>();
  hear(kPeer, ResyncWanted{});
  EXPECT_EQ(said<ResyncDone>().size(), 1u);
}

}  // namespace
}  // namespace hoplite
