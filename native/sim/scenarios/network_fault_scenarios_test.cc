// SPDX-License-Identifier: Apache-2.0
// Paths that are cut one way, late frames, slow processors, wrong clocks and false reports:
// scripted cases with sentences for names, for one and three stripes.
#include "plan/links/membership.h"
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

const ObjectId kA = object_named(1);
const ObjectId kTarget = object_named(2);

class NetworkFaults : public Scenario {
 protected:
  // 10 MB/s: 1 MiB takes 105 ms.
  Cluster& start_slow(std::size_t nodes, Duration detection = 5_ms) {
    return start(nodes, [&](ClusterConfig& c) {
      c.network.rate_bytes_per_s = 10'000'000;
      c.network.detection = detection;
    });
  }
  // An object whose home is `home`, of five nodes.
  static ObjectId object_at(std::size_t home) {
    for (std::uint64_t number = 1000;; ++number) {
      const ObjectId object = object_named(number);
      std::size_t best = 0;
      for (std::size_t node = 1; node < 5; ++node) {
        const bool is_better =
            weight_of(object, NodeId{node + 1}) > weight_of(object, NodeId{best + 1});
        if (is_better) best = node;
      }
      if (best == home) return object;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Stripes, NetworkFaults, kStripeCounts, stripe_name);

// Claims and answers come without their bytes, and pushes not at all.
TEST_P(NetworkFaults, SmallObjectsArriveAlthoughLongQueuesAreGivenNoPayload) {
  for (const std::uint32_t per_mille : {300U, 900U}) {
    Cluster& cluster = start(5, [&](ClusterConfig& c) { c.withheld_per_mille = per_mille; });
    std::vector<Request*> gets;
    for (std::size_t n = 0; n < 20; ++n) {
      const ObjectId object = object_named(100 + n);
      put_now(n % 5, object, {.size_bytes = 200});
      for (std::size_t node = 0; node < 5; ++node) gets.push_back(&cluster.get(node, object));
    }
    for (Request* get : gets) expect_value(*get, 5_s);
    TearDown();
  }
}

TEST_P(NetworkFaults, ReceiverWhomItsSenderDoesNotReachAnyMoreIsFedByAnother) {
  const ObjectId object = object_at(2);
  for (const std::size_t cut : {0U, 1U, 4U}) {
    Cluster& cluster = start_slow(5);
    put_now(0, object, {.size_bytes = 2_MiB});
    expect_value(cluster.get(1, object));  // two whole copies
    Request& get = cluster.get(3, object);
    Request& other = cluster.get(4, object);
    cluster.run_for(40_ms);
    cluster.stall_way(cut, 3, 20_s);  // none of its frames arrives, and no peer finds it dead
    expect_value(get, 2_s);
    expect_value(other, 2_s);
    TearDown();
  }
}

TEST_P(NetworkFaults, SenderThatIsNotHeardByItsOnlyReceiverIsWaitedFor) {
  for (const auto& [from, to] : {std::pair(0U, 1U), {1U, 0U}}) {
    Cluster& cluster = start_slow(2);
    put_now(0, kA, {.size_bytes = 1_MiB});
    Request& get = cluster.get(1, kA);
    cluster.run_for(40_ms);
    cluster.stall_way(from, to, 2_s);
    cluster.run_for(1_s);
    EXPECT_TRUE(get.is_pending());
    expect_value(get, 2_s);
    EXPECT_LT(cluster.stats(1).blocks_received, 1_MiB / 1_KiB + 10) << "it began again";
    TearDown();
  }
}

TEST_P(NetworkFaults, FramesThatAreAHundredMillisecondsLateDelayAndLoseNothing) {
  Cluster& cluster = start(4, [](ClusterConfig& c) { c.network.jitter_max = 100_ms; });
  put_now(0, kA, {.size_bytes = 300'000});
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 4; ++node) gets.push_back(&cluster.get(node, kA, true));
  Request& reduce = cluster.reduce(3, kTarget, {.source_count = 3, .count = 3});
  for (std::uint32_t i = 0; i < 3; ++i) {
    put_now(i, object_named(10 + i), {.size_bytes = 50'000, .dtype = DType::kFloat32});
    cluster.confirm(reduce, i, object_named(10 + i));
  }
  for (Request* get : gets) expect_value(*get, 20_s);
  expect_value(reduce, 20_s);
  expect_value(cluster.get(3, kTarget, true), 20_s);
}

TEST_P(NetworkFaults, NodeThatRunsATenthOfTheTimeIsSlowAndNotDead) {
  Cluster& cluster = start_slow(5);
  for (std::int64_t at = 0; at < 200; ++at) {
    cluster.timeline().at(cluster.now() + 10_ms * at, [&cluster] { cluster.pause(2, 9_ms); });
  }
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 5; ++node) gets.push_back(&cluster.get(node, kA));
  put_now(0, kA, {.size_bytes = 1_MiB});
  for (Request* get : gets) expect_value(*get, 2_s);
  EXPECT_EQ(cluster.stats(0).members, 5U);
}

TEST_P(NetworkFaults, HomeThatDoesNotReachTheOnlyHolderTakesItFromNobodyElse) {
  const ObjectId object = object_at(1);
  Cluster& cluster = start_slow(5);
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 4; ++node) gets.push_back(&cluster.get(node, object));
  put_now(0, object, {.size_bytes = 2_MiB});
  cluster.run_for(40_ms);
  cluster.separate(0, 1, 5_s);
  gets.push_back(&cluster.get(4, object, true));
  for (Request* get : gets) expect_value(*get, 1_s);  // its own through one of those
}

TEST_P(NetworkFaults, PutWhoseClaimIsLostWithItsLinkIsNotLost) {
  const ObjectId object = object_at(1);
  for (const std::uint64_t size_bytes : {200ULL, 1'048'576ULL}) {
    Cluster& cluster = start(5, [&](ClusterConfig& c) { c.network.redial = 3_s; });
    cluster.reset_link(0, 1);
    put_now(0, object, {.size_bytes = size_bytes});
    expect_value(cluster.get(3, object, true), 10_s);
    TearDown();
  }
}

TEST_P(NetworkFaults, WhatOnlyAnUnreachableNodeHasIsLostWhenTheViewSaysSo) {
  const ObjectId object = object_at(1);
  Cluster& cluster = start_slow(5);
  put_now(0, object, {.size_bytes = 1_MiB});
  cluster.separate(1, 0, 1_s);
  Request& get = cluster.get(1, object, true);
  cluster.run_for(900_ms);
  EXPECT_TRUE(get.is_pending());
  expect_error(get, Code::kObjectLost, 3_s);
}

TEST_P(NetworkFaults, ReportsOfDeathsThatAreRepeatedLateOrOfStrangersChangeNothing) {
  Cluster& cluster = start_slow(4);
  put_now(0, kA, {.size_bytes = 1_MiB});
  cluster.crash(3);
  cluster.run_for(100_ms);
  cluster.restart(3);
  cluster.run_for(100_ms);
  const Epoch epoch = cluster.epoch();
  Request& get = cluster.get(1, kA);
  Request& back = cluster.get(3, kA);
  for (int i = 0; i < 3; ++i) {
    cluster.run_for(10_ms);
    cluster.report_death(0, NodeId{4}, Incarnation{1});  // of its earlier life, which is over
    cluster.report_death(1, NodeId{4}, Incarnation{1});
    cluster.report_death(1, NodeId{77}, Incarnation{1});  // no member
    cluster.report_death(0, NodeId{4}, Incarnation{9});   // of a life that has yet to come
  }
  expect_value(get, 1_s);
  expect_value(back, 1_s);
  EXPECT_EQ(cluster.epoch(), epoch);
  EXPECT_EQ(cluster.stats(0).members, 4U);
}

TEST_P(NetworkFaults, DeathMayBeToldByTheViewBeforeTheSocketAndTheOtherWayRound) {
  for (const Duration detection : {1_ms, 8_s}) {  // the view is without it after 2 s at the latest
    Cluster& cluster = start_slow(4, detection);
    put_now(0, kA, {.size_bytes = 1_MiB});
    expect_value(cluster.get(1, kA));
    Request& get = cluster.get(3, kA);
    Request& lost = cluster.get(3, object_named(5), true);
    put_now(2, object_named(6), {.size_bytes = 100'000});
    cluster.run_for(40_ms);
    cluster.crash(0);
    cluster.crash(2);
    expect_value(get, 5_s);
    expect_error(lost, Code::kObjectLost, 20_s);
    expect_error(cluster.get(1, object_named(6), true), Code::kObjectLost, 20_s);
    TearDown();
  }
}

TEST_P(NetworkFaults, ClockThatJumpsAnHourAheadLosesNothing) {
  for (std::size_t jumps = 0; jumps < 4; ++jumps) {
    Cluster& cluster = start_slow(4);
    Request& before = cluster.get(2, object_named(7));
    put_now(0, kA, {.size_bytes = 1_MiB});
    std::vector<Request*> gets;
    for (std::size_t node = 1; node < 4; ++node) gets.push_back(&cluster.get(node, kA, true));
    cluster.run_for(40_ms);
    cluster.jump_clock(jumps, 3600_s);
    cluster.run_for(20_ms);
    cluster.jump_clock(jumps, 3600_s);
    for (Request* get : gets) expect_value(*get, 2_s);
    put_now(1, object_named(7), {.size_bytes = 100'000});
    expect_value(before, 2_s);
    TearDown();
  }
}

TEST_P(NetworkFaults, AllWaitersDieAndTheNextOneIsServed) {
  Cluster& cluster = start_slow(5);
  put_now(0, kA, {.size_bytes = 1_MiB});
  for (std::size_t node = 1; node < 4; ++node) cluster.get(node, kA);
  cluster.run_for(40_ms);
  for (std::size_t node = 1; node < 4; ++node) cluster.crash(node);
  expect_value(cluster.get(4, kA), 2_s);
  EXPECT_EQ(cluster.stats(0).waiters + cluster.stats(4).waiters, 0U);
}

TEST_P(NetworkFaults, ManyStreamsThroughOneNodeAllFinish) {
  Cluster& cluster = start_slow(9);
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 9; ++node) {
    put_now(0, object_named(20 + node), {.size_bytes = 50'000});
    put_now(node, object_named(40 + node), {.size_bytes = 50'000});
  }
  for (std::size_t node = 1; node < 9; ++node) {  // eight out and eight in, at once
    gets.push_back(&cluster.get(node, object_named(20 + node)));
    gets.push_back(&cluster.get(0, object_named(40 + node)));
  }
  for (Request* get : gets) expect_value(*get, 1_s);
}

TEST_P(NetworkFaults, AThousandGetsOfOneObjectAreAnsweredByOneTransferEach) {
  Cluster& cluster = start(5, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  std::vector<Request*> gets;
  for (std::uint64_t n = 0; n < 1000; ++n) {
    gets.push_back(&cluster.get(1 + n % 4, kA, false, ClientId{2 + n}));
  }
  put_now(0, kA, {.size_bytes = 100'000});
  for (Request* get : gets) expect_value(*get, 2_s);
  for (std::size_t node = 1; node < 5; ++node) {
    EXPECT_EQ(cluster.stats(node).blocks_received, cluster.stats(1).blocks_received);
  }
}

TEST_P(NetworkFaults, PutGetAndDeleteOfOneIdMayRaceInAnyOrder) {
  std::vector<int> verbs = {0, 1, 2, 3};  // put, get, delete, put again as a later attempt
  do {
    for (const Duration apart : {0_us, 40_us, 5_ms}) {
      Cluster& cluster = start_slow(3);
      for (const int verb : verbs) {
        if (verb == 0) cluster.put(0, kA, {.size_bytes = 20'000});
        if (verb == 1) cluster.get(1, kA);
        if (verb == 2) cluster.erase(2, kA, Incarnation{1});
        if (verb == 3) cluster.put(1, kA, {.size_bytes = 30'000, .incarnation = Incarnation{2}});
        cluster.run_for(apart);
      }
      expect_value(cluster.get(2, kA, true), 5_s);  // no client deletes the later attempt
      TearDown();
    }
  } while (std::next_permutation(verbs.begin(), verbs.end()));
}

TEST_P(NetworkFaults, CopyThatIsReadOrSentIsNotEvicted) {
  Cluster& cluster = start(4, [](ClusterConfig& c) {
    c.engine.arena_bytes = 1_MiB;
    c.network.rate_bytes_per_s = 2'000'000;
  });
  const ObjectId read = object_named(8);
  put_now(0, read, {.size_bytes = 200'000});
  put_now(0, kA, {.size_bytes = 200'000});
  Request& reader = cluster.get(1, read);
  expect_value(reader);
  Request& relayed = cluster.get(1, kA);
  expect_value(relayed);
  cluster.release(relayed);
  cluster.crash(0);  // node 1 has the only copy now and may evict it
  cluster.run_for(100_ms);
  Request& sent = cluster.get(2, kA, true);  // 100 ms
  cluster.run_for(20_ms);
  for (std::uint64_t n = 0; n < 3; ++n) {  // 600,000 bytes beside those 400,000, in 917,504
    cluster.put(1, object_named(30 + n), {.size_bytes = 200'000});
  }
  EXPECT_TRUE(sent.is_pending());
  expect_value(sent, 5_s);
  cluster.run_for(1_s);
  cluster.release(reader);  // the checker compares the bytes here
}

}  // namespace
}  // namespace hoplite::sim
