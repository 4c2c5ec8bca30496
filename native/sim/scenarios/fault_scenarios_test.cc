// SPDX-License-Identifier: Apache-2.0
// Deaths, resets, stalls and joins: scripted cases with sentences for names, for one and three
// stripes.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

class Faults : public Scenario {
 protected:
  // 10 MB/s: 1 MiB takes 105 ms, so that there is time to hurt it.
  Cluster& start_slow(std::size_t nodes) {
    return start(nodes, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  }
};
INSTANTIATE_TEST_SUITE_P(Stripes, Faults, kStripeCounts, stripe_name);

const ObjectId kA = object_named(1);

TEST_P(Faults, ReceiverSwitchesSenderWhenItsSenderDies) {
  Cluster& cluster = start_slow(4);
  put_now(0, kA, {.size_bytes = 1_MiB});
  expect_value(cluster.get(1, kA));  // two whole copies
  Request& last = cluster.get(3, kA);
  cluster.run_for(40_ms);
  cluster.crash(0);
  expect_value(last, 2_s);
}

TEST_P(Faults, ReceiverResumesWhereItsDeadSenderStopped) {
  Cluster& cluster = start_slow(4);
  put_now(0, kA, {.size_bytes = 1_MiB});
  expect_value(cluster.get(1, kA));
  Request& last = cluster.get(3, kA);
  cluster.run_for(80_ms);
  cluster.crash(1);
  expect_value(last, 2_s);
  const std::uint64_t blocks = 1_MiB / 1_KiB;  // size / 1024
  EXPECT_LT(cluster.stats(3).blocks_received, blocks + blocks / 10) << "it began again";
}

TEST_P(Faults, WaiterGetsObjectLostWhenTheOnlyHolderDies) {
  Cluster& cluster = start_slow(4);
  put_now(0, kA, {.size_bytes = 1_MiB});
  Request& get = cluster.get(2, kA, true);
  cluster.run_for(30_ms);
  cluster.crash(0);
  expect_error(get, Code::kObjectLost, 5_s);
}

// The second deletion renews the tombstone of 5 s, also at the home. Otherwise the home would grant
// the object for ever to a node that refuses each grant, without time passing.
TEST_P(Faults, WhatIsDeletedTwiceStaysDeletedAsLongAsTheSecondDeletionIsRemembered) {
  for (const std::uint64_t bytes : {100_KiB, std::uint64_t{100}}) {
    for (std::size_t node = 0; node < 3; ++node) {
      Cluster& cluster = start(3);
      put_now(0, kA, {.size_bytes = bytes});
      cluster.erase(node, kA);
      cluster.run_for(3_s);
      cluster.erase(node, kA);
      cluster.run_for(3_s);
      cluster.put((node + 1) % 3, kA, {.size_bytes = bytes});
      cluster.run_for(1_s);  // until its home has refused it
      for (std::size_t reader = 0; reader < 3; ++reader) {
        expect_error(cluster.get(reader, kA, true), Code::kObjectLost, 2_s);
      }
      cluster.run_for(6_s);
      put_now((node + 1) % 3, kA, {.size_bytes = bytes});
      expect_value(cluster.get(node, kA), 2_s);
      TearDown();
    }
  }
}

TEST_P(Faults, ReceiversOfADeadOriginFinishTogetherFromWhatOneOfThemHas) {
  Cluster& cluster = start_slow(4);
  put_now(0, kA, {.size_bytes = 1_MiB});
  Request& first = cluster.get(1, kA);
  cluster.run_for(50_ms);
  Request& second = cluster.get(2, kA);
  EXPECT_TRUE(cluster.run_until_answered(first));
  cluster.crash(0);
  expect_value(second, 2_s);
}

TEST_P(Faults, MiddleOfTheTreeDiesAndTheRestGoesOn) {
  for (std::size_t victim = 1; victim < 6; ++victim) {
    Cluster& cluster = start_slow(6);
    std::vector<Request*> gets;
    for (std::size_t node = 1; node < 6; ++node) gets.push_back(&cluster.get(node, kA));
    put_now(0, kA, {.size_bytes = 1_MiB});
    cluster.run_for(30_ms);
    cluster.crash(victim);
    for (Request* get : gets) {
      if (get->node != victim) expect_value(*get, 2_s);
    }
    TearDown();
  }
}

TEST_P(Faults, HomeDiesAndWaitersAreStillAnswered) {
  for (std::size_t victim = 2; victim < 6; ++victim) {  // one of them is the home of most objects
    Cluster& cluster = start(6);
    std::vector<Request*> gets;
    for (std::uint64_t number = 1; number <= 12; ++number) {
      gets.push_back(&cluster.get(1, object_named(number)));
    }
    cluster.run_for(10_ms);
    cluster.crash(victim);
    for (std::uint64_t number = 1; number <= 12; ++number) {
      cluster.put(0, object_named(number), {.size_bytes = number % 2 == 0 ? 100U : 50'000U});
      cluster.run_for(3_ms);  // before, while and after the home is replaced
    }
    for (Request* get : gets) expect_value(*get, 2_s);
    TearDown();
  }
}

TEST_P(Faults, HomeDiesAfterThePutAndTheObjectIsStillFound) {
  for (std::size_t victim = 1; victim < 5; ++victim) {
    Cluster& cluster = start(5);
    for (std::uint64_t number = 1; number <= 8; ++number) {
      put_now(0, object_named(number), {.size_bytes = number % 2 == 0 ? 100U : 50'000U});
    }
    cluster.crash(victim);
    const std::size_t reader = victim == 1 ? 2 : 1;
    std::vector<Request*> gets;
    for (std::uint64_t number = 1; number <= 8; ++number) {
      gets.push_back(&cluster.get(reader, object_named(number), true));
    }
    for (Request* get : gets) expect_value(*get, 2_s);
    TearDown();
  }
}

TEST_P(Faults, DeletionIsRememberedOverTheDeathOfTheHome) {
  for (std::size_t victim = 1; victim < 4; ++victim) {
    Cluster& cluster = start(4);
    for (std::uint64_t number = 1; number <= 8; ++number) {
      put_now(0, object_named(number));
      cluster.run_until_answered(cluster.erase(0, object_named(number)));
    }
    cluster.run_for(10_ms);
    cluster.crash(victim);
    cluster.run_for(500_ms);
    for (std::uint64_t number = 1; number <= 8; ++number) {
      expect_error(cluster.get(0, object_named(number), true), Code::kObjectLost, 5_s);
    }
    TearDown();
  }
}

TEST_P(Faults, NodeJoinsWhileTransfersRun) {
  Cluster& cluster = start_slow(3);
  for (std::uint64_t number = 1; number <= 6; ++number) {
    put_now(0, object_named(number), {.size_bytes = 200'000});
  }
  std::vector<Request*> gets;
  for (std::uint64_t number = 1; number <= 6; ++number) {
    gets.push_back(&cluster.get(1 + number % 2, object_named(number)));
  }
  cluster.run_for(20_ms);
  const std::size_t fresh = cluster.join();
  for (std::uint64_t number = 1; number <= 6; ++number) {
    gets.push_back(&cluster.get(fresh, object_named(number)));
  }
  for (Request* get : gets) expect_value(*get, 3_s);
}

TEST_P(Faults, NodeThatAsksBeforeItKnowsTheViewIsAnswered) {
  Cluster& cluster = start(2);
  put_now(0, kA);
  const std::size_t fresh = cluster.join();
  expect_value(cluster.get(fresh, kA), 1_s);
}

TEST_P(Faults, RestartedNodeTakesPartAgain) {
  Cluster& cluster = start(3);
  put_now(0, kA);
  expect_value(cluster.get(1, kA));
  cluster.crash(1);
  cluster.run_for(5_ms);  // no node has noticed yet
  cluster.restart(1);
  Request& again = cluster.get(1, kA);
  expect_value(again, 2_s);
  put_now(1, object_named(2));
  expect_value(cluster.get(2, object_named(2)), 2_s);
}

TEST_P(Faults, LinkResetMidTransferResumes) {
  Cluster& cluster = start_slow(2);
  put_now(0, kA, {.size_bytes = 1_MiB});
  Request& get = cluster.get(1, kA);
  for (int i = 0; i < 3; ++i) {
    cluster.run_for(25_ms);
    EXPECT_TRUE(get.is_pending());
    cluster.reset_link(0, 1);
  }
  expect_value(get, 2_s);
  const std::uint64_t blocks = 1_MiB / 1_KiB;
  EXPECT_LT(cluster.stats(1).blocks_received, blocks + 10) << "it began again";
}

TEST_P(Faults, ControlMessagesLostInAResetAreSaidAgain) {
  Cluster& cluster = start(4);
  std::vector<Request*> requests;
  for (std::uint64_t number = 1; number <= 30; ++number) {
    const std::size_t node = number % 4;
    requests.push_back(
        &cluster.put(node, object_named(number), {.size_bytes = number % 3 == 0 ? 100U : 20'000U}));
    requests.push_back(&cluster.get((node + 1) % 4, object_named(number), true));
    requests.push_back(&cluster.get((node + 2) % 4, object_named(number)));
    cluster.run_for(700_us);
    cluster.reset_link(number % 4, (number + 1 + number / 4 % 3) % 4);
  }
  for (Request* request : requests) expect_value(*request, 2_s);
}

TEST_P(Faults, StalledLinkDelaysAndLosesNothing) {
  Cluster& cluster = start_slow(3);
  put_now(0, kA, {.size_bytes = 500'000});
  Request& get = cluster.get(1, kA);
  cluster.run_for(20_ms);
  cluster.stall_link(0, 1, 300_ms);
  cluster.run_for(200_ms);
  EXPECT_TRUE(get.is_pending());
  expect_value(get, 1_s);
}

TEST_P(Faults, PausedNodeIsNeverTakenForDead) {
  Cluster& cluster = start_slow(3);
  put_now(0, kA, {.size_bytes = 500'000});
  Request& get = cluster.get(1, kA);
  cluster.run_for(20_ms);
  cluster.pause(0, 400_ms);
  cluster.run_for(300_ms);
  EXPECT_TRUE(get.is_pending());
  expect_value(get, 1_s);
  EXPECT_EQ(cluster.stats(1).members, 3U);
}

TEST_P(Faults, AStoppedNodeServesWhatItsReceiverAskedForBeforeItDied) {
  Cluster& cluster = start_slow(3);
  put_now(0, kA, {.size_bytes = 500'000});
  cluster.pause(0, 400_ms);
  cluster.get(1, kA);
  cluster.run_for(20_ms);
  cluster.crash(1);
  cluster.restart(1);
  cluster.run_for(500_ms);  // it hears of the get first, and then of the death
  expect_value(cluster.get(1, kA), 2_s);
}

TEST_P(Faults, AllButOneDieAndTheLastOneAnswersForItself) {
  Cluster& cluster = start(4);
  put_now(3, kA);
  Request& lost = cluster.get(3, object_named(2), true);
  cluster.crash(0);
  cluster.crash(1);
  cluster.crash(2);
  expect_value(cluster.get(3, kA, true), 5_s);
  expect_error(lost, Code::kObjectLost, 5_s);
}

TEST_P(Faults, HomeDiesAtEveryStepOfAReduce) {
  for (std::int64_t step = 0; step < 12; ++step) {
    for (std::size_t victim = 3; victim < 6; ++victim) {  // homes and owners; no source is lost
      Cluster& cluster =
          start(6, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 20'000'000; });
      Request& reduce = cluster.reduce(0, kA, {.source_count = 3, .count = 3});
      for (std::uint32_t i = 0; i < 3; ++i) {
        put_now(i, object_named(100 + i), {.size_bytes = 60'000, .dtype = DType::kFloat32});
        cluster.confirm(reduce, i, object_named(100 + i));
      }
      cluster.run_for(1_ms * step);
      const bool was_committed = !reduce.is_pending();
      cluster.crash(victim);
      expect_value(reduce, 3_s);
      // An owner's stripes are lost if it dies after the commit and before the first fetch.
      Request& get = cluster.get(1, kA, true);
      EXPECT_TRUE(cluster.run_until_answered(get, 3_s));
      EXPECT_TRUE(get.has_value() || was_committed) << step << " " << get.error->text;
      TearDown();
    }
  }
}

TEST_P(Faults, SenderThatBecomesTheHomeTellsItsReceiversThatTheOriginDied) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {  // in some the new home hears of the view last
    Cluster& cluster = start(4, [&](ClusterConfig& c) {
      c.seed = seed;
      c.network.rate_bytes_per_s = 2'000'000;
      c.view_delay_max = 200_ms;
    });
    cluster.run_for(300_ms);
    std::vector<Request*> gets;
    for (std::uint64_t number = 1; number <= 8; ++number) {
      put_now(0, object_named(number), {.size_bytes = 100'000});
      gets.push_back(&cluster.get(1, object_named(number), true));
    }
    cluster.run_for(20_ms);
    for (std::uint64_t number = 1; number <= 8; ++number) {
      gets.push_back(&cluster.get(2, object_named(number), true));
    }
    cluster.run_for(50_ms);
    cluster.crash(0);
    cluster.crash(3);
    for (Request* get : gets) {
      EXPECT_TRUE(cluster.run_until_answered(*get, 10_s)) << seed << ": " << name_of(*get);
    }
    TearDown();
  }
}

}  // namespace
}  // namespace hoplite::sim
