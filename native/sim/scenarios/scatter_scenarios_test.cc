// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter: each share is combined on the node of its reader, and nothing else moves.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

class Scatter : public Scenario {
 protected:
  static ObjectId source(std::size_t index) { return object_named(100 + index); }
  static ObjectId target(std::size_t index) { return object_named(500 + index); }

  // A cluster with a source of `parts` on every node.
  Cluster& with_sources(std::size_t nodes, const std::vector<Part>& parts) {
    Cluster& cluster = start(nodes, [](ClusterConfig& c) {
      c.network.rate_bytes_per_s = 20'000'000;
      c.engine.arena_bytes = 8_MiB;
    });
    parts_ = parts;
    for (const Part& part : parts) size_bytes_ += part.size_bytes;
    for (std::size_t i = 0; i < nodes; ++i) {
      put_now(i, source(i), {.size_bytes = size_bytes_, .parts = parts});
    }
    return cluster;
  }
  // The share of `reader`: bytes [begin, end) of every source. Asked for by node 0.
  Request& share(std::uint32_t reader, std::uint64_t begin, std::uint64_t end,
                 ReduceOptions options = {}) {
    const auto count = static_cast<std::uint32_t>(cluster_->size());
    options.source_count = options.count = count;
    options.everywhere = true;
    options.share = {size_bytes_, begin, reader};
    const ObjectMeta whole{size_bytes_, 1024, parts_, ""};
    for (const auto& run : runs_of(whole, {begin, end - begin})) {
      options.parts.push_back({run.dtype, run.range.size_bytes});
    }
    Request& reduce = cluster_->reduce(0, target(reader), options);
    for (std::uint32_t i = 0; i < count; ++i) cluster_->confirm(reduce, i, source(i));
    return reduce;
  }
  // All shares, in equal numbers of `bytes`.
  void share_all(std::uint64_t bytes, const ReduceOptions& options = {}) {
    for (std::uint32_t i = 0; i < cluster_->size(); ++i) {
      reduces_.push_back(&share(i, i * bytes, (i + 1) * bytes, options));
    }
  }

  std::vector<Part> parts_;
  std::uint64_t size_bytes_ = 0;
  std::vector<Request*> reduces_;
};
INSTANTIATE_TEST_SUITE_P(Stripes, Scatter, kStripeCounts, stripe_name);

TEST_P(Scatter, EachNodeSendsAndReceivesAllButItsOwnShare) {
  constexpr std::uint64_t kShare = 50'000;
  Cluster& cluster = with_sources(4, {{DType::kFloat32, 4 * kShare}});
  share_all(kShare);
  for (Request* reduce : reduces_) expect_value(*reduce);
  for (std::size_t i = 0; i < 4; ++i) {
    expect_value(cluster.get(i, target(i)));
    EXPECT_EQ(cluster.stats(i).bytes_sent, 3 * kShare) << "node " << i;
  }
  expect_value(cluster.get(1, target(2)));  // a share is an object like any other
}

TEST_P(Scatter, SharesBeginAndEndWhereTheyLike) {
  constexpr std::uint64_t kFloats = 32'064, kHalves = 21'312, kBytes = 12'345;
  Cluster& cluster = with_sources(
      3, {{DType::kFloat32, kFloats}, {DType::kBfloat16, kHalves}, {DType::kInt8, kBytes}});
  const ReduceOptions max{.op = ReduceOp::kMax};
  reduces_ = {&share(0, 12'004, kFloats, max), &share(1, kFloats + 14, kFloats + 19'998, max),
              &share(2, kFloats + kHalves + 1, size_bytes_, max)};
  for (Request* reduce : reduces_) expect_value(*reduce);
  for (std::size_t i = 0; i < 3; ++i) expect_value(cluster.get(i, target(i)));
}

TEST_P(Scatter, ASmallShareAndAnEmptyOneHaveTheirValues) {
  Cluster& cluster = with_sources(3, {{DType::kFloat32, 40'000}});
  reduces_ = {&share(0, 0, 80), &share(1, 80, 80), &share(2, 80, 40'000)};
  for (Request* reduce : reduces_) expect_value(*reduce);
  for (std::size_t i = 0; i < 3; ++i) expect_value(cluster.get(i, target(i)));
}

TEST_P(Scatter, ADeterministicOneHasTheBitsOfItsTree) {
  constexpr std::uint64_t kShare = 20'000;
  Cluster& cluster = with_sources(4, {{DType::kBfloat16, 4 * kShare}});
  share_all(kShare, {.op = ReduceOp::kMean, .deterministic = true});
  for (Request* reduce : reduces_) expect_value(*reduce);
  for (std::size_t i = 0; i < 4; ++i) expect_value(cluster.get(i, target(i)));
}

// Source 3 can be had from another node as well, and share 3 is folded anew there or elsewhere.
TEST_P(Scatter, OutlivesTheDeathOfAReader) {
  constexpr std::uint64_t kShare = 50'000;
  Cluster& cluster = with_sources(4, {{DType::kFloat32, 4 * kShare}});
  expect_value(cluster.get(2, source(3)));
  share_all(kShare);
  cluster.run_for(3_ms);
  cluster.crash(3);
  for (Request* reduce : reduces_) expect_value(*reduce);
  for (std::size_t i = 0; i < 3; ++i) {
    expect_value(cluster.get(i, target(3)));
    expect_value(cluster.get(i, target(i)));
  }
}

TEST_P(Scatter, FailsWithTheSourceThatNobodyHas) {
  constexpr std::uint64_t kShare = 50'000;
  Cluster& cluster = with_sources(4, {{DType::kFloat32, 4 * kShare}});
  share_all(kShare);
  cluster.run_for(3_ms);
  cluster.crash(3);
  for (Request* reduce : reduces_) expect_error(*reduce, Code::kReduceFailed);
}

TEST_P(Scatter, RefusesASourceOfAnotherSizeOrDtype) {
  for (const Part& other : {Part{DType::kFloat32, 40'064}, Part{DType::kInt32, 40'000}}) {
    TearDown();
    size_bytes_ = 0;
    Cluster& cluster = with_sources(3, {{DType::kFloat32, 40'000}});
    put_now(1, object_named(7), {.size_bytes = other.size_bytes, .parts = {other}});
    Request& reduce = cluster.reduce(0, target(0),
                                     {.source_count = 2,
                                      .count = 2,
                                      .share = {size_bytes_, 0, 0},
                                      .parts = {{DType::kFloat32, 20'000}}});
    cluster.confirm(reduce, 0, source(0));
    cluster.confirm(reduce, 1, object_named(7));
    expect_error(reduce, Code::kLayoutMismatch);
  }
}

}  // namespace
}  // namespace hoplite::sim
