// SPDX-License-Identifier: Apache-2.0
// Reduces of small objects, which their caller's node plans: by bytes that come with the location,
// or along a tree. Any node may die at any time: each get ends with the sum or with an error.
#include "plan/links/membership.h"
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

const ObjectId kTarget = object_named(1);
constexpr std::uint32_t kSources = 6;

class ReduceSmall : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  struct Shape {
    std::uint32_t count = kSources;
    bool is_tree = false;      // of blocks of 1 KiB, 2 ms a copy
    bool is_awaited = false;   // by the directory, instead of confirmed by its caller
    std::uint16_t degree = 2;  // of a tree
  };
  // A caller on node 0, source i on node i + 1; a node that has nothing waits for the result.
  Cluster& start_reduce(const Shape& is) {
    Cluster& cluster = start(kSources + 2, [&](ClusterConfig& c) {
      c.engine.reduce_degree = is.is_tree ? is.degree : 0;
      if (is.is_tree) c.engine.inline_bytes_max = 64_KiB;
      if (is.is_tree) c.network.rate_bytes_per_s = 10'000'000;
    });
    for (std::uint32_t i = 0; i < kSources; ++i) {
      const std::uint64_t size_bytes = is.is_tree ? 20'000 : 200;
      put_now(i + 1, source(i), {.size_bytes = size_bytes, .dtype = DType::kFloat32});
    }
    step_ = is.is_tree ? Duration{700'000} : Duration{15'000};
    reduce_ = &cluster.reduce(0, kTarget, {.source_count = kSources, .count = is.count});
    get_ = &cluster.get(kSources + 1, kTarget);
    for (std::uint32_t i = 0; i < kSources; ++i) {
      is.is_awaited ? cluster.announce(*reduce_, i, source(i))
                    : cluster.confirm(*reduce_, i, source(i));
    }
    return cluster;
  }
  [[nodiscard]] std::size_t home(const ObjectId& object = kTarget) const {
    std::size_t best = 0;
    for (std::size_t node = 1; node < cluster_->size(); ++node) {
      if (weight_of(object, NodeId{node + 1}) > weight_of(object, NodeId{best + 1})) best = node;
    }
    return best;
  }
  static std::vector<Shape> shapes() {
    return {{}, {.is_awaited = true}, {.is_tree = true}, {.is_tree = true, .is_awaited = true}};
  }
  [[nodiscard]] std::string when(const Shape& is, int step) const {
    return std::string(is.is_tree ? "tree" : "carried") + (is.is_awaited ? ", awaited" : "") +
           " at " + std::to_string(step);
  }

  Duration step_;
  Request* reduce_ = nullptr;
  Request* get_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Stripes, ReduceSmall, testing::Values(std::uint16_t{1}), stripe_name);

TEST_P(ReduceSmall, IsPlannedByItsCallerAndEverybodyHasTheSum) {
  for (const Shape& is : shapes()) {
    start_reduce(is);
    expect_value(*reduce_);
    expect_value(*get_);
    expect_value(cluster_->get(0, kTarget));
    TearDown();
  }
}

// Starts at step 1: at step 0 no other node has heard of the reduce, so a waiting get waits on.
TEST_P(ReduceSmall, TheCallerDiesAtAnyTimeAndWhoWaitsHearsOfIt) {
  for (const Shape& is : shapes()) {
    for (int step = 1; step < 10; ++step) {
      Cluster& cluster = start_reduce(is);
      cluster.run_for(Duration{step_.ns * step});
      cluster.crash(0);
      EXPECT_TRUE(cluster.run_until_answered(*get_, 10_s)) << when(is, step);
      TearDown();
    }
  }
}

TEST_P(ReduceSmall, AnyOtherNodeDiesAtAnyTimeAndItsCopiesTakeItsPlace) {
  for (const Shape& is : shapes()) {
    for (std::size_t victim = 1; victim <= kSources; ++victim) {
      for (int step = 0; step < 8; ++step) {
        Cluster& cluster = start_reduce({kSources - 1, is.is_tree, is.is_awaited});
        cluster.run_for(Duration{step_.ns * step});
        cluster.crash(victim);
        EXPECT_TRUE(cluster.run_until_answered(*reduce_, 10_s)) << when(is, step);
        EXPECT_TRUE(cluster.run_until_answered(*get_, 10_s)) << when(is, step);
        EXPECT_EQ(reduce_->has_value(), get_->has_value()) << when(is, step);
        TearDown();
      }
    }
  }
}

TEST_P(ReduceSmall, ItFailsThoughTheHomeIsCutOffThenAndEveryWaiterIsTold) {
  for (int step = 0; step < 8; ++step) {
    Cluster& cluster = start(kSources + 2);
    ASSERT_TRUE(home() != 0 && home() != kSources + 1) << "who asks is the home";
    put_now(1, source(0), {.size_bytes = 200, .dtype = DType::kFloat32});
    put_now(2, source(1), {.size_bytes = 100, .dtype = DType::kFloat32});  // doesn't fit
    reduce_ = &cluster.reduce(0, kTarget, {.source_count = 2, .count = 2});
    get_ = &cluster.get(kSources + 1, kTarget);
    cluster.confirm(*reduce_, 0, source(0));
    cluster.confirm(*reduce_, 1, source(1));
    cluster.run_for(Duration{20'000 * step});
    cluster.reset_link(0, home());
    expect_error(*reduce_, Code::kLayoutMismatch, 5_s);
    expect_error(*get_, Code::kLayoutMismatch, 5_s);
    TearDown();
  }
}

TEST_P(ReduceSmall, LinksBreakAtAnyTimeAndTheSumIsRight) {
  for (const Shape& is : shapes()) {
    for (std::size_t node = 0; node <= kSources; ++node) {
      for (int step = 0; step < 6; ++step) {
        Cluster& cluster = start_reduce(is);
        cluster.run_for(Duration{step_.ns * step});
        for (std::size_t other = 0; other < cluster.size(); ++other) {
          if (other != node) cluster.reset_link(node, other);
        }
        expect_value(*reduce_, 5_s);
        expect_value(*get_, 5_s);
        TearDown();
      }
    }
  }
}

// The reset loses the messages to the node, and receivers that pull from it wait meanwhile.
TEST_P(ReduceSmall, TheLinkToOneNodeBreaksAtAnyTimeAndTheSumIsRight) {
  for (const Shape& is : shapes()) {
    for (std::size_t node = 1; node <= kSources; ++node) {
      for (int step = 0; step < 10; ++step) {
        Cluster& cluster = start_reduce(is);
        cluster.run_for(Duration{15'000 * step});
        cluster.reset_link(0, node);
        expect_value(*reduce_, 5_s);
        expect_value(*get_, 5_s);
        TearDown();
      }
    }
  }
}

// The reader of a branch may be cut off from its owner while both live and reach all other nodes.
// The root then pulls each source by itself instead of planning the same branch again.
TEST_P(ReduceSmall, TwoNodesAreCutOffForLongAndTheSumComesOverTheOthers) {
  const auto expect_sum = [&](const Shape& is, std::uint32_t a, std::uint32_t b, int step) {
    Cluster& cluster = start_reduce(is);
    // Skip a source whose home is cut off from it: that home never hears of the source.
    if (home(source(a - 1)) == b || home(source(b - 1)) == a) return;
    cluster.run_for(Duration{step_.ns * step});
    cluster.separate(a, b, 30_s);
    EXPECT_TRUE(cluster.run_until_answered(*reduce_, 1_s)) << a << " and " << b << " at " << step;
    expect_value(*reduce_, 1_s);
    expect_value(*get_, 1_s);
    std::uint64_t branches = 0;
    for (std::size_t node = 0; node < cluster.size(); ++node) {
      branches += cluster.stats(node).reduce_branches;
    }
    EXPECT_LE(branches, kSources);
  };
  for (const Shape& is : {Shape{.is_tree = true, .is_awaited = true}, Shape{.is_tree = true},
                          Shape{.is_tree = true, .degree = 1}}) {
    for (std::uint32_t a = 1; a <= kSources; ++a) {
      for (std::uint32_t b = a + 1; b <= kSources; ++b) {
        for (int step = 0; step < 6; ++step) {
          expect_sum(is, a, b, step);
          TearDown();
        }
      }
    }
  }
}

TEST_P(ReduceSmall, ANodeJoinsAtAnyTimeAndTheSumIsRight) {
  for (const Shape& is : shapes()) {
    for (int step = 0; step < 10; ++step) {
      Cluster& cluster = start_reduce(is);
      cluster.run_for(Duration{step_.ns * step});
      cluster.join();
      expect_value(*reduce_, 5_s);
      expect_value(*get_, 5_s);
      TearDown();
    }
  }
}

}  // namespace
}  // namespace hoplite::sim
