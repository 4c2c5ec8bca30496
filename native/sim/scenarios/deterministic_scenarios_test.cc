// SPDX-License-Identifier: Apache-2.0
// Deterministic reduces of floats whose sums depend on their order: equal members have equal bits,
// whatever the order of arrival, the owners, and what dies meanwhile. The checker compares each
// value with the tree over source indices.
#include <algorithm>
#include <numeric>

#include "base/prng.h"
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

class DeterministicReduces : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  void put_source(std::size_t node, std::uint32_t index, const std::vector<Part>& parts) {
    std::uint64_t size = 0;
    for (const Part& part : parts) size += part.size_bytes;
    put_now(node, source(index), {.size_bytes = size, .parts = parts, .rough = true});
  }
  // Sources on the nodes from 1 on, of which the first kMembers are confirmed in `order`.
  Request& start_in(const std::vector<std::uint32_t>& order, const std::vector<Part>& parts,
                    ReduceOp op = ReduceOp::kSum, std::uint64_t rate_bytes_per_s = 5'000'000,
                    std::size_t nodes = 6) {
    TearDown();  // of the one before
    Cluster& cluster = start(nodes, [&](ClusterConfig& c) {
      c.network.rate_bytes_per_s = rate_bytes_per_s;
      c.seed = order[0] + 1;
    });
    for (std::uint32_t i = 0; i < kSources; ++i) put_source(1 + i % (nodes - 1), i, parts);
    Request& reduce = cluster.reduce(
        0, kTarget, {.source_count = kSources, .count = kMembers, .op = op, .deterministic = true});
    for (const std::uint32_t i : order) cluster.confirm(reduce, i, source(i));
    return reduce;
  }
  Bytes value(std::size_t node) {
    Request& get = cluster_->get(node, kTarget);
    expect_value(get);
    return get.bytes;
  }

  static constexpr std::uint32_t kSources = 7, kMembers = 5;
  const ObjectId kTarget = object_named(1);
  const std::vector<Part> kMixed{{DType::kFloat32, 64 * 301},
                                 {DType::kBfloat16, 64 * 503},
                                 {DType::kInt16, 64 * 11},
                                 {DType::kFloat64, 64 * 299},
                                 {DType::kFloat16, 10'002}};
  Prng prng_{11};
};
INSTANTIATE_TEST_SUITE_P(Stripes, DeterministicReduces, kStripeCounts, stripe_name);

TEST_P(DeterministicReduces, TenOrdersOfArrivalGiveTheSameBits) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMean}) {
    std::vector<std::uint32_t> order{0, 2, 3, 5, 6};
    Bytes first;
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<Part> parts = kMixed;
      if (op == ReduceOp::kMean) parts[2].dtype = DType::kFloat16;
      expect_value(start_in(order, parts, op, 50'000'000));
      const Bytes bytes = value(turn % 6);
      if (turn == 0) first = bytes;
      EXPECT_EQ(bytes, first) << "order " << turn;
      for (std::size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[prng_.below(i)]);
      }
    }
  }
}

TEST_P(DeterministicReduces, TheBitsDependOnTheOrderOtherwise) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16}) {
    const std::vector<Part> parts{{dtype, 64 * 500}};
    std::vector<Bytes> contents;
    for (std::uint32_t i = 0; i < kMembers; ++i) {
      contents.push_back(content_of(source(i), Incarnation{1}, parts, true));
    }
    std::vector<std::span<const std::byte>> sources(contents.begin(), contents.end());
    const Bytes forwards = reduce_all(parts, ReduceOp::kSum, sources);
    std::reverse(sources.begin(), sources.end());
    EXPECT_NE(forwards, reduce_all(parts, ReduceOp::kSum, sources)) << "these tests test nothing";
  }
}

TEST_P(DeterministicReduces, ASparesTreeIsTheOneItWouldHaveHadFromTheStart) {
  for (const int after_ms : {2, 6, 12}) {
    Request& reduce = start_in({6, 0, 3, 1, 2, 5}, kMixed);
    cluster_->run_for(Duration{after_ms * 1'000'000});
    ASSERT_TRUE(reduce.is_pending());
    cluster_->crash(4);  // held source 3 alone
    expect_value(reduce);
    EXPECT_FALSE(std::count(reduce.members.begin(), reduce.members.end(), 3U));
    value(0);
  }
}

TEST_P(DeterministicReduces, OwnersThatDieChangeNoBits) {
  for (const int after_ms : {2, 6, 12}) {
    Request& reduce = start_in({6, 0, 3, 1, 2}, kMixed, ReduceOp::kProd, 5'000'000, 10);
    cluster_->run_for(Duration{after_ms * 1'000'000});
    ASSERT_TRUE(reduce.is_pending());
    cluster_->crash(8);  // holds no source
    expect_value(reduce);
    value(0);
  }
}

TEST_P(DeterministicReduces, TheHomeMayMoveMeanwhile) {
  for (const int after_ms : {2, 6, 12}) {
    Request& reduce = start_in({6, 0, 3, 1, 2}, kMixed);
    cluster_->run_for(Duration{after_ms * 1'000'000});
    ASSERT_TRUE(reduce.is_pending());
    for (int i = 0; i < 4; ++i) cluster_->join();
    expect_value(reduce);
    value(0);
  }
}

TEST_P(DeterministicReduces, WorkForAllSizesAndForAllNodes) {
  for (const std::uint64_t size : {2, 200, 4096, 4098, 60'000}) {
    TearDown();  // of the one before
    Cluster& cluster = start(3);
    for (std::uint32_t i = 0; i < 4; ++i) put_source(i % 3, i, {{DType::kBfloat16, size}});
    Request& reduce = cluster.reduce(
        0, kTarget, {.source_count = 4, .count = 4, .everywhere = true, .deterministic = true});
    for (const std::uint32_t i : {2, 3, 1, 0}) cluster.confirm(reduce, i, source(i));
    expect_value(reduce);
    for (std::size_t node = 0; node < 3; ++node) value(node);
  }
}

TEST_P(DeterministicReduces, AreRefusedWhenTheArenaIsTooSmallForWhatMayWait) {
  Cluster& cluster = start(2, [](ClusterConfig& c) { c.engine.arena_bytes = 4_MiB; });
  constexpr std::uint32_t kMany = 56;
  for (std::uint32_t i = 0; i < kMany; ++i) {
    put_source(1, i, {{DType::kFloat32, 50'000}});
  }
  Request& reduce =
      cluster.reduce(0, kTarget, {.source_count = kMany, .count = kMany, .deterministic = true});
  for (std::uint32_t i = 0; i < kMany; ++i) cluster.confirm(reduce, i, source(i));
  cluster.checker().allow_store_full();
  expect_error(reduce, Code::kStoreFull, 30_s);
}

}  // namespace
}  // namespace hoplite::sim
