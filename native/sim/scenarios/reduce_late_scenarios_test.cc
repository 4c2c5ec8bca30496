// SPDX-License-Identifier: Apache-2.0
// Allreduces of eight nodes of which one is late: it owns a stripe like all others, and gives it up
// when these have folded a sixteenth of theirs. Scripted cases with sentences for names, for one
// stripe and for one of each node.
#include <algorithm>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

const ObjectId kTarget = object_named(1);
constexpr std::uint32_t kNodes = 8, kLate = 7;  // its node, and its source
constexpr std::uint32_t kSpare = 8;             // on node 0
constexpr std::int64_t kSteps = 12;

class LateNode : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  // Source i, of 100,000 bytes, on node i; 10 MB/s: 10 ms on a link. All but the late one are
  // there, the first of them alone; `step` ms later some have been folded, and at last all.
  Cluster& start_late(std::int64_t step) {
    Cluster& cluster =
        start(kNodes, [](ClusterConfig& c) { c.network.rate_bytes_per_s = 10'000'000; });
    for (std::uint32_t i = 0; i <= kSpare; ++i) {
      put_now(i % kNodes, source(i), {.size_bytes = 100'000, .dtype = DType::kFloat32});
    }
    reduce_ = &cluster.reduce(0, kTarget,
                              {.source_count = kNodes + 1, .count = kNodes, .everywhere = true});
    gets_.clear();
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      gets_.push_back(&cluster.get(node, kTarget));
    }
    confirm(0);
    cluster.run_for(1_ms);
    for (std::uint32_t i = 1; i < kLate; ++i) confirm(i);
    cluster.run_for(1_ms * step);
    EXPECT_TRUE(reduce_->is_pending());
    return cluster;
  }
  void confirm(std::uint32_t index) { cluster_->confirm(*reduce_, index, source(index)); }
  // Expects the result on all live nodes, without the source `spared`.
  void expect_result(std::uint32_t spared) {
    expect_value(*reduce_);
    std::vector<std::uint32_t> members = reduce_->members;
    std::sort(members.begin(), members.end());
    std::vector<std::uint32_t> expected;
    for (std::uint32_t i = 0; i <= kSpare; ++i) {
      if (i != spared) expected.push_back(i);
    }
    EXPECT_EQ(members, expected);
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      if (cluster_->is_alive(node)) expect_value(*gets_[node]);
    }
    TearDown();
  }

  Request* reduce_ = nullptr;
  std::vector<Request*> gets_;
};
INSTANTIATE_TEST_SUITE_P(Stripes, LateNode, testing::Values(std::uint16_t{0}, std::uint16_t{1}),
                         stripe_name);

TEST_P(LateNode, ItsSourceGoesInWheneverItComes) {
  for (std::int64_t step = 0; step < kSteps; ++step) {
    start_late(step);
    confirm(kLate);
    expect_result(kSpare);
  }
  if (GetParam() == 1) return;  // one node owns all
  EXPECT_LT(2 * cluster_->stats(kLate).blocks_folded, cluster_->stats(1).blocks_folded);
}

TEST_P(LateNode, ASpareIsTakenWhenItsSourceNeverComes) {
  for (std::int64_t step = 0; step < kSteps; ++step) {
    Cluster& cluster = start_late(step);
    cluster.fail_source(*reduce_, kLate);
    cluster.run_for(1_ms);
    confirm(kSpare);
    expect_result(kLate);
  }
}

TEST_P(LateNode, ASpareIsTakenWhenItDies) {
  for (std::int64_t step = 0; step < kSteps; ++step) {
    Cluster& cluster = start_late(step);
    cluster.crash(kLate);
    cluster.run_for(20_ms);
    cluster.fail_source(*reduce_, kLate);
    confirm(kSpare);
    expect_result(kLate);
  }
}

TEST_P(LateNode, AnotherNodeDiesWhileItGivesItsStripeUp) {
  for (std::int64_t step = 0; step < kSteps; ++step) {
    Cluster& cluster = start_late(step);
    cluster.crash(3);
    cluster.run_for(1_ms * step);
    confirm(kLate);
    confirm(kSpare);
    expect_result(3);
  }
}

TEST_P(LateNode, ANodeJoinsWhileItGivesItsStripeUpAndTheHomeMayChange) {
  for (std::int64_t step = 0; step < kSteps; ++step) {
    Cluster& cluster = start_late(step);
    cluster.join();
    cluster.run_for(3_ms * step);
    confirm(kLate);
    expect_result(kSpare);
  }
}

TEST_P(LateNode, ItsLinkToEachOtherNodeBreaksWhileItGivesItsStripeUp) {
  for (std::int64_t step = 0; step < kSteps; ++step) {
    Cluster& cluster = start_late(step);
    for (std::uint32_t node = 0; node < kLate; ++node) cluster.reset_link(node, kLate);
    cluster.run_for(1_ms);
    confirm(kLate);
    expect_result(kSpare);
  }
}

}  // namespace
}  // namespace hoplite::sim
