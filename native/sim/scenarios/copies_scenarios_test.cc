// SPDX-License-Identifier: Apache-2.0
// Objects that several nodes are to keep: their keepers die, drain, and lack room, and so does the
// home that asks them (decision 50).
#include <vector>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

const ObjectId kA = object_named(1);
constexpr std::uint64_t kLarge = 300'000;
constexpr Duration kPastGrace = 6_s;  // a dead owner's, which is 3 s here

class Copies : public Scenario {
 protected:
  Request& keep_now(std::size_t node, std::uint8_t copies, std::uint64_t size_bytes = kLarge) {
    Request& keep = cluster_->keep(cluster_->put(node, kA, {.size_bytes = size_bytes}), copies);
    expect_value(keep);
    return keep;
  }
  // Returns the live nodes that have kA pinned.
  [[nodiscard]] std::vector<std::size_t> keepers() const {
    std::vector<std::size_t> found;
    for (std::size_t node = 0; node < cluster_->size(); ++node) {
      if (!cluster_->is_alive(node)) continue;
      for (const ObjectRow& row : cluster_->objects(node)) {
        if (row.object == kA && row.pinned) found.push_back(node);
      }
    }
    return found;
  }
  void expect_keepers(std::size_t count) {
    cluster_->run_until([&] { return keepers().size() == count; }, 20_s);
    EXPECT_EQ(keepers().size(), count);
  }
  void end() {
    TearDown();
    cluster_.reset();
  }
  void read(std::size_t node) {
    Request& get = cluster_->get(node, kA, true);
    expect_value(get);
    cluster_->release(get);
  }
};

INSTANTIATE_TEST_SUITE_P(Stripes, Copies, kStripeCounts, stripe_name);

TEST_P(Copies, AreThereWhenTheClientIsAnswered) {
  for (const std::uint64_t size_bytes : {kLarge, std::uint64_t{100}, std::uint64_t{0}}) {
    for (const std::uint8_t copies : std::vector<std::uint8_t>{1, 2, 3}) {
      start(5);
      keep_now(0, copies, size_bytes);
      EXPECT_EQ(keepers().size(), copies) << size_bytes;
      end();
    }
  }
}

TEST_P(Copies, OutliveTheirPutter) {
  Cluster& cluster = start(4);
  keep_now(0, 2);
  cluster.crash(0);
  read(3);
  expect_keepers(2);
  cluster.run_for(kPastGrace);
  EXPECT_EQ(keepers().size(), 2U) << "they are no orphans: no process owned them";
}

TEST_P(Copies, AreMadeAgainWhileOneLives) {
  Cluster& cluster = start(6);
  keep_now(0, 3);
  for (int deaths = 0; deaths < 3; ++deaths) {
    cluster.crash(keepers().front());
    expect_keepers(3);
  }
  read(keepers().front());
}

TEST_P(Copies, AreAsManyAsThereAreNodesAndMoreOnceThereAre) {
  Cluster& cluster = start(2);
  keep_now(0, 3);
  EXPECT_EQ(keepers().size(), 2U);
  cluster.join();
  expect_keepers(3);
}

TEST_P(Copies, AreMadeOnTheNodesThatWantItAnyway) {
  Cluster& cluster = start(6);
  std::vector<Request*> readers;
  for (const std::size_t node : {4U, 5U}) readers.push_back(&cluster.get(node, kA));
  cluster.run_for(10_ms);
  keep_now(0, 3);
  EXPECT_EQ(keepers(), (std::vector<std::size_t>{0, 4, 5}));
  for (Request* each : readers) {
    expect_value(*each);
    cluster.release(*each);
  }
}

TEST_P(Copies, SurviveTheirHomeAndAreAnsweredByTheNext) {
  for (std::uint64_t each = 1; each <= 6; ++each) {
    Cluster& cluster = start(5);
    const ObjectId object = object_named(each);
    Request& keep = cluster.keep(cluster.put(0, object, {.size_bytes = kLarge}), 2);
    cluster.run_for(Duration{static_cast<std::int64_t>(each) * 30'000});
    cluster.crash(each % 4 + 1);  // the home of some of the objects, the adopter of others
    expect_value(keep);
    cluster.crash(0);
    Request& get = cluster.get((each + 1) % 4 + 1, object, true);
    expect_value(get);
    cluster.release(get);
    end();
  }
}

TEST_P(Copies, GoWithTheirDeletion) {
  Cluster& cluster = start(4);
  keep_now(0, 3);
  cluster.crash(0);
  cluster.erase(3, kA);
  expect_keepers(0);
  for (std::size_t node = 1; node < 4; ++node) EXPECT_EQ(cluster.stats(node).objects, 0U);
}

TEST_P(Copies, ThatAreDeletedBeforeTheyAreThereAnswerTheirClient) {
  Cluster& cluster = start(3);
  Request& keep = cluster.keep(cluster.put(0, kA, {.size_bytes = kLarge}), 2);
  cluster.run_for(20_us);
  cluster.erase(0, kA);
  expect_error(keep, Code::kObjectLost);
}

TEST_P(Copies, OfAPutWhoseNodeDiesUnderItLeaveNothingBehind) {
  for (const Duration after : {15_us, 60_us, 200_us}) {
    Cluster& cluster = start(4);
    cluster.keep(cluster.put(0, kA, {.size_bytes = kLarge}), 2);
    cluster.run_for(after);
    cluster.crash(0);
    cluster.run_for(5_s);
    for (std::size_t node = 1; node < 4; ++node) {
      const bool is_whole = !keepers().empty();  // then it may stay
      EXPECT_TRUE(is_whole || cluster.stats(node).arena_bytes_pinned == 0) << "node " << node;
    }
    end();
  }
}

TEST_P(Copies, MoveFromANodeThatDrains) {
  Cluster& cluster = start(4);
  keep_now(0, 2);
  const std::size_t leaving = keepers().back();
  cluster.drain(leaving);
  EXPECT_TRUE(cluster.run_until([&] { return cluster.drain_count(leaving) > 0; }, 10_s));
  cluster.run_until([&] { return keepers().size() == 2; }, 10_s);
  for (const std::size_t node : keepers()) EXPECT_NE(node, leaving);
  cluster.crash(leaving);
  cluster.crash(0);
  cluster.run_for(kPastGrace);
  read(keepers().front());
}

TEST_P(Copies, WaitForANodeThatHasRoom) {
  Cluster& cluster = start(2, [](ClusterConfig& config) { config.engine.arena_bytes = 1_MiB; });
  const ObjectId fills = object_named(2);
  put_now(1, fills, {.size_bytes = 850'000});
  Request& keep = cluster.keep(cluster.put(0, kA, {.size_bytes = kLarge}), 2);
  EXPECT_FALSE(cluster.run_until_answered(keep, 5_s));
  read(0);
  cluster.erase(1, fills);
  expect_value(keep);
}

TEST_P(Copies, AreNotAwaitedByAClientThatCancelsOrDies) {
  Cluster& cluster = start(2, [](ClusterConfig& config) { config.engine.arena_bytes = 1_MiB; });
  put_now(1, object_named(2), {.size_bytes = 850'000});
  const Request& put = put_now(0, kA, {.size_bytes = kLarge});
  Request& cancelled = cluster.keep(put, 2);
  Request& abandoned = cluster.keep(put, 2);
  cluster.run_for(1_ms);
  cluster.cancel(cancelled);
  expect_error(cancelled, Code::kCancelled);
  cluster.kill_client(0, ClientId{1});
  cluster.run_for(1_s);
  EXPECT_TRUE(abandoned.abandoned);
}

TEST_P(Copies, OfWhatWasNotPutHereAreAnError) {
  Cluster& cluster = start(3);
  Request put = put_now(0, kA, {.size_bytes = kLarge});
  read(1);
  put.node = 1;
  expect_error(cluster.keep(put, 2), Code::kObjectLost);
  put.node = 0;
  expect_error(cluster.keep(put, 4), Code::kInvalidArgument);
}

}  // namespace
}  // namespace hoplite::sim
