// SPDX-License-Identifier: Apache-2.0
// Reduces whose tree has more than one level, and chains: right values, and whatever dies or comes
// late, at any time, no branch is left behind.
#include "plan/links/membership.h"
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

const ObjectId kTarget = object_named(1);
// The home chooses a chain for a large object, because it knows that the links are slow.
constexpr std::uint16_t kChain = 0;

class ReduceDepth : public Scenario {
 protected:
  static ObjectId source(std::uint32_t index) { return object_named(100 + index); }

  struct Shape {
    std::uint32_t sources = 6;
    std::uint32_t count = 6;
    std::uint16_t degree = 2;
    std::uint64_t size_bytes = 20'000;
    ReduceOp op = ReduceOp::kSum;
    DType dtype = DType::kFloat32;
    bool is_kept_twice = false;  // the caller has got every source before
    std::size_t spare_nodes = 0;
  };
  // A caller on node 0, source i on node i + 1; 10 MB/s: 2 ms on a link.
  Cluster& start_reduce(const Shape& is) {
    Cluster& cluster = start(is.sources + 1 + is.spare_nodes, [&](ClusterConfig& c) {
      c.network.rate_bytes_per_s = 10'000'000;
      c.engine.reduce_degree = is.degree;
      if (is.degree == kChain) c.engine.reduce_stripes = 0;
      c.engine.link_bytes_per_s = c.network.rate_bytes_per_s;
    });
    for (std::uint32_t i = 0; i < is.sources; ++i) {
      put_now(i + 1, source(i), {.size_bytes = is.size_bytes, .dtype = is.dtype});
      if (is.is_kept_twice) expect_value(cluster.get(0, source(i), true));
    }
    reduce_ =
        &cluster.reduce(0, kTarget, {.source_count = is.sources, .count = is.count, .op = is.op});
    return cluster;
  }
  void confirm(std::uint32_t first, std::uint32_t last) {
    for (std::uint32_t i = first; i <= last; ++i) cluster_->confirm(*reduce_, i, source(i));
  }
  [[nodiscard]] std::size_t home(const ObjectId& object = kTarget) const {
    std::size_t best = 0;
    for (std::size_t node = 1; node < cluster_->size(); ++node) {
      if (weight_of(object, NodeId{node + 1}) > weight_of(object, NodeId{best + 1})) best = node;
    }
    return best;
  }
  [[nodiscard]] std::uint64_t blocks_folded() const {
    std::uint64_t sum = 0;
    for (std::size_t node = 0; node < cluster_->size(); ++node) {
      sum += cluster_->stats(node).blocks_folded;
    }
    return sum;
  }
  struct Counts {
    std::uint64_t committed = 0, branched = 0, branches = 0, degree = 0;
  };
  [[nodiscard]] Counts counts() const {
    Counts sum;
    for (std::size_t node = 0; node < cluster_->size(); ++node) {
      if (!cluster_->is_alive(node)) continue;
      const EngineStats stats = cluster_->stats(node);
      sum.committed += stats.reduces_committed;
      sum.branched += stats.reduces_branched;
      sum.branches += stats.reduce_branches;
      sum.degree = std::max(sum.degree, stats.reduce_degree);
    }
    return sum;
  }
  // Expects that no node holds an object that clients do not know.
  void expect_no_branches(const std::string& when) {
    cluster_->run_for(500_ms);
    for (std::size_t node = 0; node < cluster_->size(); ++node) {
      if (!cluster_->is_alive(node)) continue;
      for (const ObjectRow& row : cluster_->objects(node)) {
        const bool is_known = std::any_of(cluster_->requests().begin(), cluster_->requests().end(),
                                          [&](const Request& r) { return r.object == row.object; });
        EXPECT_TRUE(is_known) << short_name(row.object) << " on node " << node << " " << when;
      }
    }
  }

  Request* reduce_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Stripes, ReduceDepth, kStripeCounts, stripe_name);

TEST_P(ReduceDepth, EveryDegreeGivesTheSameSumAndLeavesNothingBehind) {
  for (std::uint16_t degree = 1; degree <= 5; ++degree) {
    for (const std::uint64_t size_bytes : {200U, 20'000U}) {
      for (const std::uint32_t sources : {2U, 3U, 5U, 8U}) {
        start_reduce(
            {.sources = sources, .count = sources, .degree = degree, .size_bytes = size_bytes});
        confirm(0, sources - 1);
        expect_value(*reduce_);
        expect_value(cluster_->get(0, kTarget));
        EXPECT_EQ(reduce_->members.size(), sources);
        const Counts is = counts();
        EXPECT_EQ(is.committed, 1U);
        EXPECT_GE(is.branches, is.branched);
        // Homes have copies of small sources, perhaps several on one node. One source may be on the
        // only owner's node. Both change the number of branches.
        const bool is_tree = size_bytes > 256 && sources > degree + 1U;
        if (is_tree || sources <= degree) {
          EXPECT_EQ(is.branched, is_tree ? 1U : 0U) << degree << " of " << sources;
          EXPECT_EQ(is.degree, is_tree ? degree : 0U);
        }
        expect_no_branches("");
        TearDown();
      }
    }
  }
}

TEST_P(ReduceDepth, AMeanIsDividedOnceByAllOfItsSources) {
  for (std::uint16_t degree = 1; degree <= 3; ++degree) {
    start_reduce({.sources = 7, .count = 5, .degree = degree, .op = ReduceOp::kMean});
    confirm(0, 6);
    expect_value(*reduce_);
    expect_value(cluster_->get(0, kTarget));
    EXPECT_EQ(counts().branched, 1U);
    TearDown();
  }
}

TEST_P(ReduceDepth, HalvesAreRoundedOnceAndHaveNoBranches) {
  start_reduce({.dtype = DType::kFloat16});
  confirm(0, 5);
  expect_value(*reduce_);
  expect_value(cluster_->get(0, kTarget));
  EXPECT_EQ(counts().branches, 0U);
}

TEST_P(ReduceDepth, AFixedOrderHasNoBranches) {
  Cluster& cluster = start(5, [](ClusterConfig& c) { c.engine.reduce_degree = 2; });
  reduce_ = &cluster.reduce(0, kTarget, {.source_count = 4, .count = 4, .deterministic = true});
  for (std::uint32_t i = 0; i < 4; ++i) {
    put_now(i + 1, source(i), {.size_bytes = 20'000, .dtype = DType::kFloat32, .rough = true});
  }
  confirm(0, 3);
  expect_value(*reduce_);
  EXPECT_EQ(counts().branches, 0U);
}

TEST_P(ReduceDepth, ASourceDiesAtAnyTimeAndASpareTakesItsPlace) {
  for (const std::uint16_t degree : {kChain, std::uint16_t{2}}) {
    for (std::size_t victim = 1; victim <= 6; ++victim) {
      for (std::int64_t step = 0; step < 10; ++step) {
        Cluster& cluster = start_reduce({.sources = 7, .count = 6, .degree = degree});
        confirm(0, 6);
        cluster.run_for(Duration{step * 700'000});
        cluster.crash(victim);
        const std::string when = std::to_string(victim) + " at " + std::to_string(step);
        EXPECT_TRUE(cluster.run_until_answered(*reduce_, 5_s)) << when;
        EXPECT_TRUE(reduce_->has_value()) << when << " " << reduce_->error->text;
        expect_no_branches(when);
        TearDown();
      }
    }
  }
}

TEST_P(ReduceDepth, ASourceDiesAndWithoutASpareItSaysSo) {
  for (std::int64_t step = 0; step < 4; ++step) {
    Cluster& cluster = start_reduce({});
    confirm(0, 4);
    cluster.run_for(Duration{step * 700'000});
    cluster.crash(2);
    confirm(5, 5);
    expect_error(*reduce_, Code::kReduceFailed, 5_s);
    EXPECT_NE(reduce_->error->text.find("source 1: all its holders are gone"), std::string::npos);
    expect_no_branches(std::to_string(step));
    TearDown();
  }
}

TEST_P(ReduceDepth, WhoHasABranchDiesAtAnyTimeAndItIsMadeAgainFromItsSources) {
  for (const Shape& is :
       {Shape{.size_bytes = 200, .is_kept_twice = true}, Shape{.is_kept_twice = true},
        Shape{.degree = kChain, .is_kept_twice = true}}) {
    for (std::size_t victim = 1; victim <= 6; ++victim) {
      for (std::int64_t step = 0; step < 10; ++step) {
        Cluster& cluster = start_reduce(is);
        confirm(0, 5);
        cluster.run_for(Duration{is.size_bytes > 200 ? 900'000 : 60'000} * step);
        const std::string when = std::to_string(victim) + " at " + std::to_string(step);
        cluster.crash(victim);
        EXPECT_TRUE(cluster.run_until_answered(*reduce_, 5_s)) << when;
        EXPECT_TRUE(reduce_->has_value()) << when << " " << reduce_->error->text;
        expect_no_branches(when);
        TearDown();
      }
    }
  }
}

TEST_P(ReduceDepth, TheHomeDiesAtAnyTimeAndTheNextOneGrowsTheTreeAnew) {
  for (const Shape& is : {Shape{.size_bytes = 200, .is_kept_twice = true, .spare_nodes = 3},
                          Shape{.is_kept_twice = true, .spare_nodes = 3},
                          Shape{.degree = kChain, .is_kept_twice = true, .spare_nodes = 3}}) {
    for (std::int64_t step = 0; step < 20; ++step) {
      Cluster& cluster = start_reduce(is);
      if (home() == 0) GTEST_SKIP() << "the caller is the home";
      confirm(0, 5);
      cluster.run_for(Duration{is.size_bytes > 200 ? 500'000 : 50'000} * step);
      cluster.crash(home());
      EXPECT_TRUE(cluster.run_until_answered(*reduce_, 5_s)) << step;
      EXPECT_TRUE(reduce_->has_value()) << step << " " << reduce_->error->text;
      expect_no_branches(std::to_string(step));
      TearDown();
    }
  }
}

TEST_P(ReduceDepth, ANodeJoinsAtAnyTimeAndNothingIsLost) {
  for (const std::uint16_t degree : {kChain, std::uint16_t{2}}) {
    for (std::int64_t step = 0; step < 20; ++step) {
      Cluster& cluster = start_reduce({.degree = degree});
      confirm(0, 5);
      cluster.run_for(Duration{step * 500'000});
      cluster.join();
      expect_value(*reduce_, 5_s);
      expect_value(cluster.get(0, kTarget), 5_s);
      expect_no_branches(std::to_string(step));
      TearDown();
    }
  }
}

TEST_P(ReduceDepth, TheTargetIsDeletedAtAnyTimeAndNothingIsLeft) {
  for (const std::uint16_t degree : {kChain, std::uint16_t{2}}) {
    for (std::int64_t step = 0; step < 20; ++step) {
      Cluster& cluster = start_reduce({.degree = degree});
      confirm(0, 5);
      cluster.run_for(Duration{step * 500'000});
      expect_value(cluster.erase(3, kTarget));
      EXPECT_TRUE(cluster.run_until_answered(*reduce_, 5_s));
      expect_no_branches(std::to_string(step));
      TearDown();
    }
  }
}

TEST_P(ReduceDepth, TheCallerGivesUpAtAnyTimeAndNothingIsLeft) {
  for (const std::uint16_t degree : {kChain, std::uint16_t{2}}) {
    for (std::int64_t step = 0; step < 10; ++step) {
      Cluster& cluster = start_reduce({.degree = degree});
      confirm(0, 5);
      cluster.run_for(Duration{step * 900'000});
      cluster.cancel(*reduce_);
      EXPECT_TRUE(cluster.run_until_answered(*reduce_, 5_s));
      expect_no_branches(std::to_string(step));
      TearDown();
    }
  }
}

TEST_P(ReduceDepth, LinksBreakAtAnyTimeAndTheSumIsRight) {
  for (std::size_t a = 0; a <= 6; ++a) {
    for (std::int64_t step = 0; step < 5; ++step) {
      Cluster& cluster = start_reduce({.degree = a % 2 == 0 ? kChain : std::uint16_t{2}});
      confirm(0, 5);
      cluster.run_for(Duration{step * 1'500'000});
      for (std::size_t b = 0; b <= 6; ++b) {
        if (a != b) cluster.reset_link(a, b);
      }
      expect_value(*reduce_, 5_s);
      expect_value(cluster.get(0, kTarget), 5_s);
      expect_no_branches(std::to_string(a) + " at " + std::to_string(step));
      TearDown();
    }
  }
}

TEST_P(ReduceDepth, ALargeOneWhoseSourcesAreAllThereGoesAlongAChain) {
  start_reduce({.degree = kChain});
  confirm(0, 5);
  expect_value(*reduce_);
  expect_value(cluster_->get(0, kTarget));
  EXPECT_EQ(counts().branches, 4U) << "of six nodes one is the root, and the last one only sends";
  expect_no_branches("");
}

// A tree planned for some of the sources would slow the others down.
TEST_P(ReduceDepth, AwaitedSourcesThatAreThereAreOneChainInWhateverOrderTheyAreFound) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster& cluster = start(7, [seed](ClusterConfig& c) {
      c.seed = seed;
      c.network.jitter_max = 3_ms;
      c.network.rate_bytes_per_s = c.engine.link_bytes_per_s = 10'000'000;
      c.engine.reduce_stripes = 0;
    });
    for (std::uint32_t i = 0; i < 6; ++i) {
      put_now(i + 1, source(i), {.size_bytes = 20'000, .dtype = DType::kFloat32});
    }
    reduce_ = &cluster.reduce(0, kTarget, {.source_count = 6, .count = 6});
    for (std::uint32_t i = 0; i < 6; ++i) cluster.announce(*reduce_, i, source(i));
    expect_value(*reduce_);
    EXPECT_EQ(counts().branches, 4U) << seed;
    TearDown();
  }
}

TEST_P(ReduceDepth, ASourceThatIsNotThereYetHoldsTheOthersUpForNoWindow) {
  Cluster& cluster = start_reduce({.sources = 5, .count = 5, .degree = kChain});
  Request& waits = cluster.reduce(0, object_named(2), {.source_count = 6, .count = 6});
  for (std::uint32_t i = 0; i < 6; ++i) cluster.announce(waits, i, source(i));
  cluster.run_for(10_ms);
  EXPECT_GT(blocks_folded(), 0U);
  put_now(1, source(5), {.size_bytes = 20'000, .dtype = DType::kFloat32});
  expect_value(waits);
  cluster.cancel(*reduce_);
}

TEST_P(ReduceDepth, AHomeThatDoesNotAnswerIsWaitedForAWindow) {
  constexpr std::size_t kMute = 6;
  Cluster& cluster = start(7, [](ClusterConfig& c) {
    c.network.rate_bytes_per_s = c.engine.link_bytes_per_s = 10'000'000;
    c.engine.reduce_stripes = 0;
  });
  const auto named = [&](std::uint32_t number, bool is_of_mute) {
    ObjectId id = object_named(number);
    while ((home(id) == kMute) != is_of_mute) ++id.bytes[0];
    return id;
  };
  std::vector<ObjectId> sources;
  for (std::uint32_t i = 0; i < 5; ++i) {
    sources.push_back(named(200 + i, false));
    put_now(i + 1, sources[i], {.size_bytes = 20'000, .dtype = DType::kFloat32});
  }
  sources.push_back(named(300, true));
  cluster.separate(0, kMute, 100_ms);
  reduce_ = &cluster.reduce(0, named(1, false), {.source_count = 6, .count = 5});
  for (std::uint32_t i = 0; i < 6; ++i) cluster.announce(*reduce_, i, sources[i]);
  cluster.run_for(20_ms);
  EXPECT_EQ(blocks_folded(), 0U);
  expect_value(*reduce_, 60_ms);
}

TEST_P(ReduceDepth, ConfirmedSourcesAreTakenBesideOneThatIsAwaited) {
  const ObjectId nobodys = object_named(500);
  for (const bool is_lost : {false, true}) {
    Cluster& cluster = start_reduce({.sources = 2, .count = 2, .degree = kChain});
    Request& of_one = cluster.reduce(0, object_named(2), {.source_count = 3, .count = 1});
    cluster.announce(of_one, 0, object_named(501));
    cluster.confirm(of_one, 1, is_lost ? nobodys : source(0));
    if (is_lost) cluster.confirm(of_one, 2, source(1));
    expect_value(of_one, 3_s);
    cluster.cancel(*reduce_);
    TearDown();
  }
}

TEST_P(ReduceDepth, ALargeOneThatHasToWaitForASourceIsStriped) {
  Cluster& cluster = start_reduce({.degree = kChain});
  confirm(0, 4);
  cluster.run_for(5_ms);
  confirm(5, 5);
  expect_value(*reduce_);
  EXPECT_EQ(counts().branches, 0U);
}

TEST_P(ReduceDepth, TwoNodesOfAChainAreCutOffForLongAndItIsStriped) {
  for (std::uint32_t a = 0; a <= 6; ++a) {
    for (std::uint32_t b = a + 1; b <= 6; ++b) {
      for (int step = 0; step < 4; ++step) {
        Cluster& cluster = start_reduce({.degree = kChain, .is_kept_twice = true});
        confirm(0, 5);
        const bool is_homes = home() == a || home() == b;
        cluster.run_for(Duration{300'000 + step * 1'000'000});
        if (!is_homes) cluster.separate(a, b, 30_s);
        const std::string who = std::to_string(a) + " and " + std::to_string(b);
        EXPECT_TRUE(cluster.run_until_answered(*reduce_, 5_s)) << who << " at " << step;
        expect_value(*reduce_, 1_s);
        cluster.run_for(30_s);  // until what is deleted can be dropped everywhere
        TearDown();
      }
    }
  }
}

// Sources that are there at the same time become a tree. Sources that come later, one by one, are
// members of its root and wait for no other source.
TEST_P(ReduceDepth, AsTheModelSaysManyThatAreThereAreATreeAndLateOnesJoinItsRoot) {
  Cluster& cluster = start(16, [](ClusterConfig& c) {
    c.engine.inline_bytes_max = 64_KiB;
    c.engine.block_bytes_min = c.engine.block_bytes_max = 8_KiB;
    c.engine.arena_bytes = 16_MiB;
  });
  for (std::uint32_t i = 0; i < 64; ++i) {
    put_now(i % 16, source(i), {.size_bytes = 64_KiB, .dtype = DType::kFloat32});
  }
  reduce_ = &cluster.reduce(0, kTarget, {.source_count = 64, .count = 64});
  confirm(0, 61);
  cluster.run_for(20_ms);
  const Counts early = counts();
  EXPECT_GE(early.branches, 4U);
  EXPECT_EQ(early.committed, 0U);
  for (std::uint32_t i = 62; i < 64; ++i) {
    confirm(i, i);
    cluster.run_for(1_ms);
  }
  expect_value(*reduce_);
  expect_value(cluster.get(0, kTarget));
  EXPECT_EQ(counts().branches, early.branches);
  EXPECT_EQ(counts().branched, 1U);
  EXPECT_GE(counts().degree, 2U);
  expect_no_branches("");
}

}  // namespace
}  // namespace hoplite::sim
