// SPDX-License-Identifier: Apache-2.0
// Each fence is broken by hand, and the breach is named.
#include "sim/check/fences.h"

#include <gtest/gtest.h>

#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

const ObjectId kA = object_named(1);
constexpr NodeId kSender{2}, kOther{3};

class FencesTest : public testing::Test {
 protected:
  FencesTest() { fences_.note_view(Epoch{4}); }

  Fences::Breach check_message(PeerMessage body, Epoch view = Epoch{4}, bool is_taken = true) {
    return fences_.check_message({view, {}, {}, std::move(body)}, is_taken);
  }
  static Grant grant(std::uint32_t lease, NodeId sender = kSender) {
    Grant made;
    made.object = kA;
    made.incarnation = Incarnation{1};
    made.leases = {{StripeIndex{0}, sender, LeaseId{lease}}};
    return made;
  }
  Fences::Breach check_open(std::uint64_t transfer, NodeId from = kSender) {
    OpenReceive receive;
    receive.transfer = TransferId{transfer};
    receive.from = from;
    receive.object = kA;
    receive.incarnation = Incarnation{1};
    return fences_.check_open(receive, do_peers_lie_);
  }
  Fences::Breach check_block(std::uint64_t transfer, Incarnation attempt = Incarnation{1},
                             TargetEpoch epoch = {}) {
    BlockHeader block;
    block.transfer = TransferId{transfer};
    block.object = kA;
    block.incarnation = attempt;
    block.target_epoch = epoch;
    return fences_.check_block(kSender, block);
  }
  static void expect(const Fences::Breach& breach, const std::string& said) {
    ASSERT_TRUE(breach.has_value());
    EXPECT_NE(breach->find(said), std::string::npos) << *breach;
  }

  Fences fences_;
  bool do_peers_lie_ = false;
};

TEST_F(FencesTest, WhatIsOfThisViewIsTakenIn) {
  EXPECT_EQ(check_message(ResyncDone{}), std::nullopt);
  EXPECT_EQ(check_message(grant(7)), std::nullopt);
  EXPECT_EQ(check_open(1), std::nullopt);
  EXPECT_EQ(check_block(1), std::nullopt);
}

TEST_F(FencesTest, AMessageOfAnEarlierViewMustNotBeTakenIn) {
  EXPECT_EQ(check_message(ResyncDone{}, Epoch{3}, false), std::nullopt);
  expect(check_message(ResyncDone{}, Epoch{3}), "a message of view 3, though it has view 4");
}

TEST_F(FencesTest, WhatIsOfATransferOutlivesItsView) {
  EXPECT_EQ(check_message(Credit{1}, Epoch{3}), std::nullopt);
}

TEST_F(FencesTest, ALeaseReplacesOnlyAnOlderOne) {
  for (const std::uint32_t lease : {7U, 8U}) {
    check_message(grant(lease));
    fences_.note_close({TransferId{lease - 1}, kSender});
    EXPECT_EQ(check_open(lease), std::nullopt);
    fences_.end_turn();
  }
  check_message(grant(7, kOther));
  fences_.note_close({TransferId{8}, kSender});
  expect(check_open(9, kOther), "goes by lease 7");
}

TEST_F(FencesTest, ALeaseEndsWithItsReceive) {
  check_message(grant(7));
  check_open(1);
  fences_.note_close({TransferId{1}, kSender});
  fences_.end_turn();
  check_message(grant(1));  // of a home that forgot the object meanwhile, as this node has
  EXPECT_EQ(check_open(2), std::nullopt);
}

// The next receive opens when the closed one writes no more.
TEST_F(FencesTest, ALeaseThatWaitsReplacesOnlyAnOlderOne) {
  for (const std::uint32_t lease : {7U, 8U}) {
    check_message(grant(lease));
    fences_.note_close({TransferId{lease - 1}, kSender});
    fences_.end_turn();
    fences_.note_receive_closed({kSender, TransferId{lease - 1}});
    if (lease == 7) check_message(grant(7));
    EXPECT_EQ(check_open(lease), std::nullopt);
    fences_.end_turn();
  }
  check_message(grant(8, kOther));
  fences_.note_close({TransferId{8}, kSender});
  fences_.end_turn();
  fences_.note_receive_closed({kSender, TransferId{8}});
  expect(check_open(9, kOther), "goes by lease 8");
}

TEST_F(FencesTest, AGrantOpensOneReceive) {
  check_message(grant(7));
  check_open(1);
  fences_.note_close({TransferId{1}, kSender});
  expect(check_open(2), "goes by lease 7");
}

TEST_F(FencesTest, AGrantOfAnotherObjectInTheSameTurnHidesNone) {
  check_message(grant(7));
  Grant other = grant(3);
  other.object = object_named(2);
  check_message(other);
  check_open(1);
  fences_.note_close({TransferId{1}, kSender});
  expect(check_open(2), "goes by lease 7");
}

TEST_F(FencesTest, AnOlderGrantInTheSameTurnHidesNone) {
  check_message(grant(8));
  check_message(grant(7, kOther));
  check_open(1);
  fences_.note_close({TransferId{1}, kSender});
  expect(check_open(2, kOther), "though it has lease 8");
}

TEST_F(FencesTest, AGrantThatIsNotTakenInCoversNoReceive) {
  check_message(grant(7), Epoch{3}, false);
  check_open(1);
  fences_.note_close({TransferId{1}, kSender});
  EXPECT_EQ(check_open(2), std::nullopt);
}

TEST_F(FencesTest, WhereAGrantMayBeALieTheNextReceiveMayBeTheHomesOwn) {
  do_peers_lie_ = true;
  check_message(grant(7));
  check_open(1);
  fences_.note_close({TransferId{1}, kSender});
  EXPECT_EQ(check_open(2), std::nullopt);
}

TEST_F(FencesTest, ABlockOfAClosedTransferMustNotLand) {
  check_open(1);
  fences_.note_close({TransferId{1}, kSender});
  check_open(2);
  expect(check_block(1), "though transfer 1 is closed");
}

TEST_F(FencesTest, ABlockOfAnotherAttemptOrEpochMustNotLand) {
  check_open(1);
  expect(check_block(1, Incarnation{2}),
         "attempt 2, target epoch 0, though transfer 1 is of other");
  expect(check_block(1, Incarnation{1}, TargetEpoch{3}),
         "target epoch 3, though transfer 1 is of other");
}

}  // namespace
}  // namespace hoplite::sim
