// SPDX-License-Identifier: Apache-2.0
// Sources that are no plain puts of different objects: the same one twice, and other reduces'
// results, whole on one node or spread over their owners, committed or still to come. A reduce that
// waits for ever is the worst that can happen to these.
#include <algorithm>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

class ReduceSources : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  // Four nodes on a slow network, of which each has the source of its number.
  Cluster& start_slow(std::uint64_t size_bytes = 200'000) {
    TearDown();  // of the one before
    Cluster& cluster = start(4, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
    for (std::uint32_t i = 0; i < 4; ++i) {
      put_now(i, source(i), {.size_bytes = size_bytes, .dtype = DType::kFloat32});
    }
    return cluster;
  }
  Request& reduce_all(std::size_t node, const ObjectId& target,
                      const std::vector<ObjectId>& sources, ReduceOptions options = {}) {
    options.source_count = static_cast<std::uint32_t>(sources.size());
    if (options.count == 0) options.count = options.source_count;
    Request& reduce = cluster_->reduce(node, target, options);
    for (std::uint32_t i = 0; i < sources.size(); ++i) cluster_->confirm(reduce, i, sources[i]);
    return reduce;
  }
  void expect_members(Request& reduce, const std::vector<std::uint32_t>& members) {
    expect_value(reduce);
    std::vector<std::uint32_t> sorted = reduce.members;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, members);
  }

  const ObjectId kOnce = object_named(1), kTwice = object_named(2), kThrice = object_named(3);
};
INSTANTIATE_TEST_SUITE_P(Stripes, ReduceSources, kStripeCounts, stripe_name);

TEST_P(ReduceSources, TheSameOneTwiceCountsTwice) {
  for (const std::uint64_t size : {400, 200'000}) {
    for (const bool deterministic : {false, true}) {
      start_slow(size);
      Request& reduce =
          reduce_all(0, kOnce, {source(1), source(2), source(1)}, {.deterministic = deterministic});
      expect_members(reduce, {0, 1, 2});
      expect_value(cluster_->get(0, kOnce));
      expect_members(reduce_all(2, kTwice, {source(2), source(2)}), {0, 1});
      expect_value(cluster_->get(3, kTwice));
    }
  }
}

TEST_P(ReduceSources, TheSameOneAgainWhenItIsFoldedAlready) {
  Cluster& cluster = start_slow();
  Request& reduce = cluster.reduce(0, kOnce, {.source_count = 2, .count = 2});
  cluster.confirm(reduce, 0, source(1));
  cluster.run_for(1_s);
  cluster.confirm(reduce, 1, source(1));
  expect_members(reduce, {0, 1});
  expect_value(cluster.get(0, kOnce));
}

TEST_P(ReduceSources, TheSameOneTwiceIsReplacedTwice) {
  for (const int after_ms : {1, 5, 8, 12}) {  // half of it has gone to the other owners then
    Cluster& cluster = start_slow();
    Request& reduce = reduce_all(0, kOnce, {source(3), source(3), source(1), source(2)},
                                 {.count = 2, .everywhere = true});
    cluster.run_for(Duration{after_ms * 1'000'000});
    EXPECT_TRUE(reduce.is_pending());
    cluster.crash(3);
    expect_members(reduce, {2, 3});
    expect_value(cluster.get(0, kOnce));
  }
}

TEST_P(ReduceSources, AResultIsOneWhereverItsReadersAre) {
  for (const bool everywhere : {false, true}) {
    for (std::size_t caller = 0; caller < 4; ++caller) {
      Cluster& cluster = start_slow();
      expect_members(reduce_all(0, kOnce, {source(0), source(1)}, {.everywhere = everywhere}),
                     {0, 1});
      Request& early = cluster.get(2, kTwice);
      Request& reduce = reduce_all(caller, kTwice, {kOnce, source(2)}, {.everywhere = !everywhere});
      Request& once = cluster.get(3, kOnce);
      expect_members(reduce, {0, 1});
      expect_value(early);
      expect_value(once);
      expect_value(cluster.get(caller, kTwice));
    }
  }
}

TEST_P(ReduceSources, TheyAreFoldedWhereTheyAllAre) {
  Cluster& cluster = start_slow();
  expect_members(reduce_all(2, kOnce, {source(1), source(1)}), {0, 1});
  expect_value(cluster.get(2, kOnce));
  EXPECT_EQ(cluster.stats(2).blocks_received, cluster.stats(1).blocks_sent);
  for (const std::size_t other : {0, 1, 3}) EXPECT_EQ(cluster.stats(other).blocks_received, 0U);
}

// A node without a part in the reduce may leave at any time, because Ray removes idle nodes.
TEST_P(ReduceSources, NoOtherNodeHasAPartOfTheResult) {
  Cluster& cluster = start_slow();
  expect_members(reduce_all(0, kOnce, {source(0), source(1), source(1)}), {0, 1, 2});
  for (const std::size_t other : {2, 3}) cluster.crash(other);
  expect_value(cluster.get(0, kOnce));
}

TEST_P(ReduceSources, AResultMayStillHaveToCome) {
  for (const int after_ms : {0, 2, 20, 200}) {
    Cluster& cluster = start_slow();
    Request& thrice = cluster.reduce(3, kThrice, {.source_count = 2, .count = 2});
    cluster.announce(thrice, 0, kTwice);
    cluster.announce(thrice, 1, kOnce);
    Request& twice = cluster.reduce(2, kTwice, {.source_count = 2, .count = 2});
    cluster.announce(twice, 0, kOnce);
    cluster.confirm(twice, 1, source(2));
    cluster.run_for(Duration{after_ms * 1'000'000});
    reduce_all(1, kOnce, {source(0), source(1)});
    Request& get = cluster.get(1, kThrice);
    expect_members(twice, {0, 1});
    expect_members(thrice, {0, 1});
    expect_value(get);
  }
}

TEST_P(ReduceSources, AResultMayBeTheSameOneTwice) {
  start_slow();
  expect_value(reduce_all(0, kOnce, {source(0), source(1)}));
  expect_members(reduce_all(1, kTwice, {kOnce, kOnce}), {0, 1});
  expect_value(cluster_->get(2, kTwice));
}

TEST_P(ReduceSources, AResultMayGoWithItsOwner) {
  for (const int after_ms : {0, 2, 5, 10, 20}) {
    Cluster& cluster = start_slow();
    expect_value(reduce_all(0, kOnce, {source(0), source(1)}));
    Request& reduce = reduce_all(0, kTwice, {kOnce, source(0), source(1)}, {.count = 2});
    Request& poor = reduce_all(1, kThrice, {kOnce, source(0)});
    cluster.run_for(Duration{after_ms * 1'000'000});
    cluster.crash(2);
    cluster.crash(3);
    expect_value(reduce);
    expect_value(cluster.get(0, kTwice));
    EXPECT_TRUE(cluster.run_until_answered(poor));  // one way or the other
    EXPECT_TRUE(poor.has_value() || poor.code() == Code::kReduceFailed) << poor.error->text;
  }
}

TEST_P(ReduceSources, TheHomesMoveWhileAResultIsFolded) {
  for (const int after_ms : {0, 2, 5, 10, 20}) {
    Cluster& cluster = start_slow();
    expect_value(reduce_all(0, kOnce, {source(0), source(1)}));
    Request& reduce = reduce_all(3, kTwice, {kOnce, source(2)});
    cluster.run_for(Duration{after_ms * 1'000'000});
    for (int i = 0; i < 4; ++i) cluster.join();
    expect_members(reduce, {0, 1});
    expect_value(cluster.get(3, kTwice));
  }
}

}  // namespace
}  // namespace hoplite::sim
