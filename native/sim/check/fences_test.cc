// Each fence is broken by hand, and the breach is named.
// SPDX-License-Identifier: Apache-2.0
#include "sim/check/fences.h"

#include <gtest/gtest.h>

#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

const ObjectId kA = object_named(1);
constexpr NodeId kSender{2}, kOther{3};

class FencesTest : public testing::Test {
 protected:
  FencesTest() { fences_.view_told(Epoch{4}); }

  Fences::Breach heard(PeerMessage body, Epoch view = Epoch{4}, bool is_taken = true) {
    return fences_.heard({view, {}, {}, std::move(body)}, is_taken);
  }
  static Grant grant(std::uint32_t lease, NodeId sender = kSender) {
    Grant made;
    made.object = kA;
    made.incarnation = Incarnation{1};
    made.sender = sender;
    made.lease = LeaseId{lease};
    return made;
  }
  Fences::Breach opened(std::uint64_t transfer, NodeId from = kSender) {
    OpenReceive receive;
    receive.transfer = TransferId{transfer};
    receive.from = from;
    receive.object = kA;
    receive.incarnation = Incarnation{1};
    return fences_.opened(receive, do_peers_lie_);
  }
  Fences::Breach landed(std::uint64_t transfer, Incarnation attempt = Incarnation{1},
                        TargetEpoch epoch = {}) {
    BlockHeader block;
    block.transfer = TransferId{transfer};
    block.object = kA;
    block.incarnation = attempt;
    block.target_epoch = epoch;
    return fences_.landed(kSender, block);
  }
  static void expect(const Fences::Breach& breach, const std::string& said) {
    ASSERT_TRUE(breach.has_value());
    EXPECT_NE(breach->find(said), std::string::npos) << *breach;
  }

  Fences fences_;
  bool do_peers_lie_ = false;
};

TEST_F(FencesTest, WhatIsOfThisViewIsTakenIn) {
  EXPECT_EQ(heard(ResyncDone{}), std::nullopt);
  EXPECT_EQ(heard(grant(7)), std::nullopt);
  EXPECT_EQ(opened(1), std::nullopt);
  EXPECT_EQ(landed(1), std::nullopt);
}

TEST_F(FencesTest, AMessageOfAnEarlierViewMustNotBeTakenIn) {
  EXPECT_EQ(heard(ResyncDone{}, Epoch{3}, false), std::nullopt);
  expect(heard(ResyncDone{}, Epoch{3}), "a message of view 3, though it has view 4");
}

TEST_F(FencesTest, WhatIsOfATransferOutlivesItsView) {
  EXPECT_EQ(heard(Credit{1}, Epoch{3}), std::nullopt);
}

TEST_F(FencesTest, ALeaseReplacesOnlyAnOlderOne) {
  for (const std::uint32_t lease : {7U, 8U}) {
    heard(grant(lease));
    fences_.closed({TransferId{lease - 1}, kSender});
    EXPECT_EQ(opened(lease), std::nullopt);
    fences_.turn_ended();
  }
  heard(grant(7, kOther));
  fences_.closed({TransferId{8}, kSender});
  expect(opened(9, kOther), "goes by lease 7");
}

TEST_F(FencesTest, ALeaseEndsWithItsReceive) {
  heard(grant(7));
  opened(1);
  fences_.closed({TransferId{1}, kSender});
  fences_.turn_ended();
  heard(grant(1));  // of a home that forgot the object meanwhile, as this node has
  EXPECT_EQ(opened(2), std::nullopt);
}

TEST_F(FencesTest, AGrantOpensOneReceive) {
  heard(grant(7));
  opened(1);
  fences_.closed({TransferId{1}, kSender});
  expect(opened(2), "goes by lease 7");
}

TEST_F(FencesTest, WhereAGrantMayBeALieTheNextReceiveMayBeTheHomesOwn) {
  do_peers_lie_ = true;
  heard(grant(7));
  opened(1);
  fences_.closed({TransferId{1}, kSender});
  EXPECT_EQ(opened(2), std::nullopt);
}

TEST_F(FencesTest, ABlockOfAClosedTransferMustNotLand) {
  opened(1);
  fences_.closed({TransferId{1}, kSender});
  opened(2);
  expect(landed(1), "though transfer 1 is closed");
}

TEST_F(FencesTest, ABlockOfAnotherAttemptOrEpochMustNotLand) {
  opened(1);
  expect(landed(1, Incarnation{2}), "attempt 2, target epoch 0, though transfer 1 is of other");
  expect(landed(1, Incarnation{1}, TargetEpoch{3}),
         "target epoch 3, though transfer 1 is of other");
}

}  // namespace
}  // namespace hoplite::sim
