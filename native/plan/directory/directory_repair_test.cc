// SPDX-License-Identifier: Apache-2.0
// The home's reaction to its receivers' progress: which edges it moves, and which it leaves alone.
#include "plan/directory/directory_test.h"

namespace hoplite {
namespace {

// A chain A -> B -> C -> D of one stripe.
class DirectoryRepair : public DirectoryTest {
 protected:
  DirectoryRepair() {
    has(kA);
    wants(kB);
    b_ = only<Granted>(kB);
    wants(kC);
    c_ = only<Granted>(kC);
    wants(kD);
    d_ = only<Granted>(kD);
    EXPECT_EQ(b_.sender, kA);
    EXPECT_EQ(c_.sender, kB);
    EXPECT_EQ(d_.sender, kC);
  }
  // One window passes, in which each receiver gets this number of blocks.
  struct Gains {
    std::uint32_t b = 0, c = 0, d = 0;
  };
  void pass(Gains gains) {
    now_ = now_ + kProgressWindow;
    is_at(kB, b_, at_.b += gains.b);
    is_at(kC, c_, at_.c += gains.c);
    is_at(kD, d_, at_.d += gains.d);
  }

  Granted b_, c_, d_;
  Gains at_;
};

TEST_F(DirectoryRepair, LeavesHealthyReceiversAlone) {
  for (int window = 0; window < 100; ++window) pass({20, 20, 20});
  expect_silence();
}

TEST_F(DirectoryRepair, LeavesThoseAloneWhoWaitForTheProducer) {
  pass({20, 20, 20});
  for (int window = 0; window < 100; ++window) pass({0, 0, 0});
  expect_silence();
}

TEST_F(DirectoryRepair, MovesAnEdgeThatIsSilentWhileItsSenderHasMoreAndNoneBelowIt) {
  pass({20, 20, 20});
  pass({20, 0, 0});
  expect_silence();
  pass({20, 0, 0});
  const Granted moved = only<Granted>(kC);
  EXPECT_EQ(moved.sender, kA) << "D gets its bytes from C, B is the silent one";
  EXPECT_GT(moved.lease, c_.lease);
}

TEST_F(DirectoryRepair, MovesTheReceiverOfASenderThatSaysNothingAnyMore) {
  pass({20, 20, 20});
  for (int window = 0; window < 4; ++window) {
    now_ = now_ + kProgressWindow;
    is_at(kC, c_, at_.c);
    is_at(kD, d_, at_.d);
  }
  EXPECT_EQ(only<Granted>(kC).sender, kA);
}

TEST_F(DirectoryRepair, LeavesAnEdgeAloneWhoseReceiverIsAtWorkForOtherObjects) {
  pass({20, 20, 20});
  for (int window = 0; window < 20; ++window) {
    now_ = now_ + kProgressWindow;
    is_at(kB, b_, at_.b += 20);
    is_busy_elsewhere(kC);
    is_busy_elsewhere(kD);
  }
  expect_silence();
  pass({20, 0, 20});
  pass({20, 0, 20});
  EXPECT_EQ(only<Granted>(kC).sender, kA) << "judged again, from then on";
}

TEST_F(DirectoryRepair, LetsAMovedEdgeRestLongerEachTime) {
  pass({20, 20, 20});
  std::vector<int> moved_in;
  for (int window = 0; window < 100; ++window) {
    pass({20, 0, 0});
    for (const Granted& grant : of<Granted>(take(), kC)) {
      moved_in.push_back(window);
      c_ = grant;
    }
  }
  ASSERT_GE(moved_in.size(), 3U);
  EXPECT_LE(moved_in.size(), 6U);
  EXPECT_GE(moved_in[1] - moved_in[0], 4);
  EXPECT_GE(moved_in[2] - moved_in[1], 8);
}

TEST_F(DirectoryRepair, MakesASlowNodeALeafAfterThreePeriods) {
  pass({20, 20, 20});
  pass({20, 6, 6});
  pass({20, 6, 6});
  expect_silence();
  pass({20, 6, 6});
  const Granted moved = only<Granted>(kD);
  EXPECT_EQ(moved.sender, kB) << "the origin has sent its copy";
  d_ = moved;
  wants(kHome);
  EXPECT_EQ(only<Granted>(kHome).sender, kD) << "C has room, and nobody shall depend on it";
}

TEST_F(DirectoryRepair, TakesNoStrikeFromAPeriodInWhichItIsFastEnough) {
  pass({20, 20, 20});
  for (int round = 0; round < 20; ++round) {
    pass({20, 6, 6});
    pass({20, 6, 6});
    pass({20, 18, 18});
  }
  expect_silence();
}

TEST_F(DirectoryRepair, HasNoEarForProgressUnderAnOlderLease) {
  pass({20, 20, 20});
  pass({20, 0, 0});
  pass({20, 0, 0});
  const Granted moved = only<Granted>(kC);
  const Granted old = std::exchange(c_, moved);
  for (int window = 0; window < 20; ++window) {
    pass({20, 20, 20});
    is_at(kC, old, 0);
  }
  expect_silence();
}

TEST_F(DirectoryRepair, AdoptsACompleteCopyWhenTheSenderIsSlow) {
  pass({20, 20, 20});
  pass({20, 6, 6});
  pass({20, 6, 6});
  has(kHome);
  take();
  pass({20, 6, 6});
  const auto sent = take();
  ASSERT_EQ(of<Granted>(sent, kC).size(), 1U);
  EXPECT_EQ(of<Granted>(sent, kC)[0].sender, kHome);
}

// Slow links and large blocks: a window without a block means nothing.
TEST_F(DirectoryRepair, WaitsForAsLongAsAFewBlocksTake) {
  for (int window = 0; window < 100; ++window) {
    const std::uint32_t due = window % 5 == 0 ? 1 : 0;
    const std::uint32_t late = window % 5 == 4 ? 1 : 0;
    pass({due, late, late});
  }
  expect_silence();
}

// ---- the plan for all waiting receivers when the object becomes known ----

TEST_F(DirectoryTest, PlansForAllWhoWaitSoThatNobodyUploadsMoreThanOneCopy) {
  reset(3);
  wants(kB);
  wants(kC);
  wants(kD);
  has(kA);
  std::map<NodeId, std::uint32_t> edges;
  std::set<std::pair<NodeId, StripeIndex>> fed;
  for (const Parcel& parcel : take()) {
    const Granted grant = read_lease(parcel);
    ++edges[grant.sender];
    EXPECT_TRUE(fed.emplace(parcel.to, grant.stripe).second) << "twice";
  }
  EXPECT_EQ(fed.size(), 9U);
  EXPECT_EQ(edges[kA], 3U) << "each stripe leaves the origin once";
  for (const auto& [node, count] : edges) EXPECT_LE(count, 3U) << node.value;
}

TEST_F(DirectoryTest, LeasesAllStripesOfAReceiverInOneMessage) {
  reset(3);
  has(kA);
  for (const NodeId node : {kB, kC, kD}) wants(node);
  std::map<NodeId, int> messages;
  while (const auto parcel = directory_.poll_parcel()) {
    const Grant& grant = std::get<Grant>(parcel->body);
    EXPECT_EQ(grant.leases.size(), 3U);
    ++messages[parcel->to];
  }
  EXPECT_EQ(messages, (std::map<NodeId, int>{{kB, 1}, {kC, 1}, {kD, 1}}));
  EXPECT_EQ(directory_.stats().regrants, 0U) << "claims of one turn have one plan";
}

class ManyMembers : public DirectoryTest {
 protected:
  ManyMembers() {
    std::vector<NodeId> nodes;
    for (std::uint64_t node = 1; node <= 48; ++node) nodes.emplace_back(node);
    change_view(nodes);
    for (const NodeId node : nodes) done(node);
    take();
  }
};

// The questions of 48 members take the home's port longer than a copy.
TEST_F(ManyMembers, LeaveTheHomeALeaf) {
  has(kA);
  wants(kHome);
  expect_silence();
  wants(kB);
  std::map<NodeId, NodeId> senders;
  for (const Parcel& parcel : take()) senders[parcel.to] = read_lease(parcel).sender;
  EXPECT_EQ(senders, (std::map<NodeId, NodeId>{{kB, kA}, {kHome, kB}}));
  wants(kC);
  EXPECT_NE(only<Granted>(kC).sender, kHome);
}

TEST_F(ManyMembers, LetTheHomeWaitForTwoHopsWhereItIsAlone) {
  has(kA);
  wants(kHome);
  expect_silence();
  elapse(Duration{2 * kHopNs});
  EXPECT_EQ(only<Granted>(kHome).sender, kA);
}

TEST_F(ManyMembers, TakeTheHomeIntoAPlanOfAll) {
  for (std::uint64_t node = 3; node <= 48; ++node) wants(NodeId{node});
  wants(kHome);
  has(kA);
  EXPECT_EQ(take().size(), 47U);
}

// Stripes of a result come from owners that the home tells one after the other.
class Results : public ManyMembers {
 protected:
  void owns(NodeId owner, std::size_t stripe) {
    Claim claim = claim_of({.target_epoch = 1, .committed = false, .pinned = true});
    claim.stripes.resize(2);
    claim.stripes[1].stripe = StripeIndex{1};
    claim.stripes[stripe].state = StripeState::kRoot;
    tell(owner, claim);
  }
  // Leases by receiver, each list of one message.
  std::map<NodeId, std::vector<std::size_t>> grants() {
    std::map<NodeId, std::vector<std::size_t>> grants;
    while (const auto parcel = directory_.poll_parcel()) {
      const auto* grant = std::get_if<Grant>(&parcel->body);
      if (grant != nullptr) grants[parcel->to].push_back(grant->leases.size());
    }
    return grants;
  }
};

TEST_F(Results, AreLeasedToManyReceiversWhenEachStripeHasAnOwner) {
  for (std::uint64_t node = 10; node < 42; ++node) wants(NodeId{node});
  owns(kA, 0);
  EXPECT_TRUE(grants().empty());
  owns(kB, 1);
  const auto grants = this->grants();
  EXPECT_EQ(grants.size(), 32U);
  for (const auto& [node, leases] : grants) {
    EXPECT_EQ(leases, std::vector<std::size_t>{2}) << node.value;
  }
}

TEST_F(Results, AreLeasedToFewReceiversStripeByStripe) {
  for (std::uint64_t node = 10; node < 41; ++node) wants(NodeId{node});
  owns(kA, 0);
  EXPECT_EQ(grants().size(), 31U);
}

TEST_F(Results, AreAnnouncedToNodesThatHaveSomeOfThem) {
  const auto told = [&](std::uint32_t epoch) {
    ReduceState state;
    state.target = kObject;
    state.target_epoch = TargetEpoch{epoch};
    directory_.handle_reduce_state(state, now_);
    std::set<NodeId> nodes;
    for (const Parcel& parcel : take()) {
      if (std::holds_alternative<ReduceState>(parcel.body)) nodes.insert(parcel.to);
    }
    return nodes;
  };
  wants(kC);
  EXPECT_TRUE(told(1).empty()) << "a node that only waits has nothing to void";
  owns(kA, 0);
  take();
  EXPECT_EQ(told(2), (std::set<NodeId>{kA, kC}));
}

// home: Grant(kC from kB) waits to be sent │ kB dies │ the home grants anew.  The older lease must
// not be sent.
TEST_F(DirectoryTest, AGrantThatWaitsHasTheNewestLeaseOfAStripe) {
  reset(1);
  has(kA);
  has(kB);
  wants(kC);
  directory_.handle_locate(kD, Locate{kObject, Incarnation{0}, kNoNode, true, 0}, now_);
  ASSERT_EQ(directory_.stats().grants, 1U);
  directory_.handle_node_dead(kB, now_);
  elapse(kRegrantDelay);
  std::vector<Grant> grants;
  while (const auto parcel = directory_.poll_parcel()) {
    if (const auto* grant = std::get_if<Grant>(&parcel->body)) grants.push_back(*grant);
  }
  ASSERT_EQ(grants.size(), 1U);
  ASSERT_EQ(grants[0].leases.size(), 1U);
  EXPECT_EQ(grants[0].leases[0].sender, kA);
}

// home: Grant(kC from kB) and an answer to kC wait to be sent │ kB dies │ the home grants anew. The
// newer lease goes behind the answer, because messages to one node keep their order.
TEST_F(DirectoryTest, ALeaseJoinsNoGrantThatAnotherMessageFollows) {
  reset(1);
  has(kA);
  has(kB);
  wants(kC);
  directory_.handle_locate(kC, Locate{kObject, Incarnation{0}, kNoNode, true, 0}, now_);
  directory_.handle_node_dead(kB, now_);
  elapse(kRegrantDelay);
  std::vector<NodeId> senders;  // kNoNode: the answer
  while (const auto parcel = directory_.poll_parcel()) {
    if (parcel->to != kC) continue;
    const auto* grant = std::get_if<Grant>(&parcel->body);
    EXPECT_TRUE(grant == nullptr || grant->leases.size() == 1);
    senders.push_back(grant != nullptr ? grant->leases.at(0).sender : kNoNode);
  }
  EXPECT_EQ(senders, (std::vector<NodeId>{kB, kNoNode, kA}));
}

// Returns the sender in the last grant of each stripe, for every receiver with a grant.
std::map<std::pair<NodeId, StripeIndex>, NodeId> senders_of(const std::vector<Parcel>& sent) {
  std::map<std::pair<NodeId, StripeIndex>, NodeId> senders;
  for (const Parcel& parcel : sent) {
    const Granted grant = read_lease(parcel);
    senders[{parcel.to, grant.stripe}] = grant.sender;
  }
  return senders;
}

TEST_F(DirectoryTest, MakesAForestOfThoseWhoAskAtTheSameTimeForWhatIsThere) {
  reset(3);
  has(kA);
  for (const NodeId node : {kB, kC, kD}) wants(node);
  std::map<NodeId, int> edges;
  std::set<NodeId> fed_by_origin;
  for (const auto& [receiver, sender] : senders_of(take())) {
    ++edges[sender];
    if (sender != kA) continue;
    EXPECT_TRUE(fed_by_origin.insert(receiver.first).second);
  }
  EXPECT_EQ(fed_by_origin.size(), 3U) << "each stripe leaves the origin once";
  for (const NodeId node : {kB, kC, kD}) EXPECT_EQ(edges[node], 2) << "interior in one stripe";
}

TEST_F(DirectoryTest, LeavesThoseAloneWhoHaveBegunWhenAnotherAsks) {
  reset(3);
  has(kA);
  wants(kB);
  take();
  now_ = now_ + 1_ms;  // far longer than 4 KiB take
  wants(kC);
  for (const auto& [receiver, sender] : senders_of(take())) {
    EXPECT_EQ(receiver.first, kC);
    EXPECT_EQ(sender, kB);
  }
}

TEST_F(DirectoryTest, CutsAnObjectForThoseWhoWaitUntilTheFirstIsServed) {
  reset(0);
  has(kA);
  wants(kB);
  EXPECT_EQ(only<Granted>(kB).stripe_count, 1) << "a small one, for one";
  wants(kC);
  EXPECT_EQ(only<Granted>(kC).stripe_count, 1) << "it stays as it is while it is on its way";
  reset(0);
  wants(kB);
  wants(kC);
  wants(kD);
  has(kA);
  for (const Parcel& parcel : take()) {
    EXPECT_EQ(read_lease(parcel).stripe_count, 3);
  }
}

// An object whose stripes are long enough to have a beginning (is_beginning).
class DirectoryRing : public DirectoryTest {
 protected:
  void has_long(NodeId node) {
    claim(node, {.state = StripeState::kComplete,
                 .pinned = true,
                 .meta = {256_KiB, 1024, {{DType::kFloat32, 256_KiB}}, "float32"}});
  }
  std::vector<Granted> grants_after_it_wants(NodeId node) {
    wants(node);
    std::vector<Granted> grants;
    for (const Parcel& parcel : take()) {
      grants.push_back(read_lease(parcel));
      fed_by_[{parcel.to, grants.back().stripe}] = grants.back().sender;
    }
    return grants;
  }
  std::map<std::pair<NodeId, StripeIndex>, NodeId> fed_by_;
};

TEST_F(DirectoryRing, HasNoEarForProgressOfAResultThatNobodyHasCutYet) {
  const Said receiver{.wants = true, .target_epoch = 1, .committed = false};
  claim(kB, receiver);
  directory_.handle_progress(kB, {kObject, Incarnation{1}, TargetEpoch{1}, {}}, now_);
  expect_silence();
}

TEST_F(DirectoryRing, BalancesAForestOnceWhenItTurnsOutToHaveOthersBesideIt) {
  reset(2);
  has_long(kA);
  for (const NodeId node : {kD, kC, kB}) grants_after_it_wants(node);
  is_busy_elsewhere(kC);
  for (const Parcel& parcel : take()) {
    const Granted grant = read_lease(parcel);
    fed_by_[{parcel.to, grant.stripe}] = grant.sender;
  }
  const ForestPlan plan(3, 2);
  const std::array<NodeId, 3> ring{kB, kC, kD};
  for (std::uint32_t i = 0; i < ring.size(); ++i) {
    for (std::uint16_t stripe = 0; stripe < 2; ++stripe) {
      const std::uint32_t from = plan.sender(i, StripeIndex{stripe});
      EXPECT_EQ(fed_by_.at({ring[i], StripeIndex{stripe}}),
                from == ForestPlan::kOrigin ? kA : ring[from]);
    }
  }
  is_busy_elsewhere(kB);
  expect_silence();
}

}  // namespace
}  // namespace hoplite
