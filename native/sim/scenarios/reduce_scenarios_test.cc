// SPDX-License-Identifier: Apache-2.0
// Reduces: scripted cases with sentences for names, each for one and for three owners.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

class Reduces : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  // Puts source `index` on `node`.
  Request& put_source(std::size_t node, std::uint32_t index, std::uint64_t size_bytes = 50'000,
                      DType dtype = DType::kFloat32) {
    return put_now(node, source(index), {.size_bytes = size_bytes, .dtype = dtype});
  }
  void expect_members(Request& reduce, const std::vector<std::uint32_t>& members) {
    expect_value(reduce);
    std::vector<std::uint32_t> sorted = reduce.members;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, members);
  }
};
INSTANTIATE_TEST_SUITE_P(Stripes, Reduces, kStripeCounts, stripe_name);

const ObjectId kTarget = object_named(1);

TEST_P(Reduces, AllSourcesOfEveryNodeAreFolded) {
  Cluster& cluster = start(4);
  for (std::uint32_t i = 0; i < 4; ++i) put_source(i, i);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 4, .count = 4});
  for (std::uint32_t i = 0; i < 4; ++i) cluster.confirm(reduce, i, source(i));
  expect_members(reduce, {0, 1, 2, 3});
  expect_value(cluster.get(0, kTarget));
  expect_value(cluster.get(3, kTarget));
}

TEST_P(Reduces, EveryDtypeAndOperationIsExact) {
  Cluster& cluster = start(3);
  std::uint32_t index = 0;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const ObjectId target = object_named(10 + index);
      Request& reduce = cluster.reduce(1, target, {.source_count = 3, .count = 3, .op = op});
      for (std::uint32_t i = 0; i < 3; ++i, ++index) {
        put_source(i, index, 20'000, dtype);
        cluster.confirm(reduce, i, source(index));
      }
      expect_members(reduce, {0, 1, 2});
      expect_value(cluster.get(2, target));
    }
  }
}

TEST_P(Reduces, EverySizeIsExact) {
  Cluster& cluster = start(3, [](ClusterConfig& c) { c.engine.inline_bytes_max = 1_KiB; });
  std::uint32_t index = 0;
  for (const std::uint64_t size :
       {8_B, 256_B, 1_KiB, 1_KiB + 8, 4_KiB - 8, 4_KiB, 4_KiB + 8, 64_KiB, 64_KiB + 8, 100'008_B}) {
    const ObjectId target = object_named(10 + index);
    Request& reduce = cluster.reduce(0, target, {.source_count = 2, .count = 2});
    for (std::uint32_t i = 0; i < 2; ++i, ++index) {
      put_source(i + 1, index, size, DType::kFloat64);
      cluster.confirm(reduce, i, source(index));
    }
    expect_members(reduce, {0, 1});
    Request& get = cluster.get(0, target);
    expect_value(get);
    EXPECT_EQ(get.bytes.size(), size);
  }
}

TEST_P(Reduces, TakesTheFirstCountInArrivalOrder) {
  Cluster& cluster = start(4);
  for (std::uint32_t i = 0; i < 8; ++i) put_source(i % 4, i);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 8, .count = 4});
  for (const std::uint32_t i : {6U, 1U, 3U, 4U, 0U, 2U, 5U, 7U}) {
    cluster.confirm(reduce, i, source(i));
  }
  expect_members(reduce, {1, 3, 4, 6});
  expect_value(cluster.get(2, kTarget));
}

TEST_P(Reduces, SourcesMayComeLongAfterTheReduce) {
  Cluster& cluster = start(3);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 3, .count = 2});
  Request& get = cluster.get(2, kTarget);
  cluster.run_for(3_s);
  put_source(1, 1);
  cluster.confirm(reduce, 1, source(1));
  cluster.run_for(3_s);
  EXPECT_TRUE(reduce.is_pending());
  EXPECT_TRUE(get.is_pending());
  put_source(2, 0);
  cluster.confirm(reduce, 0, source(0));
  expect_members(reduce, {0, 1});
  expect_value(get, 1_s);
}

TEST_P(Reduces, TwoSourcesOnOneNodeBothCount) {
  Cluster& cluster = start(3);
  put_source(1, 0);
  put_source(1, 1);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 2, .count = 2});
  cluster.confirm(reduce, 0, source(0));
  cluster.confirm(reduce, 1, source(1));
  expect_members(reduce, {0, 1});
  expect_value(cluster.get(1, kTarget));
}

TEST_P(Reduces, OneSourceIsACopy) {
  Cluster& cluster = start(3);
  put_source(1, 0);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 1, .count = 1});
  cluster.confirm(reduce, 0, source(0));
  expect_members(reduce, {0});
  Request& get = cluster.get(2, kTarget);
  expect_value(get);
  EXPECT_EQ(get.bytes, content_of(source(0), Incarnation{1}, {{DType::kFloat32, 50'000}}));
}

TEST_P(Reduces, WorksOnOneNodeAlone) {
  Cluster& cluster = start(1);
  put_source(0, 0);
  put_source(0, 1);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 2, .count = 2});
  cluster.confirm(reduce, 1, source(1));
  cluster.confirm(reduce, 0, source(0));
  expect_members(reduce, {0, 1});
  expect_value(cluster.get(0, kTarget));
}

TEST_P(Reduces, SourcesMayBeDeletedOnceItIsCommitted) {
  Cluster& cluster = start(4);
  for (std::uint32_t i = 0; i < 4; ++i) put_source(i, i);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 4, .count = 4});
  for (std::uint32_t i = 0; i < 4; ++i) cluster.confirm(reduce, i, source(i));
  expect_members(reduce, {0, 1, 2, 3});
  for (std::uint32_t i = 0; i < 4; ++i) cluster.erase(i, source(i));
  cluster.run_for(1_s);
  expect_value(cluster.get(3, kTarget));
}

TEST_P(Reduces, ReplacesALostSourceByASpare) {
  Cluster& cluster = start(5, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  for (std::uint32_t i = 0; i < 4; ++i) put_source(i + 1, i, 400'000);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 4, .count = 3});
  for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, source(i));
  cluster.run_for(15_ms);  // the fold is under way
  cluster.crash(2);        // held source 1 alone
  cluster.run_for(500_ms);
  EXPECT_TRUE(reduce.is_pending());
  cluster.confirm(reduce, 3, source(3));
  expect_members(reduce, {0, 2, 3});
  expect_value(cluster.get(0, kTarget));
}

TEST_P(Reduces, TakesASpareThatWasConfirmedBeforeTheLoss) {
  Cluster& cluster = start(6, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  for (std::uint32_t i = 0; i < 5; ++i) put_source(i + 1, i, 400'000);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 5, .count = 3});
  for (std::uint32_t i = 0; i < 5; ++i) cluster.confirm(reduce, i, source(i));
  cluster.run_for(15_ms);
  cluster.crash(1);
  cluster.crash(3);  // two participants at once
  expect_members(reduce, {1, 3, 4});
  expect_value(cluster.get(0, kTarget));
}

TEST_P(Reduces, FailsWhenTooFewSourcesAreLeft) {
  Cluster& cluster = start(4, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  for (std::uint32_t i = 0; i < 3; ++i) put_source(i + 1, i, 400'000);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 3, .count = 3});
  Request& get = cluster.get(0, kTarget);
  for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, source(i));
  cluster.run_for(15_ms);
  cluster.crash(2);
  expect_error(reduce, Code::kReduceFailed, 5_s);
  EXPECT_TRUE(cluster.run_until_answered(get, 5_s));
  EXPECT_NE(get.code(), Code::kOk);
}

TEST_P(Reduces, SkipsSourcesThatWillNeverCome) {
  Cluster& cluster = start(3);
  for (std::uint32_t i = 0; i < 4; ++i) put_source(i % 3, i);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 4, .count = 2});
  cluster.fail_source(reduce, 0);
  cluster.confirm(reduce, 3, source(3));
  cluster.fail_source(reduce, 1);
  cluster.confirm(reduce, 2, source(2));
  expect_members(reduce, {2, 3});
}

TEST_P(Reduces, FailsAtOnceWhenTooManySourcesWillNeverCome) {
  Cluster& cluster = start(3);
  put_source(0, 0);
  Request& reduce = cluster.reduce(1, kTarget, {.source_count = 3, .count = 2});
  cluster.confirm(reduce, 0, source(0));
  cluster.fail_source(reduce, 1);
  cluster.run_for(1_s);
  EXPECT_TRUE(reduce.is_pending());
  cluster.fail_source(reduce, 2);
  expect_error(reduce, Code::kReduceFailed, 100_ms);
}

TEST_P(Reduces, OwnerDiesAndItsStripesMove) {
  // Nodes 5 to 8 hold no source, so all sources survive the deaths of owners among them.
  for (std::size_t victim = 4; victim < 8; ++victim) {
    Cluster& cluster = start(8, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
    for (std::uint32_t i = 0; i < 3; ++i) put_source(i + 1, i, 300'000);
    Request& reduce = cluster.reduce(0, kTarget, {.source_count = 3, .count = 3});
    for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, source(i));
    cluster.run_for(15_ms);
    cluster.crash(victim);
    expect_members(reduce, {0, 1, 2});
    expect_value(cluster.get(0, kTarget));
    TearDown();
  }
}

TEST_P(Reduces, AnyNodeButTheCallersMayDieWhenSpareCopiesOfTheSourcesExist) {
  for (std::size_t victim = 1; victim < 5; ++victim) {
    Cluster& cluster = start(5, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
    for (std::uint32_t i = 0; i < 3; ++i) put_source(i + 1, i, 200'000);
    for (std::uint32_t i = 0; i < 3; ++i) expect_value(cluster.get((i + 1) % 4 + 1, source(i)));
    Request& reduce = cluster.reduce(0, kTarget, {.source_count = 3, .count = 3});
    for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, source(i));
    cluster.run_for(12_ms);
    cluster.crash(victim);
    expect_members(reduce, {0, 1, 2});
    expect_value(cluster.get(0, kTarget));
    TearDown();
  }
}

TEST_P(Reduces, CallersDeathLeavesNothing) {
  Cluster& cluster = start(4, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  for (std::uint32_t i = 0; i < 3; ++i) put_source(i + 1, i, 400'000);
  Request& reduce =
      cluster.reduce(0, kTarget, {.source_count = 3, .count = 3, .client = ClientId{9}});
  for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, source(i));
  cluster.run_for(15_ms);
  cluster.kill_client(0, ClientId{9});
  cluster.run_for(2_s);
}

TEST_P(Reduces, CancelledReduceIsAnsweredAndLeavesNothing) {
  Cluster& cluster = start(4, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
  for (std::uint32_t i = 0; i < 3; ++i) put_source(i + 1, i, 400'000);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 3, .count = 3});
  for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, source(i));
  cluster.run_for(15_ms);
  cluster.cancel(reduce);
  expect_error(reduce, Code::kCancelled, 10_ms);
}

TEST_P(Reduces, SourcesOfDifferentSizesAreRefused) {
  Cluster& cluster = start(3);
  put_source(1, 0, 50'000);
  put_source(2, 1, 60'000);
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 2, .count = 2});
  cluster.confirm(reduce, 0, source(0));
  cluster.confirm(reduce, 1, source(1));
  expect_error(reduce, Code::kLayoutMismatch, 5_s);
}

TEST_P(Reduces, TwoReducesOverTheSameSourcesBothFinish) {
  Cluster& cluster = start(4);
  const ObjectId other = object_named(2);
  for (std::uint32_t i = 0; i < 4; ++i) put_source(i, i);
  Request& sum = cluster.reduce(0, kTarget, {.source_count = 4, .count = 4});
  Request& largest =
      cluster.reduce(3, other, {.source_count = 4, .count = 4, .op = ReduceOp::kMax});
  for (std::uint32_t i = 0; i < 4; ++i) {
    cluster.confirm(sum, i, source(i));
    cluster.confirm(largest, 3 - i, source(i));
  }
  expect_members(sum, {0, 1, 2, 3});
  expect_members(largest, {0, 1, 2, 3});
  expect_value(cluster.get(3, kTarget));
  expect_value(cluster.get(0, other));
}

TEST_P(Reduces, ResultIsASourceOfTheNextReduce) {
  Cluster& cluster = start(3);
  const ObjectId other = object_named(2);
  for (std::uint32_t i = 0; i < 2; ++i) put_source(i, i);
  Request& first = cluster.reduce(0, kTarget, {.source_count = 2, .count = 2});
  for (std::uint32_t i = 0; i < 2; ++i) cluster.confirm(first, i, source(i));
  expect_members(first, {0, 1});
  Request& second = cluster.reduce(1, other, {.source_count = 1, .count = 1});
  cluster.confirm(second, 0, kTarget);
  expect_members(second, {0});
  Request& once = cluster.get(2, kTarget);
  Request& twice = cluster.get(2, other);
  expect_value(once);
  cluster.run_until_answered(twice);
  EXPECT_EQ(once.bytes, twice.bytes);
}

}  // namespace
}  // namespace hoplite::sim
