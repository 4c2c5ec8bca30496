// SPDX-License-Identifier: Apache-2.0
// Puts whose node has drained and gone: others keep them as long as that node may come back to tell
// of the last reference, and as orphans from then on.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

const ObjectId kA = object_named(1);
constexpr std::uint64_t kBytes = 300'000;
constexpr Duration kWithinGrace = 2_s;  // the grace of ClusterConfig::small is 3 s
constexpr Duration kPastGrace = 6_s;

class Leaving : public Scenario {
 protected:
  void drain_now(std::size_t node) {
    const std::uint64_t before = cluster_->drain_count(node);
    cluster_->drain(node);
    EXPECT_TRUE(cluster_->run_until([&] { return cluster_->drain_count(node) > before; }, 10_s))
        << cluster_->stats(node).sole_copies << " sole copies";
  }
  // Puts kA on node 0 and drains that node. Returns the node that keeps kA.
  std::size_t put_and_drain() {
    put_now(0, kA, {.size_bytes = kBytes});
    drain_now(0);
    return keeper();
  }
  [[nodiscard]] std::optional<ObjectRow> row_of(std::size_t node) const {
    for (const ObjectRow& row : cluster_->objects(node)) {
      if (row.object == kA) return row;
    }
    return std::nullopt;
  }
  // Returns the first live node that has kA pinned, or the number of nodes if there is none.
  [[nodiscard]] std::size_t keeper() const {
    for (std::size_t node = 0; node < cluster_->size(); ++node) {
      if (!cluster_->is_alive(node)) continue;
      const auto row = row_of(node);
      if (row && row->pinned) return node;
    }
    return cluster_->size();
  }
  void expect_orphaned() {
    std::uint64_t bytes = 0;
    for (std::size_t node = 0; node < cluster_->size(); ++node) {
      if (!cluster_->is_alive(node)) continue;
      const auto row = row_of(node);
      EXPECT_FALSE(row && row->pinned) << "node " << node;
      bytes += cluster_->stats(node).arena_bytes_orphaned;
    }
    EXPECT_GE(bytes, kBytes);
  }
};

INSTANTIATE_TEST_SUITE_P(Stripes, Leaving, kStripeCounts, stripe_name);

TEST_P(Leaving, WhatIsKeptForANodeIsAnOrphanOnceThatIsGoneForGood) {
  Cluster& cluster = start(3);
  put_and_drain();
  cluster.crash(0);
  cluster.run_for(kWithinGrace);
  EXPECT_NE(keeper(), cluster.size());
  cluster.run_for(kPastGrace);
  expect_orphaned();
  Request& read = cluster.get(1, kA, true);  // as long as its memory is not needed
  expect_value(read);
  cluster.release(read);
}

TEST_P(Leaving, ItStaysAsLongAsTheDrainedNodeLives) {
  Cluster& cluster = start(3);
  put_and_drain();
  cluster.run_for(kPastGrace);
  EXPECT_NE(keeper(), cluster.size());
}

TEST_P(Leaving, ItStaysWhenTheNodeComesBackWithinTheGrace) {
  Cluster& cluster = start(3);
  put_and_drain();
  cluster.crash(0);
  cluster.run_for(kWithinGrace);
  cluster.restart(0);
  cluster.run_for(kPastGrace);
  EXPECT_NE(keeper(), cluster.size());
}

TEST_P(Leaving, DeletionFromTheDrainedNodeReachesWhoKeepsIt) {
  Cluster& cluster = start(3);
  put_and_drain();
  cluster.erase(0, kA);
  cluster.run_for(1_s);
  for (std::size_t node = 0; node < 3; ++node) {
    EXPECT_EQ(cluster.stats(node).arena_bytes_used, 0U) << "node " << node;
  }
}

TEST_P(Leaving, SecondKeeperKnowsWhoseItIs) {
  Cluster& cluster = start(4);
  const std::size_t first = put_and_drain();
  cluster.crash(0);
  drain_now(first);
  cluster.crash(first);
  cluster.run_for(500_ms);
  EXPECT_NE(keeper(), cluster.size());
  cluster.run_for(kPastGrace);
  expect_orphaned();
}

TEST_P(Leaving, SecondKeeperKeepsItAsLongAsTheFirstOwnerLives) {
  Cluster& cluster = start(4);
  const std::size_t first = put_and_drain();
  drain_now(first);
  cluster.crash(first);
  cluster.run_for(kPastGrace);
  EXPECT_NE(keeper(), cluster.size());
  cluster.crash(0);
  cluster.run_for(kPastGrace);
  expect_orphaned();
}

TEST_P(Leaving, NewHomeKnowsWhoseItIs) {
  Cluster& cluster = start(4);
  const std::size_t kept_by = put_and_drain();
  for (std::size_t node = 0; node < 4; ++node) {
    if (node != kept_by) cluster.crash(node);
  }
  cluster.run_for(kWithinGrace);
  EXPECT_EQ(keeper(), kept_by);
  cluster.run_for(kPastGrace);
  expect_orphaned();
}

TEST_P(Leaving, OwnerThatKeepsItAgainSinceItsKeeperDiedIsNoLongerWaitedFor) {
  Cluster& cluster = start(3);
  const std::size_t first = put_and_drain();
  cluster.crash(first);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.drain_count(0) >= 2; }, 10_s));
  const std::size_t second = 3 - first;
  EXPECT_TRUE(row_of(second)->pinned);
  cluster.run_for(kPastGrace);
  EXPECT_TRUE(row_of(second)->pinned);
  cluster.crash(0);
  cluster.run_for(kPastGrace);
  expect_orphaned();
}

TEST_P(Leaving, CopyThatTheKeeperHadIsTheOwnersAsWell) {
  Cluster& cluster = start(3);
  put_now(0, kA, {.size_bytes = kBytes});
  Request& copy = cluster.get(2, kA);
  expect_value(copy);
  cluster.release(copy);
  drain_now(0);
  cluster.crash(0);
  cluster.run_for(kPastGrace);
  expect_orphaned();
}

// A node that dies without draining hands nothing over, so no other node keeps its copies.
TEST_P(Leaving, CopyOfAnObjectWhoseNodeJustDiedIsNoOrphan) {
  Cluster& cluster = start(3);
  put_now(0, kA, {.size_bytes = kBytes});
  Request& copy = cluster.get(2, kA);
  expect_value(copy);
  cluster.release(copy);
  cluster.crash(0);
  cluster.run_for(kPastGrace);
  EXPECT_EQ(cluster.stats(2).arena_bytes_orphaned, 0U);
  expect_value(cluster.get(1, kA, true));
}

}  // namespace
}  // namespace hoplite::sim
