// SPDX-License-Identifier: Apache-2.0
// How long things take in virtual time: pipelining, sharing of the origin, latency of small
// objects. The network model has no TCP and no CPU; bounds are those of the model.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

class Timing : public Scenario {
 protected:
  // 100 MB/s and blocks of 8 KiB: 4 MiB take 42 ms on a link.
  Cluster& start_timed(std::size_t nodes) {
    return start(nodes, [](ClusterConfig& c) {
      c.engine.arena_bytes = 16_MiB;
      c.engine.block_bytes_min = 8_KiB;
      c.engine.block_bytes_max = 8_KiB;
      c.engine.credit_bytes = 64_KiB;
      c.network.rate_bytes_per_s = 100'000'000;
      c.check_every = 100;
    });
  }
  static double ms(Duration duration) { return static_cast<double>(duration.ns) * 1e-6; }
  static constexpr std::uint64_t kSize = 4_MiB;
  static constexpr double kOneCopyMs = static_cast<double>(kSize) / 100e6 * 1e3;
};
INSTANTIATE_TEST_SUITE_P(Stripes, Timing, kStripeCounts, stripe_name);

const ObjectId kA = object_named(1);

TEST_P(Timing, OneHopTakesTheTimeOfTheBytes) {
  Cluster& cluster = start_timed(2);
  put_now(0, kA, {.size_bytes = kSize});
  Request& get = cluster.get(1, kA);
  expect_value(get);
  EXPECT_LT(ms(*get.answered - get.asked), 1.05 * kOneCopyMs);
}

TEST_P(Timing, TwoHopsTakeBarelyLongerThanOne) {
  Cluster& cluster = start_timed(3);
  put_now(0, kA, {.size_bytes = kSize});
  Request& near = cluster.get(1, kA);
  cluster.run_for(5_ms);
  Request& far = cluster.get(2, kA);
  expect_value(near);
  expect_value(far);
  EXPECT_LT(ms(*near.answered - near.asked), 1.1 * kOneCopyMs);
  EXPECT_LT(ms(*far.answered - near.asked), 1.1 * kOneCopyMs + 5.0);
}

TEST_P(Timing, EightReceiversTakeBarelyLongerThanOne) {
  Cluster& cluster = start_timed(9);
  put_now(0, kA, {.size_bytes = kSize});
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 9; ++node) gets.push_back(&cluster.get(node, kA));
  for (Request* get : gets) {
    expect_value(*get);
    EXPECT_LT(ms(*get->answered - get->asked), 1.35 * kOneCopyMs) << get->node;
  }
  EXPECT_LT(cluster.stats(0).blocks_sent, 2 * kSize / 8_KiB)
      << "the origin gave more than two copies";
}

// Receivers of an object that is there ask one after the other. A chain of them is cut only where
// it takes longer than a second copy, and so later on a slow link. Each frame takes 5 us of its
// ports, so blocks are larger on a fast link.
class MiddleSizes : public Scenario {
 protected:
  double times_one_copy(std::size_t nodes, std::uint64_t mbit, std::uint64_t size_bytes) {
    Cluster& cluster = start(nodes, [&](ClusterConfig& c) {
      c.engine.arena_bytes = 2 * size_bytes;
      c.engine.block_bytes_min = kBlockBytesMin;
      c.engine.block_bytes_max = kBlockBytesAimMax;
      c.engine.inline_bytes_max = kInlineBytesMax;
      c.engine.credit_bytes = EngineConfig{}.credit_bytes;
      c.engine.link_bytes_per_s = c.network.rate_bytes_per_s = mbit * 125'000;
      c.network.frame_time = 5_us;
      c.network.latency = 60_us;
      c.check_every = 1000;
    });
    put_now(0, object_named(1), {.size_bytes = size_bytes});
    std::vector<Request*> gets;
    for (std::size_t node = 1; node < nodes; ++node) {
      gets.push_back(&cluster.get(node, object_named(1)));
    }
    Duration longest{0};
    for (Request* get : gets) {
      expect_value(*get);
      longest = std::max(longest, *get->answered - get->asked);
    }
    TearDown();  // each cluster ends empty
    cluster_.reset();
    return static_cast<double>(longest.ns) * 1e-9 * static_cast<double>(mbit) * 125'000 /
           static_cast<double>(size_bytes);
  }
};
INSTANTIATE_TEST_SUITE_P(Stripes, MiddleSizes, ::testing::Values(0), stripe_name);

TEST_P(MiddleSizes, TakeLittleLongerThanOneCopy) {
  struct Case {
    std::size_t nodes;
    std::uint64_t mbit, size_bytes;
    double most;
  };
  const Case cases[] = {
      {5, 500, 256_KiB, 1.3},   {8, 500, 256_KiB, 1.45},    {10, 500, 256_KiB, 1.55},
      {12, 500, 256_KiB, 1.65}, {16, 500, 256_KiB, 1.9},    {12, 300, 256_KiB, 1.55},
      {12, 500, 1_MiB, 1.2},    {48, 10'000, 256_KiB, 8.0}, {8, 10'000, 1_MiB, 2.2},
      {8, 10'000, 4_MiB, 1.5},  {16, 10'000, 4_MiB, 1.8},   {64, 10'000, 4_MiB, 3.3},
      {8, 10'000, 32_MiB, 1.2},
  };
  for (const Case& each : cases) {
    EXPECT_LT(times_one_copy(each.nodes, each.mbit, each.size_bytes), each.most)
        << each.nodes << " nodes, " << each.mbit << " Mbit/s, " << each.size_bytes << " bytes";
  }
}

// 10 Gbit/s: a hop takes as long as 44 KiB (choose_depth).
TEST_P(Timing, ManyWhoAskOneAfterTheOtherAreNoChain) {
  constexpr std::uint64_t kBytes = 256_KiB;
  Cluster& cluster = start(48, [](ClusterConfig& c) {
    c.engine.arena_bytes = 1_MiB;
    c.engine.block_bytes_min = kBlockBytesMin;
    c.engine.block_bytes_max = kBlockBytesMax;
    c.engine.inline_bytes_max = kInlineBytesMax;
    c.network.rate_bytes_per_s = 1'250'000'000;
    c.check_every = 1000;
  });
  put_now(0, kA, {.size_bytes = kBytes});
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 48; ++node) gets.push_back(&cluster.get(node, kA));
  for (Request* get : gets) {
    expect_value(*get);
    EXPECT_LE(get->hops, 12U) << get->node;
    EXPECT_LT(ms(*get->answered - get->asked), 7 * static_cast<double>(kBytes) / 1.25e6);
  }
}

TEST_P(Timing, PutStreamsOutWhileItIsWritten) {
  Cluster& cluster = start(2, [](ClusterConfig& c) {
    c.engine.arena_bytes = 16_MiB;
    c.network.rate_bytes_per_s = 100'000'000;
    c.write_bytes_per_s = 100'000'000;
    c.check_every = 100;
  });
  Request& get = cluster.get(1, kA);
  Request& put = cluster.put(0, kA, {.size_bytes = kSize});
  expect_value(get);
  EXPECT_LT(ms(*get.answered - put.asked), 1.2 * kOneCopyMs);
}

TEST_P(Timing, ReduceToOneTakesAboutOneCopyPerOwner) {
  Cluster& cluster = start_timed(6);
  for (std::uint32_t i = 0; i < 4; ++i) {
    put_now(i, object_named(100 + i), {.size_bytes = kSize, .dtype = DType::kFloat32});
  }
  Request& reduce = cluster.reduce(5, kA, {.source_count = 4, .count = 4});
  Request& get = cluster.get(5, kA);
  for (std::uint32_t i = 0; i < 4; ++i) cluster.confirm(reduce, i, object_named(100 + i));
  expect_value(get);
  // Every owner takes four sources' share of its stripes through one port.
  const double owners = static_cast<double>(GetParam());
  EXPECT_LT(ms(*get.answered - get.asked), (4.0 / owners + 1.0) * 1.15 * kOneCopyMs);
}

TEST_P(Timing, SmallObjectsAreNotStuckBehindLargeOnes) {
  Cluster& cluster = start_timed(2);
  put_now(0, kA, {.size_bytes = kSize});
  cluster.get(1, kA);
  cluster.run_for(10_ms);
  put_now(0, object_named(2), {.size_bytes = 200});
  Request& get = cluster.get(1, object_named(2));
  expect_value(get);
  EXPECT_LT(ms(*get.answered - get.asked), 2.0);
}

}  // namespace
}  // namespace hoplite::sim
