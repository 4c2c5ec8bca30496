// Orphans and adoptions inside one engine, where a peer may say what it likes.
// SPDX-License-Identifier: Apache-2.0
#include "plan/one_engine_test.h"

namespace hoplite {
namespace {

const NodeId kPeer{2};

class Keeping : public OneEngine {
 protected:
  Keeping() : OneEngine(2, NodeId{1}) {}
};

// The turn must end: our own home knows of another attempt than the one that a peer tells us to
// keep, and each of our claims is answered by a grant of that other one.
TEST_F(Keeping, TakesTheAttemptThatTheHomeHasWhenAPeerSpeaksOfALaterOne) {
  Claim whole;
  whole.object = id_;
  whole.incarnation = Incarnation{1};
  whole.meta = meta();
  whole.pinned = true;
  whole.stripes = {{StripeIndex{0}, StripeState::kComplete, {}, {}, 0}};
  hear(kPeer, whole);
  hear(kPeer, Adopt{id_, Incarnation{0xff000001}, TargetEpoch{0}, meta(), kPeer});
  const auto starts = said<PullStart>();
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_EQ(starts[0].incarnation, Incarnation{1});
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

}  // namespace
}  // namespace hoplite
