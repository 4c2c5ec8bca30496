// SPDX-License-Identifier: Apache-2.0
// Reduces of every kind of element: parts of several dtypes, 16-bit floats and means, through the
// deaths and moves that make their owners begin again.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

class ReduceKinds : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  Request& put_source(std::size_t node, std::uint32_t index, const std::vector<Part>& parts) {
    std::uint64_t size = 0;
    for (const Part& part : parts) size += part.size_bytes;
    return put_now(node, source(index), {.size_bytes = size, .parts = parts});
  }
  // `count` sources on the nodes from 1 on, all confirmed, and a slow network; the caller is node
  // 0.
  Request& start_slow(std::size_t nodes, std::uint32_t count, ReduceOp op,
                      const std::vector<Part>& parts) {
    TearDown();  // of the one before
    Cluster& cluster =
        start(nodes, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
    for (std::uint32_t i = 0; i < count; ++i) put_source(1 + i % (nodes - 1), i, parts);
    Request& reduce =
        cluster.reduce(0, kTarget, {.source_count = count, .count = kMembers, .op = op});
    for (std::uint32_t i = 0; i < count; ++i) cluster.confirm(reduce, i, source(i));
    return reduce;
  }

  static constexpr std::uint32_t kMembers = 3;
  const ObjectId kTarget = object_named(1);
  // None of them ends where a block does.
  const std::vector<Part> kMixed{{DType::kFloat32, 64 * 1001},
                                 {DType::kBfloat16, 64 * 2003},
                                 {DType::kFloat16, 64 * 501},
                                 {DType::kFloat64, 64 * 999},
                                 {DType::kBfloat16, 10'002}};
};
INSTANTIATE_TEST_SUITE_P(Stripes, ReduceKinds, kStripeCounts, stripe_name);

TEST_P(ReduceKinds, EveryDtypeAndOperationHasItsValue) {
  Cluster& cluster = start(3, [](ClusterConfig& c) { c.engine.arena_bytes = 32_MiB; });
  std::uint32_t index = 0;
  for (int dtype = 1; dtype < kDTypeCount; ++dtype) {
    for (int number = 0; number < kReduceOpCount; ++number) {
      const auto op = static_cast<ReduceOp>(number);
      if (!can_reduce(static_cast<DType>(dtype), op)) continue;
      for (const std::uint64_t size : {8, 20'000}) {
        const ObjectId target = object_named(10'000 + index);
        Request& reduce = cluster.reduce(1, target, {.source_count = 3, .count = 3, .op = op});
        for (std::uint32_t i = 0; i < 3; ++i, ++index) {
          put_source(i, index, {{static_cast<DType>(dtype), size}});
          cluster.confirm(reduce, i, source(index));
        }
        expect_value(reduce);
        expect_value(cluster.get(2, target));
      }
    }
  }
}

TEST_P(ReduceKinds, PartsAreFoldedEachAsWhatItIs) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd, ReduceOp::kMean}) {
    Request& reduce = start_slow(4, 3, op, kMixed);
    expect_value(reduce);
    for (std::size_t node = 0; node < 4; ++node) expect_value(cluster_->get(node, kTarget));
  }
}

TEST_P(ReduceKinds, PartsMayBeSmallTogether) {
  Request& reduce = start_slow(
      3, 3, ReduceOp::kMean, {{DType::kBfloat16, 64}, {DType::kFloat32, 64}, {DType::kFloat16, 6}});
  expect_value(reduce);
  expect_value(cluster_->get(1, kTarget));
}

TEST_P(ReduceKinds, AnEmptySourceHasAnEmptyMean) {
  Request& reduce = start_slow(3, 3, ReduceOp::kMean, {});
  expect_value(reduce);
  Request& get = cluster_->get(2, kTarget);
  expect_value(get);
  EXPECT_TRUE(get.bytes.empty());
}

TEST_P(ReduceKinds, EverywhereIsTheCallersNodeToo) {
  Cluster& cluster = start(3);
  for (std::uint32_t i = 0; i < 3; ++i) put_source(i, i, kMixed);
  Request& reduce = cluster.reduce(
      0, kTarget, {.source_count = 3, .count = 3, .op = ReduceOp::kMean, .everywhere = true});
  for (std::uint32_t i = 0; i < 3; ++i) cluster.confirm(reduce, i, source(i));
  expect_value(reduce);
  for (std::size_t node = 0; node < 3; ++node) expect_value(cluster.get(node, kTarget));
}

TEST_P(ReduceKinds, EverywhereIsThereBeforeAnybodyAsksForIt) {
  if (GetParam() != 0) return;  // fewer owners than nodes
  Cluster& cluster = start(4);
  for (std::uint32_t i = 0; i < 4; ++i) put_source(i, i, {{DType::kFloat32, 400'000}});
  Request& reduce = cluster.reduce(0, kTarget, {.source_count = 4, .count = 4, .everywhere = true});
  for (std::uint32_t i = 0; i < 4; ++i) cluster.confirm(reduce, i, source(i));
  expect_value(reduce);
  cluster.run_for(100_ms);
  const auto sent = [&] {
    std::uint64_t bytes = 0;
    for (std::size_t node = 0; node < 4; ++node) bytes += cluster.stats(node).bytes_sent;
    return bytes;
  };
  const std::uint64_t before = sent();
  for (std::size_t node = 0; node < 4; ++node) expect_value(cluster.get(node, kTarget));
  EXPECT_EQ(sent(), before);
}

TEST_P(ReduceKinds, WhatADtypeHasNotIsRefusedToAllWhoWait) {
  const std::vector<std::pair<DType, ReduceOp>> cases{{DType::kBool, ReduceOp::kSum},
                                                      {DType::kInt32, ReduceOp::kMean},
                                                      {DType::kOpaque, ReduceOp::kMax}};
  for (const auto& [dtype, op] : cases) {
    for (const std::uint64_t size : {64, 50'048}) {
      TearDown();  // of the one before
      Cluster& cluster = start(3);
      for (std::uint32_t i = 0; i < 2; ++i)
        put_source(i, i, {{DType::kFloat32, size}, {dtype, size}});
      Request& early = cluster.get(2, kTarget);
      Request& reduce = cluster.reduce(0, kTarget, {.source_count = 2, .count = 2, .op = op});
      for (std::uint32_t i = 0; i < 2; ++i) cluster.confirm(reduce, i, source(i));
      expect_error(reduce, Code::kInvalidArgument, 5_s);
      EXPECT_NE(reduce.error->text.find(kDTypeNames[static_cast<std::size_t>(dtype)]),
                std::string::npos)
          << reduce.error->text;
      expect_error(early, Code::kInvalidArgument, 5_s);
    }
  }
}

TEST_P(ReduceKinds, AMeansMemberDiesAndItsBlocksAreFoldedAnew) {
  for (const int after_ms : {2, 5, 10, 15}) {
    Request& reduce = start_slow(6, 5, ReduceOp::kMean, kMixed);
    cluster_->run_for(Duration{after_ms * 1'000'000});
    ASSERT_TRUE(reduce.is_pending());
    cluster_->crash(2);
    expect_value(reduce);
    EXPECT_EQ(reduce.members.size(), kMembers);
    expect_value(cluster_->get(0, kTarget));
  }
}

TEST_P(ReduceKinds, AnOwnerDiesAndItsStripesMoveWithTheirAccumulators) {
  for (const int after_ms : {2, 5, 10, 15}) {
    Request& reduce = start_slow(5, 3, ReduceOp::kMean, kMixed);  // node 4 has no source
    cluster_->run_for(Duration{after_ms * 1'000'000});
    ASSERT_TRUE(reduce.is_pending());
    cluster_->crash(4);
    expect_value(reduce);
    expect_value(cluster_->get(0, kTarget));
  }
}

TEST_P(ReduceKinds, TheHomeMovesToANodeThatJoins) {
  for (const int after_ms : {2, 5, 10, 15}) {
    Request& reduce = start_slow(4, 3, ReduceOp::kMean, kMixed);
    cluster_->run_for(Duration{after_ms * 1'000'000});
    ASSERT_TRUE(reduce.is_pending());
    for (int i = 0; i < 4; ++i) cluster_->join();
    expect_value(reduce);
    expect_value(cluster_->get(0, kTarget));
  }
}

TEST_P(ReduceKinds, SourcesOfOtherPartsDoNotFit) {
  Cluster& cluster = start(3);
  put_source(0, 0, {{DType::kFloat32, 40'000}});
  put_source(1, 1, {{DType::kInt32, 40'000}});
  Request& reduce = cluster.reduce(2, kTarget, {.source_count = 2, .count = 2});
  for (std::uint32_t i = 0; i < 2; ++i) cluster.confirm(reduce, i, source(i));
  expect_error(reduce, Code::kLayoutMismatch, 5_s);
}

}  // namespace
}  // namespace hoplite::sim
