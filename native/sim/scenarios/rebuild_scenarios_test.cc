// SPDX-License-Identifier: Apache-2.0
// Nodes that make a version of an object of the version before it and a delta (decision 42); each
// for one and for three stripes.
#include <array>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kSize = 100'000;

class Rebuild : public Scenario {
 protected:
  // Puts versions on node 0, each with the delta from the one before it.
  void publish(std::size_t versions) {
    for (std::size_t n = 0; n < versions; ++n) {
      const std::uint64_t number = 100 + 10 * wholes_.size();
      wholes_.push_back(&put_now(0, object_named(number), {.size_bytes = kSize}));
      if (wholes_.size() < 2) continue;
      Request& delta = cluster_->put_delta(0, object_named(number + 1), before(), *wholes_.back());
      EXPECT_TRUE(cluster_->run_until_answered(delta));
      deltas_.push_back(&delta);
    }
  }
  [[nodiscard]] const Request& before() const { return *wholes_[wholes_.size() - 2]; }
  // A reader has a version, and no client maps it.
  void fetch(std::size_t node, const Request& whole) {
    Request& get = cluster_->get(node, whole.object, true);
    expect_value(get);
    cluster_->release(get);
  }
  // Gets the newest version on the node, of the first one and all deltas.
  Request& rebuild(std::size_t node, ClientId client = ClientId{1}) {
    return cluster_->rebuild(node, *wholes_.back(), *wholes_.front(), deltas_, client);
  }
  [[nodiscard]] std::uint64_t count_made(std::size_t node) const {
    return cluster_->stats(node).rebuilds;
  }
  static void is_slow(ClusterConfig& config) {
    config.engine.spill_step_bytes = 8'192;
    config.rebuild_bytes_per_s = 1'000'000;  // 100 ms for the whole
  }

  std::vector<const Request*> wholes_, deltas_;
};

INSTANTIATE_TEST_SUITE_P(Stripes, Rebuild, kStripeCounts, stripe_name);

TEST_P(Rebuild, ThreeReadersMakeItOnce) {
  Cluster& cluster = start(4);
  publish(1);
  for (std::size_t node = 1; node < 4; ++node) fetch(node, *wholes_[0]);
  publish(1);
  std::vector<Request*> gets;
  for (std::size_t node = 1; node < 4; ++node) {
    for (std::uint64_t client = 1; client < 4; ++client) {
      gets.push_back(&rebuild(node, ClientId{client}));
    }
  }
  for (Request* get : gets) expect_value(*get);
  for (std::size_t node = 1; node < 4; ++node) {
    EXPECT_EQ(count_made(node), 1U);
    EXPECT_EQ(cluster.stats(node).rebuilds_failed, 0U);
  }
}

TEST_P(Rebuild, ReaderThatMissedFourVersionsMakesTheLast) {
  start(2);
  publish(1);
  fetch(1, *wholes_[0]);
  publish(4);
  expect_value(rebuild(1));
  EXPECT_EQ(count_made(1), 1U);
}

// A client maps the base, so its bytes stay on the node when the base is deleted everywhere.
TEST_P(Rebuild, ReaderThatHoldsADeletedBaseMakesTheLast) {
  Cluster& cluster = start(3);
  publish(1);
  Request& held = cluster.get(1, wholes_[0]->object, true);
  expect_value(held);
  fetch(2, *wholes_[0]);
  publish(2);
  cluster.erase(0, wholes_[0]->object);
  cluster.run_for(1_s);
  expect_value(rebuild(1));
  EXPECT_EQ(count_made(1), 1U);
  expect_value(rebuild(2));
  EXPECT_EQ(count_made(2), 0U) << "no client maps it there";
  cluster.release(held);
}

TEST_P(Rebuild, ReaderWithoutTheBaseFetchesTheWhole) {
  Cluster& cluster = start(2);
  publish(2);
  expect_value(rebuild(1));
  EXPECT_EQ(count_made(1), 0U);
  EXPECT_EQ(cluster.stats(1).rebuilds_failed, 0U);
}

TEST_P(Rebuild, WrongStepOrWrongBaseFetchesTheWhole) {
  Cluster& cluster =
      start(3, [](ClusterConfig& config) { config.rebuild_faults_per_mille = 1000; });
  publish(3);
  fetch(1, *wholes_[0]);
  expect_value(rebuild(1));
  EXPECT_EQ(cluster.stats(1).rebuilds_failed, 1U);
  fetch(2, *wholes_[0]);
  const std::array<const Request*, 1> of_another{deltas_[1]};  // made for the second version
  expect_value(cluster.rebuild(2, *wholes_[2], *wholes_[0], of_another));
  EXPECT_EQ(cluster.stats(2).rebuilds_failed, 1U);
}

TEST_P(Rebuild, CopyThatWasMadeServesOthersWhenThePublisherDies) {
  Cluster& cluster = start(3);
  publish(1);
  fetch(1, *wholes_[0]);
  publish(1);
  fetch(1, *deltas_[0]);
  cluster.crash(0);
  cluster.run_for(3_s);
  expect_value(rebuild(1));
  EXPECT_EQ(count_made(1), 1U);
  cluster.run_for(20_ms);  // the claim is on its way
  expect_value(cluster.get(2, wholes_.back()->object, true));
}

TEST_P(Rebuild, NewHomeHearsOfACopyThatWasMade) {
  Cluster& cluster = start(5);
  publish(1);
  fetch(1, *wholes_[0]);
  publish(1);
  expect_value(rebuild(1));
  for (std::size_t node : {4U, 3U}) {  // one of them may be the home
    cluster.crash(node);
    cluster.run_for(2_s);
  }
  cluster.erase(0, wholes_[0]->object);
  expect_value(cluster.get(2, wholes_.back()->object, true));
}

TEST_P(Rebuild, CrashAmidAStepHarmsNoOtherReader) {
  Cluster& cluster = start(3, is_slow);
  publish(1);
  for (std::size_t node = 1; node < 3; ++node) fetch(node, *wholes_[0]);
  publish(1);
  rebuild(1);
  Request& other = rebuild(2);
  cluster.run_for(50_ms);
  cluster.crash(1);
  expect_value(other);
  cluster.restart(1);
  cluster.run_for(1_s);
  expect_value(rebuild(1));
  EXPECT_EQ(count_made(2), 1U);
}

TEST_P(Rebuild, DeltaThatIsLostMakesTheReaderFetchTheWhole) {
  Cluster& cluster = start(3);
  publish(1);
  fetch(1, *wholes_[0]);
  publish(1);
  cluster.erase(0, deltas_[0]->object);
  cluster.run_for(1_s);
  expect_value(rebuild(1), 30_s);
  EXPECT_EQ(count_made(1), 0U);
}

TEST_P(Rebuild, ClientThatDiesAmidAStepLeavesNothing) {
  Cluster& cluster = start(2, is_slow);
  publish(1);
  fetch(1, *wholes_[0]);
  publish(1);
  rebuild(1);
  cluster.run_for(50_ms);
  cluster.kill_client(1, ClientId{1});
  cluster.run_for(1_s);
  EXPECT_EQ(count_made(1), 0U);
  EXPECT_EQ(cluster.stats(1).arena_bytes_pinned, 0U);
}

TEST_P(Rebuild, DeletionOfTheObjectAmidAStepIsObeyed) {
  Cluster& cluster = start(3, is_slow);
  publish(1);
  fetch(1, *wholes_[0]);
  publish(1);
  Request& get = rebuild(1);
  cluster.run_for(50_ms);
  cluster.erase(2, wholes_.back()->object);
  EXPECT_TRUE(cluster.run_until_answered(get));
  cluster.release(get);
  cluster.run_for(1_s);
  const auto rows = cluster.objects(1);
  for (const ObjectRow& row : rows) EXPECT_NE(row.object, wholes_.back()->object);
}

TEST_P(Rebuild, FullArenaGivesUpTheBaseForTheWhole) {
  Cluster& cluster =
      start(2, [](ClusterConfig& config) { config.engine.arena_bytes = 512 * 1024; });
  publish(1);
  fetch(1, *wholes_[0]);
  publish(1);
  // Base and delta leave no room for the whole beside this one.
  put_now(1, object_named(5), {.size_bytes = 200'000});
  expect_value(rebuild(1), 30_s);
  EXPECT_EQ(count_made(1), 0U);
  EXPECT_EQ(cluster.stats(1).rebuilds_failed, 1U);
}

TEST_P(Rebuild, DrainingReaderMakesItAndHandsNothingOver) {
  Cluster& cluster = start(3, is_slow);
  publish(1);
  fetch(1, *wholes_[0]);
  publish(1);
  Request& get = rebuild(1);
  cluster.run_for(20_ms);
  cluster.drain(1);
  expect_value(get);
  cluster.release(get);
  EXPECT_TRUE(cluster.run_until([&] { return cluster.drain_count(1) > 0; }, 60_s));
}

}  // namespace
}  // namespace hoplite::sim
