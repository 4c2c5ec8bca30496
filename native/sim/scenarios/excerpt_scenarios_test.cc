// SPDX-License-Identifier: Apache-2.0
// Parts of an object that a node makes for its readers (decision 48); each for one and for three
// stripes.
#include <string>
#include <vector>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kRowBytes = 1'000;
constexpr std::uint64_t kRows = 100;
constexpr std::uint64_t kSize = kRows * kRowBytes;
constexpr std::uint64_t kColumns = 4;

class Excerpts : public Scenario {
 protected:
  Request& put_source(std::size_t node = 0) {
    return put_now(node, object_named(1), {.size_bytes = kSize});
  }
  // A quarter of the columns: of each row 250 bytes.
  static Excerpt column(const Request& source, std::uint64_t n) {
    const std::uint64_t run_bytes = kRowBytes / kColumns;
    return part(source, 100 + n, {{0, n * run_bytes, run_bytes, kRowBytes, kRows}});
  }
  static Excerpt part(const Request& source, std::uint64_t number, std::vector<StridedRuns> runs) {
    const std::uint64_t size_bytes = runs.back().into + runs.back().run_bytes * runs.back().count;
    const std::vector<Part> parts{{DType::kOpaque, size_bytes}};
    return {object_named(number),
            {size_bytes, 0, parts, layout_of(parts)},
            {source.object, source.incarnation},
            std::move(runs)};
  }
  void fetch(std::size_t node, const Request& whole) {
    Request& get = cluster_->get(node, whole.object, true);
    expect_value(get);
    cluster_->release(get);
  }
  [[nodiscard]] std::uint64_t count_made(std::size_t node) const {
    return cluster_->stats(node).excerpts;
  }
  static void is_slow(ClusterConfig& config) {
    config.engine.spill_step_bytes = 2'048;
    config.rebuild_bytes_per_s = 1'000'000;  // 25 ms for a column
  }
};

INSTANTIATE_TEST_SUITE_P(Stripes, Excerpts, kStripeCounts, stripe_name);

TEST_P(Excerpts, FourReadersOfFourColumnsHaveNoMoreThanTheirs) {
  Cluster& cluster = start(5);
  const Request& source = put_source();
  std::vector<Request*> gets;
  for (std::size_t n = 0; n < kColumns; ++n) {
    gets.push_back(&cluster.excerpt(n + 1, source, column(source, n)));
  }
  for (Request* get : gets) expect_value(*get);
  EXPECT_EQ(count_made(0), kColumns);
  for (std::size_t node = 1; node < 5; ++node) {
    EXPECT_EQ(count_made(node), 0U);
    EXPECT_LT(cluster.stats(node).arena_bytes_used, kSize / 2);
  }
}

TEST_P(Excerpts, ReadersOfOneColumnShareOneCopyOfItsMaker) {
  Cluster& cluster = start(6);
  const Request& source = put_source();
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 6; ++node) {
    gets.push_back(&cluster.excerpt(node, source, column(source, 0)));
  }
  for (Request* get : gets) expect_value(*get);
  EXPECT_EQ(count_made(0), 1U);
  EXPECT_LT(cluster.stats(0).bytes_sent, 5 * kSize / kColumns) << "readers forward it";
}

TEST_P(Excerpts, NodeWithTheSourceMakesItForItsOwnClients) {
  Cluster& cluster = start(2);
  const Request& source = put_source();
  Request& get = cluster.excerpt(0, source, column(source, 2));
  expect_value(get);
  expect_value(cluster.excerpt(0, source, column(source, 2), ClientId{2}));
  EXPECT_EQ(count_made(0), 1U);
  EXPECT_EQ(cluster.stats(0).bytes_sent + cluster.stats(1).bytes_sent, 0U);
}

TEST_P(Excerpts, RunsOfSeveralKindsAndGapsBetweenThem) {
  Cluster& cluster = start(2);
  const Request& source = put_source();
  expect_value(cluster.excerpt(
      1, source,
      part(source, 200, {{0, 500, 1, 3, 100}, {128, 99'000, 1'000, 0, 1}, {4'096, 0, 8, 8, 10}})));
  expect_value(cluster.excerpt(1, source, part(source, 201, {{0, 64, 32, 64, 4}})));  // small
}

TEST_P(Excerpts, PartOfAPutThatIsBeingWrittenWaitsForIt) {
  Cluster& cluster = start(3, [](ClusterConfig& config) {
    config.write_bytes_per_s = 1'000'000;
    config.blocks_per_write = 1;
  });
  Request& source = cluster.put(0, object_named(1), {.size_bytes = kSize});
  cluster.run_for(20_ms);
  Request& get = cluster.excerpt(1, source, column(source, 1));
  expect_value(get);
  EXPECT_TRUE(source.answered);
}

TEST_P(Excerpts, PartThatWasEvictedIsMadeAgain) {
  Cluster& cluster =
      start(2, [](ClusterConfig& config) { config.engine.arena_bytes = 512 * 1024; });
  const Request& source = put_source();
  for (std::uint64_t round = 0; round < 3; ++round) {
    Request& get = cluster.excerpt(1, source, column(source, 3));
    expect_value(get);
    cluster.release(get);
    for (std::size_t node = 0; node < 2; ++node) {
      const ObjectId other = object_named(10 + 2 * round + node);
      put_now(node, other, {.size_bytes = 300'000});
      cluster.erase(node, other);
    }
    cluster.run_for(100_ms);
  }
  EXPECT_EQ(count_made(0), 3U);
  EXPECT_LE(cluster.stats(0).directory_entries + cluster.stats(1).directory_entries, 8U);
}

TEST_P(Excerpts, StepThatFailsIsTriedAgain) {
  Cluster& cluster = start(3, [](ClusterConfig& config) {
    is_slow(config);
    config.rebuild_faults_per_mille = 100;
  });
  const Request& source = put_source();
  for (std::uint64_t n = 0; n < kColumns; ++n) {
    expect_value(cluster.excerpt(1 + n % 2, source, column(source, n)), 30_s);
  }
}

TEST_P(Excerpts, SourceThatIsLostIsAnErrorThatNamesIt) {
  Cluster& cluster = start(4, is_slow);
  const Request& source = put_source();
  Request& get = cluster.excerpt(1, source, column(source, 0));
  cluster.run_for(10_ms);
  cluster.crash(0);
  expect_error(get, Code::kObjectLost, 20_s);
  EXPECT_NE(get.error->text.find(short_name(source.object)), std::string::npos) << get.error->text;
  expect_error(cluster.excerpt(2, source, column(source, 1)), Code::kObjectLost, 20_s);
}

TEST_P(Excerpts, DeletionOfTheSourceEndsItsPartsUnderWay) {
  Cluster& cluster = start(4, is_slow);
  const Request& source = put_source();
  Request& get = cluster.excerpt(1, source, column(source, 0));
  cluster.run_for(10_ms);
  cluster.erase(2, source.object);
  expect_error(get, Code::kObjectLost, 20_s);
  cluster.run_for(1_s);
  EXPECT_EQ(cluster.stats(0).arena_bytes_used, 0U);
  EXPECT_EQ(count_made(0), 0U);
}

TEST_P(Excerpts, ReaderThatDiesAmidItLeavesNothing) {
  Cluster& cluster = start(3, is_slow);
  const Request& source = put_source();
  cluster.excerpt(1, source, column(source, 0));
  cluster.excerpt(2, source, column(source, 1), ClientId{7});
  cluster.run_for(10_ms);
  cluster.crash(1);
  cluster.kill_client(2, ClientId{7});
  cluster.run_for(2_s);
  EXPECT_EQ(cluster.stats(0).excerpts_wanted + cluster.stats(2).excerpts_wanted, 0U);
  EXPECT_EQ(cluster.stats(2).arena_bytes_used, 0U);
}

TEST_P(Excerpts, DrainingNodesHandNoPartOver) {
  Cluster& cluster = start(4);
  const Request& source = put_source();
  for (std::size_t node : {1U, 2U}) {
    Request& get = cluster.excerpt(node, source, column(source, 0));
    expect_value(get);
    cluster.release(get);
  }
  cluster.drain(2);
  EXPECT_TRUE(cluster.run_until([&] { return cluster.drain_count(2) > 0; }, 60_s));
  EXPECT_EQ(cluster.stats(3).arena_bytes_used, 0U);
  cluster.drain(0);  // the source is handed over, its part is not
  EXPECT_TRUE(cluster.run_until([&] { return cluster.drain_count(0) > 0; }, 60_s));
}

// Two nodes have the source. Whichever node dies at whichever step, a live reader gets its part.
TEST_P(Excerpts, NodeThatDiesAtAnyStepHarmsNoReader) {
  for (std::size_t victim = 0; victim < 6; ++victim) {
    for (const Duration after : {0_ms, 1_ms, 3_ms, 10_ms, 26_ms, 27_ms, 29_ms}) {
      Cluster& cluster = start(6, is_slow);
      const Request& source = put_source();
      fetch(1, source);
      Request& first = cluster.excerpt(2, source, column(source, 0));
      Request& other = cluster.excerpt(3, source, column(source, 0));
      cluster.run_for(after);
      cluster.crash(victim);
      if (victim != 2) expect_value(first, 20_s);
      if (victim != 3) expect_value(other, 20_s);
      cluster.finish();
      for (const std::string& failure : cluster.checker().failures()) {
        ADD_FAILURE() << "node " << victim << " dies after " << after.ns / 1'000'000
                      << " ms: " << failure;
      }
    }
  }
  cluster_.reset();
}

}  // namespace
}  // namespace hoplite::sim
