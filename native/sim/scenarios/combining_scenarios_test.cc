// SPDX-License-Identifier: Apache-2.0
// Several sources of one reduce on one node: combined there, and sent as one.
#include <algorithm>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kSize = 192'000;  // a stripe of each of three owners: 64,000 bytes

class Combining : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  // `each` sources on each of four nodes, all confirmed at once; the caller is node 0.
  Request& reduce_of(std::uint32_t each, ReduceOptions options = {},
                     const std::function<void(ClusterConfig&)>& tweak = {}) {
    Cluster& cluster = start(4, [&](ClusterConfig& c) {
      c.network.rate_bytes_per_s = 20'000'000;
      c.engine.arena_bytes = 8_MiB;
      c.engine.reduce_stripes = 0;
      if (tweak) tweak(c);
    });
    options.source_count = std::max(options.source_count, 4 * each);
    if (options.count == 0) options.count = options.source_count;
    for (std::uint32_t i = 0; i < 4 * each; ++i) {
      put_now(i % 4, source(i),
              {.size_bytes = kSize, .dtype = dtype_, .rough = options.deterministic});
    }
    Request& reduce = cluster.reduce(0, kTarget, options);
    for (std::uint32_t i = 0; i < 4 * each; ++i) cluster.confirm(reduce, i, source(i));
    return reduce;
  }
  std::uint64_t bytes_sent() {
    std::uint64_t bytes = 0;
    for (std::size_t node = 0; node < 4; ++node) bytes += cluster_->stats(node).bytes_sent;
    return bytes;
  }
  std::uint64_t blocks_combined() {
    std::uint64_t blocks = 0;
    for (std::size_t node = 0; node < 4; ++node) blocks += cluster_->stats(node).blocks_combined;
    return blocks;
  }

  DType dtype_ = DType::kFloat32;
  const ObjectId kTarget = object_named(1);
};
INSTANTIATE_TEST_SUITE_P(Stripes, Combining, kStripeCounts, stripe_name);

// Three owners pull their third from the three other nodes, however many sources these have.
TEST_P(Combining, TheWireCarriesOneCopyOfEachNode) {
  for (const std::uint32_t each : {1U, 2U, 5U}) {
    TearDown();
    Request& reduce = reduce_of(each);
    expect_value(reduce);
    EXPECT_EQ(bytes_sent(), 3 * kSize) << each << " sources on each node";
    EXPECT_EQ(blocks_combined() > 0, each > 1);
    for (std::size_t node = 0; node < 4; ++node) expect_value(cluster_->get(node, kTarget));
  }
}

TEST_P(Combining, EveryOperationHasItsValue) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd, ReduceOp::kMean}) {
    TearDown();
    Request& reduce = reduce_of(3, {.op = op, .everywhere = true});
    expect_value(reduce);
    EXPECT_GT(blocks_combined(), 0U);
    expect_value(cluster_->get(2, kTarget));
  }
}

// The order in which they would be combined is not that of its tree; a 16-bit partial would be
// rounded more than once.
TEST_P(Combining, ADeterministicReduceAndHalvesTakeEachSourceByItself) {
  for (const bool deterministic : {true, false}) {
    TearDown();
    dtype_ = deterministic ? DType::kFloat32 : DType::kBfloat16;
    Request& reduce = reduce_of(2, {.deterministic = deterministic});
    expect_value(reduce);
    EXPECT_EQ(blocks_combined(), 0U);
    EXPECT_EQ(bytes_sent(), 6 * kSize);
    expect_value(cluster_->get(1, kTarget));
  }
}

// Source 4 is on node 0 with source 0: the blocks that both went into are made again with a spare.
TEST_P(Combining, ASpareReplacesOneOfThoseThatWereCombined) {
  Request& reduce = reduce_of(3, {.count = 9});
  cluster_->run_for(4_ms);
  EXPECT_GT(blocks_combined(), 0U);
  EXPECT_TRUE(reduce.is_pending());
  cluster_->erase(0, source(4));
  expect_value(reduce);
  for (std::size_t node = 0; node < 4; ++node) expect_value(cluster_->get(node, kTarget));
}

TEST_P(Combining, TheDeathOfTheirNodeLeavesTheOthersToTheSpares) {
  Request& reduce = reduce_of(3, {.count = 8});
  cluster_->run_for(4_ms);
  cluster_->crash(3);
  expect_value(reduce);
  for (std::size_t node = 0; node < 3; ++node) expect_value(cluster_->get(node, kTarget));
}

// Node 2 has a copy of one of the two that node 3 combines: that one comes from there.
TEST_P(Combining, OneOfTwoMayBeHadElsewhereWhenTheirNodeDies) {
  Request& reduce = reduce_of(2, {.count = 7});
  Request& copy = cluster_->get(2, source(7));
  expect_value(copy);
  cluster_->crash(3);
  expect_value(reduce);
  expect_value(cluster_->get(1, kTarget));
}

TEST_P(Combining, WithoutMemoryForItEachIsSentByItself) {
  Request& reduce = reduce_of(2, {}, [](ClusterConfig& c) {
    c.engine.arena_bytes = 1'000'000;  // its own two sources, an owner's result and slots, no more
  });
  expect_value(reduce);
  expect_value(cluster_->get(1, kTarget));
}

TEST_P(Combining, TheSameOneTwiceIsBesideItself) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kMean}) {
    TearDown();
    Cluster& cluster = start(2, [](ClusterConfig& c) { c.engine.arena_bytes = 8_MiB; });
    put_now(1, source(0), {.size_bytes = kSize, .dtype = DType::kFloat64});
    put_now(1, source(1), {.size_bytes = kSize, .dtype = DType::kFloat64});
    Request& reduce = cluster.reduce(0, kTarget, {.source_count = 3, .count = 3, .op = op});
    for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, source(i / 2));
    expect_value(cluster.get(0, kTarget));
    expect_value(reduce);
  }
}

// The second one of node 3 is put when the first is on its way: each comes by itself, once.
TEST_P(Combining, ALateOneComesByItself) {
  for (const std::int64_t after_ms : {0, 1, 4, 8}) {
    TearDown();
    Request& reduce = reduce_of(1, {.source_count = 5});
    cluster_->run_for(Duration{after_ms * 1'000'000});
    EXPECT_TRUE(reduce.is_pending());
    put_now(3, source(4), {.size_bytes = kSize, .dtype = dtype_});
    cluster_->confirm(reduce, 4, source(4));
    expect_value(reduce);
    expect_value(cluster_->get(0, kTarget));
  }
}

// The link to one owner breaks: what it had of them stays, and each is located anew, one after the
// other, so that the rest comes of each by itself.
TEST_P(Combining, ALinkThatBreaksIsResumedBlockByBlock) {
  for (const std::int64_t after_ms : {1, 3, 6}) {
    TearDown();
    Request& reduce = reduce_of(3);
    cluster_->run_for(Duration{after_ms * 1'000'000});
    EXPECT_TRUE(reduce.is_pending());
    cluster_->reset_link(1, 3);
    expect_value(reduce);
    EXPECT_LT(bytes_sent(), 5 * kSize);
    expect_value(cluster_->get(0, kTarget));
  }
}

// A task that made a source is run again, on its old node: the bytes of its first life are void.
TEST_P(Combining, OneOfThemIsPutAgain) {
  for (const std::int64_t after_ms : {1, 4, 8}) {
    TearDown();
    Request& reduce = reduce_of(2);
    cluster_->run_for(Duration{after_ms * 1'000'000});
    EXPECT_TRUE(reduce.is_pending());
    cluster_->put(3, source(7),
                  {.size_bytes = kSize, .dtype = dtype_, .incarnation = Incarnation{2}});
    EXPECT_TRUE(cluster_->run_until_answered(reduce));
    EXPECT_TRUE(reduce.has_value() || reduce.code() == Code::kReduceFailed);
  }
}

// A share of a reduce-scatter: the range that is wanted is combined, and no more.
TEST_P(Combining, AShareIsCombinedToo) {
  constexpr std::uint64_t kBegin = 64'000, kEnd = 128'004;
  Cluster& cluster = start(3, [](ClusterConfig& c) { c.engine.arena_bytes = 8_MiB; });
  for (std::uint32_t i = 0; i < 9; ++i) {
    put_now(i % 3, source(i), {.size_bytes = kSize, .dtype = DType::kFloat32});
  }
  ReduceOptions options{.source_count = 9, .count = 9, .everywhere = true};
  options.share = {kSize, kBegin, 4};
  options.parts = {{DType::kFloat32, kEnd - kBegin}};
  Request& reduce = cluster.reduce(0, kTarget, options);
  for (std::uint32_t i = 0; i < 9; ++i) cluster.confirm(reduce, i, source(i));
  expect_value(reduce);
  for (const std::size_t node : {0UL, 2UL}) {
    EXPECT_EQ(cluster.stats(node).bytes_sent, kEnd - kBegin);
    EXPECT_GT(cluster.stats(node).blocks_combined, 0U);
  }
  expect_value(cluster.get(1, kTarget));
}

}  // namespace
}  // namespace hoplite::sim
