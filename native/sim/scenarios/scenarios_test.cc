// SPDX-License-Identifier: Apache-2.0
// Puts, gets, deletes: scripted cases with sentences for names, each for one and for three stripes.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

class Objects : public Scenario {};
INSTANTIATE_TEST_SUITE_P(Stripes, Objects, kStripeCounts, stripe_name);

const ObjectId kA = object_named(1);
const ObjectId kB = object_named(2);

TEST_P(Objects, ValueComesToAnotherNode) {
  Cluster& cluster = start(2);
  put_now(0, kA);
  Request& get = cluster.get(1, kA);
  expect_value(get);
  EXPECT_TRUE(get.fetched.mapped);
}

TEST_P(Objects, ValueComesToItsOwnNode) {
  Cluster& cluster = start(1);
  put_now(0, kA);
  expect_value(cluster.get(0, kA));
}

TEST_P(Objects, EverySizeArrivesWhole) {
  Cluster& cluster = start(3, [](ClusterConfig& c) { c.engine.inline_bytes_max = 1_KiB; });
  std::uint64_t number = 10;
  for (const std::uint64_t size : {0_B, 1_B, 3_B, 1_KiB - 1, 1_KiB, 1_KiB + 1, 4_KiB - 1, 4_KiB,
                                   4_KiB + 1, 64_KiB - 1, 64_KiB, 64_KiB + 1, 100'003_B}) {
    const ObjectId object = object_named(number++);
    put_now(0, object, {.size_bytes = size});
    Request& get = cluster.get(1, object);
    expect_value(get);
    EXPECT_EQ(get.bytes.size(), size);
    EXPECT_EQ(get.fetched.mapped, size > 1_KiB) << size;
    cluster.release(get);
    cluster.erase(2, object);
  }
}

TEST_P(Objects, GetBeforePutIsAnsweredWhenTheObjectAppears) {
  Cluster& cluster = start(3);
  Request& large = cluster.get(1, kA);
  Request& little = cluster.get(1, kB);
  cluster.run_for(1_s);
  EXPECT_TRUE(large.is_pending());
  put_now(0, kA);
  put_now(2, kB, {.size_bytes = 100});
  expect_value(large, 50_ms);
  expect_value(little, 50_ms);
}

TEST_P(Objects, GetOnTheNodeOfAPutThatIsStillBeingWrittenWaits) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.write_bytes_per_s = 1'000'000; });
  Request& put = cluster.put(0, kA, {.size_bytes = 100'000});
  Request& here = cluster.get(0, kA);
  Request& there = cluster.get(1, kA);
  cluster.run_for(50_ms);
  EXPECT_TRUE(here.is_pending());
  EXPECT_TRUE(there.is_pending());
  EXPECT_TRUE(cluster.run_until_answered(put));
  expect_value(here, 50_ms);
  expect_value(there, 50_ms);
}

TEST_P(Objects, ManyNodesGetOneObject) {
  Cluster& cluster = start(8);
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 8; ++node) gets.push_back(&cluster.get(node, kA));
  put_now(0, kA, {.size_bytes = 200'000});
  for (Request* get : gets) expect_value(*get);
}

TEST_P(Objects, ReceiverServesTheNextFromAPartialCopy) {
  Cluster& cluster = start(3, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  put_now(0, kA, {.size_bytes = 1_MiB});  // 105 ms on a link
  Request& first = cluster.get(1, kA);
  cluster.run_for(10_ms);
  Request& second = cluster.get(2, kA);
  expect_value(first, 200_ms);
  expect_value(second, 20_ms);
  EXPECT_GT(cluster.stats(1).blocks_sent, 200U) << "node 1 fed node 2 while it received";
}

TEST_P(Objects, SmallObjectIsPushedToWaiters) {
  Cluster& cluster = start(6);
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 6; ++node) gets.push_back(&cluster.get(node, kA));
  cluster.run_for(10_ms);
  Request& put = put_now(0, kA, {.size_bytes = 200});
  for (Request* get : gets) {
    expect_value(*get);
    // Two latencies of 30 us and the client's own way: no node had to ask again.
    EXPECT_LT((*get->answered - put.asked).ns, (400_us).ns);
  }
}

TEST_P(Objects, ManyClientsOfOneNodeShareOneFetch) {
  Cluster& cluster = start(2);
  put_now(0, kA);
  std::vector<Request*> gets;
  for (std::uint64_t client = 1; client <= 20; ++client) {
    gets.push_back(&cluster.get(1, kA, true, ClientId{client}));
  }
  for (Request* get : gets) expect_value(*get);
  EXPECT_EQ(cluster.stats(1).blocks_received, cluster.stats(0).blocks_sent);
  EXPECT_EQ(cluster.stats(1).blocks_received, (64_KiB) / (1_KiB));
}

TEST_P(Objects, DeleteAnswersWaiters) {
  Cluster& cluster = start(3);
  Request& get = cluster.get(1, kA);
  cluster.run_for(50_ms);
  cluster.erase(2, kA);
  expect_error(get, Code::kObjectLost, 1_s);
}

TEST_P(Objects, DeleteFreesEveryCopy) {
  Cluster& cluster = start(4);
  put_now(0, kA);
  for (std::size_t node = 1; node < 4; ++node) {
    Request& get = cluster.get(node, kA);
    expect_value(get);
    cluster.release(get);
  }
  EXPECT_TRUE(cluster.run_until_answered(cluster.erase(3, kA)));
  cluster.run_for(1_s);
  for (std::size_t node = 0; node < 4; ++node) {
    EXPECT_EQ(cluster.stats(node).arena_bytes_used, 0U) << node;
  }
}

TEST_P(Objects, DeletedObjectStaysMappedUntilItsRelease) {
  Cluster& cluster = start(2);
  put_now(0, kA);
  Request& get = cluster.get(1, kA);
  expect_value(get);
  cluster.erase(0, kA);
  cluster.run_for(1_s);
  put_now(1, kB, {.size_bytes = 3_MiB});  // must not reuse the mapped range
  EXPECT_GT(cluster.stats(1).arena_bytes_used, 3_MiB);
  cluster.release(get);  // the checker compares the bytes here
}

TEST_P(Objects, DeleteDuringTheTransferEndsIt) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  put_now(0, kA, {.size_bytes = 1_MiB});
  Request& get = cluster.get(1, kA);
  cluster.run_for(20_ms);
  cluster.erase(0, kA);
  expect_error(get, Code::kObjectLost, 1_s);
  cluster.run_for(1_s);
  EXPECT_EQ(cluster.stats(1).arena_bytes_used, 0U);
}

TEST_P(Objects, RangeOfADeletedPutIsNotReusedWhileItsClientStillWrites) {
  Cluster& cluster = start(1, [](ClusterConfig& c) { c.write_bytes_per_s = 1'000'000; });
  Request& slow = cluster.put(0, kA, {.size_bytes = 100'000, .client = ClientId{2}});
  cluster.run_for(20_ms);
  cluster.erase(0, kA);
  cluster.run_for(1_ms);
  put_now(0, kB, {.size_bytes = 20'000});
  expect_error(slow, Code::kObjectLost, 1_s);
  expect_value(cluster.get(0, kB));
}

TEST_P(Objects, RangeThatItsWriterMapsOnIsNotReusedAfterADelete) {
  Cluster& cluster = start(2);
  Request& mapped = put_now(0, kA, {.size_bytes = 100'000, .client = ClientId{2}, .maps = true});
  expect_value(cluster.get(1, kA));
  cluster.erase(1, kA);
  cluster.run_for(1_s);
  put_now(0, kB, {.size_bytes = 100'000});
  cluster.release(mapped);  // the checker compares the bytes here
  cluster.erase(0, kB);
  cluster.run_for(1_s);
  EXPECT_EQ(cluster.stats(0).arena_bytes_used, 0U);
}

TEST_P(Objects, NewAttemptAfterADeleteIsServed) {
  Cluster& cluster = start(3);
  put_now(0, kA);
  cluster.run_until_answered(cluster.erase(0, kA, Incarnation{1}));
  put_now(1, kA, {.incarnation = Incarnation{2}});
  Request& get = cluster.get(2, kA);
  expect_value(get);
  EXPECT_EQ(get.fetched.incarnation, Incarnation{2});
}

TEST_P(Objects, LatePutOfADeletedAttemptIsRefused) {
  Cluster& cluster = start(3);
  put_now(0, kA);
  cluster.run_until_answered(cluster.erase(0, kA, Incarnation{1}));
  cluster.run_for(100_ms);
  Request& late = cluster.put(1, kA);
  cluster.run_until_answered(late);
  cluster.run_for(1_s);
  Request& get = cluster.get(2, kA, true);
  expect_error(get, Code::kObjectLost, 10_s);
}

TEST_P(Objects, SecondPutOfALiveAttemptIsRefused) {
  Cluster& cluster = start(1);
  put_now(0, kA);
  expect_error(cluster.put(0, kA), Code::kDuplicateObject);
}

TEST_P(Objects, CancelledGetIsAnsweredAndLeavesNothing) {
  Cluster& cluster = start(2);
  Request& waiting = cluster.get(1, kA);
  cluster.run_for(10_ms);
  cluster.cancel(waiting);
  expect_error(waiting, Code::kCancelled, 10_ms);
  EXPECT_EQ(cluster.stats(1).waiters, 0U);
}

TEST_P(Objects, ClientDeathUnpinsAndEndsItsWaits) {
  Cluster& cluster = start(2);
  put_now(0, kA);
  expect_value(cluster.get(1, kA, false, ClientId{7}));
  cluster.get(1, kB, false, ClientId{7});
  cluster.run_for(10_ms);
  cluster.erase(0, kA);
  cluster.run_for(10_ms);
  EXPECT_GT(cluster.stats(1).arena_bytes_used, 0U) << "still mapped";
  cluster.kill_client(1, ClientId{7});
  cluster.run_for(10_ms);
  EXPECT_EQ(cluster.stats(1).arena_bytes_used, 0U);
  EXPECT_EQ(cluster.stats(1).waiters, 0U);
}

TEST_P(Objects, WriterDeathTellsThoseWhoKnowThatItExists) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.write_bytes_per_s = 1'000'000; });
  cluster.put(0, kA, {.size_bytes = 100'000, .client = ClientId{5}});
  Request& get = cluster.get(1, kA, true);
  cluster.run_for(20_ms);
  cluster.kill_client(0, ClientId{5});
  expect_error(get, Code::kObjectLost, 5_s);
}

TEST_P(Objects, ObjectThatNobodyEverPutIsLostToThoseWhoKnowThatItExisted) {
  Cluster& cluster = start(3);
  expect_error(cluster.get(1, kA, true), Code::kObjectLost, 5_s);
}

TEST_P(Objects, UnpinnedCopiesMakeRoomForNewObjects) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.engine.arena_bytes = 1_MiB; });
  for (std::uint64_t number = 1; number <= 12; ++number) {
    const ObjectId object = object_named(number);
    put_now(0, object, {.size_bytes = 200'000});
    Request& get = cluster.get(1, object);
    expect_value(get);
    cluster.release(get);
    cluster.erase(0, object);
    cluster.run_for(10_ms);
  }
}

TEST_P(Objects, FullStoreSaysSoAndNamesTheObject) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.engine.arena_bytes = 256_KiB; });
  cluster.checker().allow_store_full();
  put_now(0, kA, {.size_bytes = 150'000});
  expect_error(cluster.put(0, kB, {.size_bytes = 150'000}), Code::kStoreFull, 5_s);
}

TEST_P(Objects, WaitingPutGoesOnWhenADeleteMakesRoom) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.engine.arena_bytes = 256_KiB; });
  put_now(0, kA, {.size_bytes = 150'000});
  Request& put = cluster.put(0, kB, {.size_bytes = 150'000});
  cluster.run_for(100_ms);
  EXPECT_TRUE(put.is_pending());
  cluster.erase(1, kA);
  expect_value(put, 1_s);
}

TEST_P(Objects, PutThatWaitsForRoomIsToldThatALaterAttemptCame) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.engine.arena_bytes = 1_MiB; });
  put_now(0, kA, {.size_bytes = 500'000});
  Request& first = cluster.put(0, kB, {.size_bytes = 500'000});
  cluster.run_for(10_ms);
  put_now(0, kB, {.size_bytes = 100, .incarnation = Incarnation{2}});
  expect_error(first, Code::kObjectLost, 10_ms);
  expect_value(cluster.get(1, kB, true));
}

TEST_P(Objects, PutThatIsBeingWrittenIsNotTakenForTheSmallLaterAttemptOfAnotherNode) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.write_bytes_per_s = 1'000'000; });
  for (std::uint64_t number = 1; number <= 8; ++number) {  // some have their home on node 0
    const ObjectId object = object_named(number);
    Request& slow = cluster.put(0, object, {.size_bytes = 20'000});
    cluster.run_for(5_ms);
    put_now(1, object, {.size_bytes = 100, .incarnation = Incarnation{2}});
    expect_error(slow, Code::kObjectLost, 1_s);
    Request& get = cluster.get(0, object, true);
    expect_value(get);
    EXPECT_EQ(get.fetched.incarnation, Incarnation{2});
  }
}

TEST_P(Objects, SmallLaterAttemptReachesAReceiverThatHasPartOfTheLargeOne) {
  Cluster& cluster = start(3, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 2'000'000; });
  for (std::uint64_t number = 1; number <= 6; ++number) {
    const ObjectId object = object_named(number);
    put_now(0, object, {.size_bytes = 100'000});
    Request& get = cluster.get(1, object, true);
    cluster.run_for(20_ms);
    put_now(2, object, {.size_bytes = 100, .incarnation = Incarnation{2}});
    expect_value(get, 5_s);
  }
}

}  // namespace
}  // namespace hoplite::sim
