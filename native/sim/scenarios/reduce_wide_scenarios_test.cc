// SPDX-License-Identifier: Apache-2.0
// Large reduces over so many nodes that they take two levels (decision 5p), undisturbed and with
// deaths: scripted cases with sentences for names.
#include <algorithm>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

constexpr std::uint32_t kNodes = 48, kSpares = 2;
const ObjectId kTarget = object_named(1);

class WideReduces : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  // Source i, of two blocks, on node i; all but the spares are members.
  Cluster& start_reduce(bool everywhere, std::uint64_t arena_bytes = 0) {
    Cluster& cluster = start(kNodes, [arena_bytes](ClusterConfig& c) {
      if (arena_bytes > 0) c.engine.arena_bytes = arena_bytes;
      c.engine.reduce_stripes = 0;
      c.check_every = 1000;
    });
    std::vector<Request*> puts;
    for (std::uint32_t i = 0; i < kNodes; ++i) {
      puts.push_back(&cluster.put(i, source(i), {.size_bytes = 2_KiB, .dtype = DType::kFloat32}));
    }
    for (Request* put : puts) expect_value(*put);
    cluster.run_for(20_ms);
    reduce_ = &cluster.reduce(
        0, kTarget, {.source_count = kNodes, .count = kNodes - kSpares, .everywhere = everywhere});
    gets_ = {&cluster.get(0, kTarget)};
    if (everywhere) gets_.push_back(&cluster.get(kNodes - 1, kTarget));
    for (std::uint32_t i = 0; i < kNodes; ++i) cluster.confirm(*reduce_, i, source(i));
    return cluster;
  }
  [[nodiscard]] std::uint64_t branches() const {
    std::uint64_t branches = 0;
    for (std::size_t node = 0; node < kNodes; ++node) {
      branches = std::max(branches, cluster_->stats(node).reduce_branches);
    }
    return branches;
  }

  Request* reduce_ = nullptr;
  std::vector<Request*> gets_;
};
INSTANTIATE_TEST_SUITE_P(Stripes, WideReduces, ::testing::Values(0), stripe_name);

TEST_P(WideReduces, SumAllSourcesForOneReaderAndForAll) {
  for (const bool everywhere : {false, true}) {
    start_reduce(everywhere);
    expect_value(*reduce_);
    for (Request* get : gets_) expect_value(*get);
    EXPECT_GE(branches(), 2U);
    TearDown();
  }
}

TEST_P(WideReduces, HaveOneLevelWhereThereIsNoRoomForTwo) {
  for (const bool everywhere : {false, true}) {
    start_reduce(everywhere, 768_KiB);  // two slabs, and the eighth that only folds have
    expect_value(*reduce_);
    for (Request* get : gets_) expect_value(*get);
    TearDown();
  }
}

TEST_P(WideReduces, GoOnWithASpareWhoeverDiesAtAnyTime) {
  for (std::int64_t step = 0; step < 6; ++step) {
    const bool everywhere = step % 2 == 1;
    Cluster& cluster = start_reduce(everywhere);
    cluster.run_for(80_us * step);
    const bool was_committed = !reduce_->is_pending();
    cluster.crash(static_cast<std::size_t>(7 + 11 * step) % (kNodes - 2) + 1);
    expect_value(*reduce_);
    for (Request* get : gets_) {
      EXPECT_TRUE(cluster.run_until_answered(*get, 10_s));
      EXPECT_TRUE(get->has_value() || was_committed) << step << " " << get->error->text;
    }
    TearDown();
  }
}

TEST_P(WideReduces, GoOnWhereLinksBreak) {
  for (std::int64_t step = 0; step < 3; ++step) {
    Cluster& cluster = start_reduce(step % 2 == 1);
    cluster.run_for(120_us * step);
    for (std::size_t a = 0; a < kNodes; a += 3) {
      cluster.reset_link(a, (a + 7 + static_cast<std::size_t>(step)) % kNodes);
    }
    expect_value(*reduce_);
    for (Request* get : gets_) expect_value(*get);
    TearDown();
  }
}

}  // namespace
}  // namespace hoplite::sim
