// SPDX-License-Identifier: Apache-2.0
// Full arenas, orphans and draining nodes: scripted cases with sentences for names, each for one
// and for three stripes.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

const ObjectId kTarget = object_named(4);

class Memory : public Scenario {
 protected:
  void expect_drained(std::size_t node, std::uint64_t times = 1, Duration limit = 10_s) {
    EXPECT_TRUE(cluster_->run_until([&] { return cluster_->drain_count(node) >= times; }, limit))
        << cluster_->stats(node).sole_copies << " sole copies";
    EXPECT_EQ(cluster_->stats(node).sole_copies, 0U);
  }
  // Returns the node, other than `drainer`, that has a part of `object`.
  std::optional<std::size_t> adopter(const ObjectId& object, std::size_t drainer) {
    for (std::size_t node = 0; node < cluster_->size(); ++node) {
      if (node == drainer || !cluster_->is_alive(node)) continue;
      for (const ObjectRow& row : cluster_->objects(node)) {
        if (row.object == object && std::string(row.state) == "partial") return node;
      }
    }
    return std::nullopt;
  }
  std::optional<ObjectRow> row_of(std::size_t node, const ObjectId& object) {
    for (const ObjectRow& row : cluster_->objects(node)) {
      if (row.object == object) return row;
    }
    return std::nullopt;
  }
  // Folds three sources of the first three nodes into kTarget, for a caller on `node`.
  void reduce_now(std::size_t node) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      put_now(i, object_named(10 + i), {.size_bytes = 900'000, .dtype = DType::kFloat32});
    }
    Request& reduce = cluster_->reduce(node, kTarget, {.source_count = 3, .count = 3});
    for (std::uint32_t i = 0; i < 3; ++i) cluster_->confirm(reduce, i, object_named(10 + i));
    expect_value(reduce);
  }
  // Expects that kTarget is orphaned on none of `nodes` and pinned on at least one of them.
  void expect_kept(const std::vector<std::size_t>& nodes) {
    bool is_pinned = false;
    for (const std::size_t node : nodes) {
      const auto row = row_of(node, kTarget);
      EXPECT_FALSE(row && row->orphaned) << "node " << node;
      is_pinned = is_pinned || (row && row->pinned);
    }
    EXPECT_TRUE(is_pinned);
  }
  // Node 1 evicts the last copies while the home on node 0 hears nothing of it. Nodes 0 and 1 then
  // get the objects again, and both gets end with "lost".
  void expect_lost_with_the_last_copies() {
    for (std::uint64_t n = 10; n < 18; ++n) {
      put_now(2, object_named(n), {.size_bytes = 70'000});
      Request& copy = cluster_->get(1, object_named(n));
      expect_value(copy);
      cluster_->release(copy);
    }
    cluster_->crash(2);
    cluster_->run_for(3_s);
    cluster_->stall_link(0, 1, 500_ms);
    put_now(1, object_named(1), {.size_bytes = 900'000});
    std::vector<Request*> gets;
    for (std::uint64_t n = 10; n < 18; ++n) {
      gets.push_back(&cluster_->get(0, object_named(n)));
      gets.push_back(&cluster_->get(1, object_named(n)));
    }
    for (Request* get : gets) expect_error(*get, Code::kObjectLost);
  }
  void expect_orphaned(const std::vector<std::size_t>& nodes) {
    std::size_t orphans = 0;
    for (const std::size_t node : nodes) {
      const auto row = row_of(node, kTarget);
      EXPECT_TRUE(!row || (row->orphaned && !row->pinned)) << "node " << node;
      orphans += row ? 1 : 0;
    }
    EXPECT_GT(orphans, 0U);
  }
};
INSTANTIATE_TEST_SUITE_P(Stripes, Memory, kStripeCounts, stripe_name);

const ObjectId kA = object_named(1);
const ObjectId kB = object_named(2);
const ObjectId kC = object_named(3);

void slow(ClusterConfig& config) { config.network.rate_bytes_per_s = 1'000'000; }
void narrow(ClusterConfig& config) { config.engine.arena_bytes = 256_KiB; }

// ---- full arenas ----

TEST_P(Memory, GetIsServedWhileAPutWaitsForMoreThanIsFree) {
  Cluster& cluster = start(2, narrow);
  put_now(0, kA, {.size_bytes = 140'000});
  put_now(1, kB, {.size_bytes = 70'000});
  Request& put = cluster.put(0, kC, {.size_bytes = 140'000});
  cluster.run_for(10_ms);
  expect_value(cluster.get(0, kB), 100_ms);
  EXPECT_TRUE(put.is_pending());
  cluster.erase(0, kA);
  expect_value(put);
}

TEST_P(Memory, ReduceGoesThroughWhileAllSevenEighthsAreTaken) {
  Cluster& cluster = start(2);
  put_now(1, kA, {.size_bytes = 100'000, .dtype = DType::kFloat32});
  put_now(1, kB, {.size_bytes = 100'000, .dtype = DType::kFloat32});
  put_now(1, object_named(9), {.size_bytes = 3'400'000});
  Request& waiting = cluster.put(1, kC, {.size_bytes = 100'000});
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 2, .count = 2});
  cluster.confirm(reduce, 0, kA);
  cluster.confirm(reduce, 1, kB);
  expect_value(reduce, 1_s);
  EXPECT_TRUE(waiting.is_pending());
  expect_value(cluster.get(0, kTarget));
  cluster.erase(1, object_named(9));
  expect_value(waiting);
}

TEST_P(Memory, WaitingPutsAreServedInTheOrderOfAsking) {
  Cluster& cluster = start(1, narrow);
  put_now(0, kA, {.size_bytes = 200'000});
  std::vector<Request*> puts;
  for (std::uint64_t n = 10; n < 15; ++n) {
    puts.push_back(&cluster.put(0, object_named(n), {.size_bytes = 180'000}));
    cluster.run_for(1_ms);
  }
  cluster.erase(0, kA);
  for (std::size_t i = 0; i < puts.size(); ++i) {
    expect_value(*puts[i]);
    for (std::size_t later = i + 1; later < puts.size(); ++later) {
      EXPECT_TRUE(puts[later]->is_pending());
    }
    cluster.erase(0, puts[i]->object);
  }
}

// ---- orphans ----

TEST_P(Memory, OrphanIsReadUntilItsMemoryIsNeededAndGoesFirst) {
  Cluster& cluster = start(2, narrow);
  put_now(0, kA, {.size_bytes = 80'000});
  put_now(1, kB, {.size_bytes = 80'000});
  Request& copy = cluster.get(0, kB);
  expect_value(copy);
  cluster.release(copy);
  cluster.orphan(1, kA);  // said on a node that has nothing of it
  cluster.run_for(50_ms);
  EXPECT_EQ(cluster.stats(0).arena_bytes_orphaned, 80'000U);
  Request& read = cluster.get(0, kA);
  expect_value(read);
  cluster.release(read);
  put_now(0, kC, {.size_bytes = 80'000});
  EXPECT_FALSE(row_of(0, kA)) << "evicted, though it was used last";
  EXPECT_TRUE(row_of(0, kB));
  Request& late = cluster.get(1, kA, true);
  expect_error(late, Code::kObjectLost);
  EXPECT_NE(late.error->text.find("its owner had died and its memory was needed"),
            std::string::npos)
      << late.error->text;
}

TEST_P(Memory, OrphanedResultOfAReduceIsFreedOnAllItsOwners) {
  Cluster& cluster = start(4);
  reduce_now(0);
  cluster.orphan(0, kTarget);
  cluster.run_for(50_ms);
  expect_orphaned({0, 1, 2, 3});
  for (std::size_t node = 0; node < 4; ++node) {
    put_now(node, object_named(20 + node), {.size_bytes = 2'600'000});
  }
}

TEST_P(Memory, NewHomeKnowsWhatIsOrphaned) {
  Cluster& cluster = start(4);
  put_now(0, kA);
  cluster.orphan(0, kA);
  cluster.run_for(50_ms);
  for (std::size_t node = 1; node < 4; ++node) cluster.crash(node);
  cluster.run_for(3_s);
  EXPECT_TRUE(row_of(0, kA)->orphaned);
  EXPECT_FALSE(row_of(0, kA)->pinned);
  expect_value(cluster.get(0, kA));
}

TEST_P(Memory, ResultOfAReduceIsAnOrphanOnceItsCallersNodeIsGoneForGood) {
  Cluster& cluster = start(4);
  reduce_now(3);
  cluster.crash(3);
  cluster.run_for(2_s);
  expect_kept({0, 1, 2});
  cluster.run_for(3_s);
  expect_orphaned({0, 1, 2});
  Request& read = cluster.get(0, kTarget);
  expect_value(read);
  cluster.release(read);
  for (std::size_t node = 0; node < 3; ++node) {
    put_now(node, object_named(20 + node), {.size_bytes = 2'600'000});
  }
  Request& late = cluster.get(1, kTarget, true);
  expect_error(late, Code::kObjectLost);
  EXPECT_NE(late.error->text.find("its owner had died"), std::string::npos) << late.error->text;
}

TEST_P(Memory, ResultOfAReduceIsNoOrphanWhenItsCallersNodeComesBackInTime) {
  Cluster& cluster = start(4);
  reduce_now(3);
  cluster.crash(3);
  cluster.run_for(2_s);
  cluster.restart(3);
  cluster.run_for(10_s);
  expect_kept({0, 1, 2});
}

TEST_P(Memory, NewHomeKnowsWhoseResultItIs) {
  Cluster& cluster = start(4);
  reduce_now(3);
  Request& copy = cluster.get(0, kTarget);
  expect_value(copy);
  cluster.release(copy);
  for (std::size_t node = 1; node < 4; ++node) cluster.crash(node);
  cluster.run_for(2_s);
  expect_kept({0});
  cluster.run_for(5_s);
  expect_orphaned({0});
}

TEST_P(Memory, AdoptedResultIsAnOrphanOnceItsCallersNodeIsGoneForGood) {
  Cluster& cluster = start(4);
  reduce_now(3);
  for (const std::size_t node : {0U, 1U}) {
    cluster.drain(node);
    expect_drained(node);
    cluster.crash(node);
    cluster.run_for(2_s);
  }
  expect_value(cluster.get(2, kTarget));
  cluster.crash(3);
  cluster.run_for(6_s);
  expect_orphaned({2});
}

TEST_P(Memory, SourceThatWaitsForMemoryIsHeardOfAlsoWhereItIsGotMeanwhile) {
  Cluster& cluster = start(1);
  put_now(0, kA, {.size_bytes = 3'300'000});
  Request& source = cluster.put(0, kB, {.size_bytes = 400'000, .dtype = DType::kFloat32});
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 1, .count = 1});
  cluster.announce(reduce, 0, kB);
  cluster.run_for(10_ms);
  Request& get = cluster.get(0, kB);  // claims nothing, and must not cancel the question
  cluster.run_for(10_ms);
  cluster.erase(0, kA);
  expect_value(source);
  expect_value(get);
  expect_value(reduce);
}

// ---- eviction ----

TEST_P(Memory, SenderThatHasEvictedItsCopyAndWantsItAgainIsNotWaitedFor) {
  start(3, [](ClusterConfig& c) { c.engine.arena_bytes = 1_MiB; });
  expect_lost_with_the_last_copies();
}

TEST_P(Memory, SenderRemembersWhatItEvictedLastHoweverMuchItHasEvictedBefore) {
  Cluster& cluster = start(3, [](ClusterConfig& c) {
    c.engine.arena_bytes = 1_MiB;
    c.check_every = 10'000;
  });
  const auto filler = [](std::uint64_t n) { return object_named((n << 8) | 0xff); };  // sort last
  for (std::uint32_t batch = 1; batch <= 6; ++batch) {
    const std::uint64_t first = batch * 1000;
    for (std::uint64_t n = first; n < first + 1000; ++n) {
      put_now(2, filler(n), {.size_bytes = 300});
      Request& copy = cluster.get(1, filler(n));
      expect_value(copy);
      cluster.release(copy);
    }
    put_now(1, kB, {.size_bytes = 900'000, .incarnation = Incarnation{batch}});  // evicts them all
    cluster.run_until_answered(cluster.erase(1, kB, Incarnation{batch}));
    for (std::uint64_t n = first; n < first + 1000; ++n) cluster.erase(2, filler(n));
    cluster.run_for(10_ms);
  }
  EXPECT_GT(cluster.stats(1).evictions, 5000U);
  expect_lost_with_the_last_copies();
}

// ---- draining ----

TEST_P(Memory, DrainedNodeIsKilledAndNothingIsLost) {
  Cluster& cluster = start(4);
  put_now(0, kA, {.size_bytes = 300'000});
  put_now(0, kB, {.size_bytes = 100});
  put_now(0, kC, {.size_bytes = 0});
  cluster.drain(0);
  expect_drained(0);
  cluster.crash(0);
  for (const ObjectId& object : {kA, kB, kC}) expect_value(cluster.get(2, object, true));
}

TEST_P(Memory, PutOnADrainingNodeIsHandedOverAsWell) {
  Cluster& cluster = start(3);
  cluster.drain(1);
  expect_drained(1);
  put_now(1, kA, {.size_bytes = 200'000});
  expect_drained(1, 2);
  cluster.crash(1);
  expect_value(cluster.get(0, kA, true));
}

TEST_P(Memory, CopyThatIsThereAlreadyIsAdoptedWithoutATransfer) {
  Cluster& cluster = start(3);
  put_now(0, kA, {.size_bytes = 300'000});
  Request& copy = cluster.get(2, kA);
  expect_value(copy);
  cluster.release(copy);
  const std::uint64_t sent = cluster.stats(0).blocks_sent;
  cluster.drain(0);
  expect_drained(0);
  EXPECT_EQ(cluster.stats(0).blocks_sent, sent);
  EXPECT_TRUE(row_of(2, kA)->pinned);
}

TEST_P(Memory, AdopterThatDiesIsReplaced) {
  Cluster& cluster = start(4, slow);
  put_now(0, kA, {.size_bytes = 300'000});
  cluster.drain(0);
  std::optional<std::size_t> first;
  ASSERT_TRUE(cluster.run_until([&] { return (first = adopter(kA, 0)).has_value(); }, 1_s));
  cluster.crash(*first);
  expect_drained(0);
  cluster.crash(0);
  expect_value(cluster.get(*first == 1 ? 2 : 1, kA, true));
}

TEST_P(Memory, AdopterThatDiesAfterwardsIsReplacedFromTheDrainersCopy) {
  Cluster& cluster = start(4);
  put_now(0, kA, {.size_bytes = 300'000});
  cluster.drain(0);
  expect_drained(0);
  std::size_t keeper = 0;
  for (std::size_t node = 1; node < 4; ++node) {
    const auto row = row_of(node, kA);
    if (row && row->pinned) keeper = node;
  }
  ASSERT_NE(keeper, 0U);
  cluster.crash(keeper);
  expect_drained(0, 2);
  cluster.crash(0);
  expect_value(cluster.get(keeper == 1 ? 2 : 1, kA, true));
}

TEST_P(Memory, DrainerThatDiesMidwayIsMissedAndNobodyWaitsForEver) {
  Cluster& cluster = start(3, slow);
  put_now(0, kA, {.size_bytes = 300'000});
  cluster.drain(0);
  ASSERT_TRUE(cluster.run_until([&] { return adopter(kA, 0).has_value(); }, 1_s));
  cluster.crash(0);
  expect_error(cluster.get(1, kA, true), Code::kObjectLost);
}

TEST_P(Memory, ObjectDeletedWhileItIsHandedOverLeavesNothing) {
  Cluster& cluster = start(3, slow);
  put_now(0, kA, {.size_bytes = 300'000});
  cluster.drain(0);
  ASSERT_TRUE(cluster.run_until([&] { return adopter(kA, 0).has_value(); }, 1_s));
  cluster.erase(2, kA);
  expect_drained(0);
  cluster.run_for(1_s);
  for (std::size_t node = 0; node < 3; ++node) {
    EXPECT_EQ(cluster.stats(node).arena_bytes_used, 0U);
  }
}

TEST_P(Memory, NodeIsNotDrainedUntilSomebodyHasRoom) {
  Cluster& cluster = start(2, narrow);
  put_now(0, kA, {.size_bytes = 150'000});
  put_now(1, kB, {.size_bytes = 150'000});
  cluster.drain(0);
  cluster.run_for(5_s);
  EXPECT_EQ(cluster.drain_count(0), 0U);
  EXPECT_EQ(cluster.stats(0).sole_copies, 1U);
  EXPECT_TRUE(row_of(0, kA)->sole);
  cluster.erase(1, kB);
  expect_drained(0);
}

TEST_P(Memory, OrphanIsHandedOverAsAnOrphan) {
  Cluster& cluster = start(3);
  put_now(0, kA, {.size_bytes = 300'000});
  cluster.orphan(0, kA);
  cluster.drain(0);
  expect_drained(0);
  cluster.crash(0);
  cluster.run_for(3_s);
  expect_value(cluster.get(1, kA, true));
  std::uint64_t orphaned = 0;
  for (std::size_t node = 1; node < 3; ++node) {
    orphaned += cluster.stats(node).arena_bytes_orphaned;
    const auto row = row_of(node, kA);
    EXPECT_FALSE(row && row->pinned);
  }
  EXPECT_GE(orphaned, 300'000U);
}

TEST_P(Memory, ViewsThatChangeDuringADrainAreNoHindrance) {
  Cluster& cluster = start(4, slow);
  for (std::uint64_t n = 10; n < 16; ++n) {
    put_now(0, object_named(n), {.size_bytes = 100'000});
  }
  cluster.drain(0);
  cluster.run_for(100_ms);
  cluster.join();
  cluster.run_for(100_ms);
  cluster.crash(2);
  cluster.run_for(50_ms);
  cluster.reset_link(0, 1);
  expect_drained(0, 1, 30_s);
  cluster.crash(0);
  for (std::uint64_t n = 10; n < 16; ++n) expect_value(cluster.get(1, object_named(n), true));
}

TEST_P(Memory, ResultOfAReduceIsHandedOver) {
  Cluster& cluster = start(4);
  for (std::uint32_t i = 0; i < 3; ++i) {
    put_now(i, object_named(10 + i), {.size_bytes = 60'000, .dtype = DType::kFloat32});
  }
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 3, .count = 3});
  for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, object_named(10 + i));
  expect_value(reduce);
  cluster.drain(1);
  expect_drained(1);
  cluster.crash(1);
  cluster.run_for(3_s);
  expect_value(cluster.get(2, kTarget, true));
}

TEST_P(Memory, WhatIsLeftOfALostResultHoldsUpNoNodeThatDrains) {
  Cluster& cluster = start(5, [](ClusterConfig& c) { c.engine.reduce_stripes = 3; });
  reduce_now(4);
  cluster.crash(2);
  expect_error(cluster.get(4, kTarget), Code::kObjectLost);
  ASSERT_TRUE(row_of(1, kTarget)->pinned);
  cluster.drain(1);
  expect_drained(1);
  EXPECT_EQ(cluster.stats(1).arena_bytes_pinned, 0U);
  cluster.erase(4, kTarget);
}

TEST_P(Memory, DrainingNodeOwnsNoPartOfAReduce) {
  Cluster& cluster = start(4);
  cluster.drain(1);
  cluster.run_for(100_ms);
  for (std::uint32_t i = 0; i < 3; ++i) {
    put_now(i == 1 ? 3 : i, object_named(10 + i), {.size_bytes = 60'000, .dtype = DType::kFloat32});
  }
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 3, .count = 3});
  for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, object_named(10 + i));
  expect_value(reduce);
  EXPECT_FALSE(row_of(1, kTarget));
}

}  // namespace
}  // namespace hoplite::sim
