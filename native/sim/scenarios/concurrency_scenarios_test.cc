// SPDX-License-Identifier: Apache-2.0
// Many objects at once: small ones beside large ones, short ones beside long ones, whole lists at
// once, and receivers that are slow or frozen beside others. In virtual time, on links of 10 Gbit/s
// scaled as in broadcast_scenarios_test.cc: a block is 8 KiB and takes as long as 1 MiB would.
#include <algorithm>
#include <numeric>

#include "plan/links/membership.h"
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kBlockBytes = 8_KiB;
constexpr std::uint64_t kFrameBytes = kBlockBytes + 88;
constexpr std::int64_t kBlockNs = 838'861;  // 1 MiB at 10 Gbit/s
constexpr std::uint64_t kRate = kFrameBytes * 1'000'000'000 / kBlockNs;
constexpr std::uint64_t kSmallBytes = 200;  // in a control frame, like 1 KiB (small() cuts at 256)

class Concurrency : public testing::Test {
 protected:
  Cluster& start(std::size_t nodes) {
    ClusterConfig config = ClusterConfig::small(0);
    config.nodes = nodes;
    config.engine.arena_bytes = 26_MiB;
    config.engine.block_bytes_min = config.engine.block_bytes_max = kBlockBytes;
    config.engine.credit_bytes = 8 * kBlockBytes;
    config.engine.rail_queue_bytes = 2 * kBlockBytes;
    config.network.rate_bytes_per_s = kRate;
    config.check_every = 1000;
    cluster_ = std::make_unique<Cluster>(config);
    cluster_->run_for(100_ms);
    return *cluster_;
  }
  void put_now(std::size_t node, const ObjectId& object, std::uint64_t blocks) {
    Request& put = cluster_->put(node, object, {.size_bytes = blocks * kBlockBytes});
    EXPECT_TRUE(cluster_->run_until_answered(put));
  }
  // All of `receivers` wait for it.
  std::vector<Request*> get_on(const std::vector<std::size_t>& receivers, const ObjectId& object) {
    std::vector<Request*> gets;
    for (const std::size_t node : receivers) gets.push_back(&cluster_->get(node, object));
    return gets;
  }
  // How long it took since `since`, or since it was asked, in the time that a block takes on a
  // link.
  double blocks_taken(const Request& get, std::optional<Instant> since = {}) {
    EXPECT_TRUE(cluster_->run_until_answered(get, 60_s)) << name_of(get);
    EXPECT_EQ(get.code(), Code::kOk) << (get.error ? get.error->text : "");
    if (!get.answered) return 1e9;
    const Duration taken = *get.answered - since.value_or(get.asked);
    return static_cast<double>(taken.ns) / static_cast<double>(kBlockNs);
  }
  double slowest(const std::vector<Request*>& gets, std::optional<Instant> since = {}) {
    double worst = 0;
    for (const Request* get : gets) worst = std::max(worst, blocks_taken(*get, since));
    return worst;
  }
  // The first from `number` on that has its home on the node.
  [[nodiscard]] ObjectId object_at_home(std::size_t node, std::uint64_t number) const {
    const NodeId home{node + 1};
    for (;; ++number) {
      const ObjectId object = object_named(number);
      bool is_there = true;
      for (std::uint64_t other = 1; other <= cluster_->size(); ++other) {
        is_there = is_there && weight_of(object, home) >= weight_of(object, NodeId{other});
      }
      if (is_there) return object;
    }
  }
  void run_for_blocks(std::int64_t blocks) { cluster_->run_for({kBlockNs * blocks}); }
  void TearDown() override {
    cluster_->finish();
    for (const std::string& failure : cluster_->checker().failures()) ADD_FAILURE() << failure;
  }

  std::unique_ptr<Cluster> cluster_;
};

const ObjectId kA = object_named(1);
const ObjectId kB = object_named(2);

TEST_F(Concurrency, SmallGetBesideTenBroadcastsOverTheSameLinksTakesTenBlocksTimeAtMost) {
  Cluster& cluster = start(5);
  constexpr std::uint64_t kEach = 256;
  std::vector<Request*> bulk;
  for (std::uint64_t n = 0; n < 10; ++n) {
    for (Request* get : get_on({1, 2, 3, 4}, object_named(100 + n))) bulk.push_back(get);
  }
  cluster.run_for(10_ms);
  const Instant begun = cluster.now();
  for (std::uint64_t n = 0; n < 10; ++n) {
    cluster.put(0, object_named(100 + n), {.size_bytes = kEach * kBlockBytes});
  }
  run_for_blocks(100);
  for (std::uint64_t n = 0; n < 60; ++n) {
    const ObjectId small = object_named(1000 + n);
    cluster.run_until_answered(cluster.put(0, small, {.size_bytes = kSmallBytes}));
    run_for_blocks(8);
    EXPECT_LT(blocks_taken(cluster.get(1 + n % 4, small)), 10.0) << n;
  }
  EXPECT_TRUE(std::any_of(bulk.begin(), bulk.end(), [](Request* get) { return get->is_pending(); }))
      << "they must be under way all the time";
  EXPECT_LT(slowest(bulk, begun), 1.05 * 10 * kEach);
}

TEST_F(Concurrency, ShortObjectPassesALongOneOnItsLink) {
  start(9);
  put_now(0, kA, 512);
  put_now(0, kB, 32);
  Request& lengthy = cluster_->get(1, kA);
  run_for_blocks(60);
  EXPECT_LT(blocks_taken(cluster_->get(1, kB)), 1.25 * 32);
  EXPECT_LT(blocks_taken(lengthy), 1.02 * (512 + 32));
}

TEST_F(Concurrency, LongObjectThatIsNearlyThereIsNotHeldUpByAShorterOneThatHasMoreLeft) {
  start(9);
  put_now(0, kA, 512);
  put_now(0, kB, 128);
  Request& lengthy = cluster_->get(1, kA);
  run_for_blocks(480);
  const Instant joined = cluster_->now();
  Request& shorter = cluster_->get(1, kB);
  EXPECT_LT(blocks_taken(lengthy, joined), 1.25 * 40);
  EXPECT_LT(blocks_taken(shorter), 1.1 * (128 + 40));
}

// One after the other the first would take 256 and both 512.
TEST_F(Concurrency, OfTwoBroadcastsOfOneSizeOneIsServedFirstByAll) {
  Cluster& cluster = start(9);
  const std::vector<std::size_t> receivers{1, 2, 3, 4, 5, 6, 7, 8};
  const auto first = get_on(receivers, kA);
  const auto second = get_on(receivers, kB);
  cluster.run_for(10_ms);
  const Instant begun = cluster.now();
  cluster.put(0, kA, {.size_bytes = 256 * kBlockBytes});
  cluster.put(0, kB, {.size_bytes = 256 * kBlockBytes});
  EXPECT_LT(slowest(first, begun), 1.35 * 256);
  EXPECT_LT(slowest(second, begun), 1.15 * 512);
}

TEST_F(Concurrency, ListOfAHundredObjectsOfOneNodeTakesTheTimeOfTheirBytesTheSmallestFirst) {
  Cluster& cluster = start(3);
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t n = 0; n < 100; ++n) sizes.push_back(1 + n * 37 % 20);
  for (std::uint64_t n = 0; n < 100; ++n) put_now(1, object_named(100 + n), sizes[n]);
  cluster.run_for(10_ms);
  std::vector<Request*> gets;
  for (std::uint64_t n = 0; n < 100; ++n) gets.push_back(&cluster.get(0, object_named(100 + n)));
  double sum = 0;
  for (const Request* get : gets) sum += blocks_taken(*get);
  const auto all =
      static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}));
  EXPECT_LT(slowest(gets), 1.02 * all);
  std::sort(sizes.begin(), sizes.end());
  std::partial_sum(sizes.begin(), sizes.end(), sizes.begin());
  const auto best =
      static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}));
  EXPECT_LT(sum, 1.1 * best) << "of the shortest first, one by one";
}

TEST_F(Concurrency, ListOfAHundredObjectsOfFourNodesTakesTheTimeOfTheirBytes) {
  Cluster& cluster = start(5);
  std::uint64_t all = 0;
  for (std::uint64_t n = 0; n < 100; ++n) {
    put_now(1 + n % 4, object_named(100 + n), 1 + n * 37 % 20);
    all += 1 + n * 37 % 20;
  }
  cluster.run_for(10_ms);
  std::vector<Request*> gets;
  for (std::uint64_t n = 0; n < 100; ++n) gets.push_back(&cluster.get(0, object_named(100 + n)));
  EXPECT_LT(slowest(gets), 1.02 * static_cast<double>(all));
}

TEST_F(Concurrency, NobodyWaitsBehindAReceiverThatIsSlow) {
  Cluster& cluster = start(4);
  cluster.set_rate(1, kRate / 10);
  const ObjectId other = object_at_home(0, 200);
  put_now(0, kA, 256);
  put_now(0, other, 256);
  Request& slow = cluster.get(1, kA);
  run_for_blocks(60);
  EXPECT_LT(blocks_taken(cluster.get(2, other)), 1.4 * 256)
      << "the slow one's window is on its way";
  blocks_taken(slow);
}

TEST_F(Concurrency, NobodyWaitsBehindAReceiverThatIsFrozenInTheMiddleOfTwelveObjects) {
  Cluster& cluster = start(4);
  std::vector<Request*> frozen;
  for (std::uint64_t n = 0; n < 12; ++n) {
    put_now(0, object_named(100 + n), 128);
    frozen.push_back(&cluster.get(1, object_named(100 + n)));
  }
  const ObjectId other = object_at_home(0, 200);
  put_now(0, other, 256);
  run_for_blocks(20);
  cluster.pause(1, 2_s);
  EXPECT_LT(blocks_taken(cluster.get(2, other)), 1.4 * 256);
  slowest(frozen);
}

}  // namespace
}  // namespace hoplite::sim
