// SPDX-License-Identifier: Apache-2.0
// Readers of an object's leading bytes while the rest still comes (decision 49), through deaths and
// other attempts; each for one and for three stripes. The fixture also checks that no byte changes
// under a mapping.
#include <vector>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kSize = 400'000;
constexpr std::uint64_t kLayer = kSize / 8;
const ObjectId kA = object_named(1);

class Early : public Scenario {
 protected:
  static void writes_slowly(ClusterConfig& config) {
    config.write_bytes_per_s = 1'000'000;  // 50 ms for a layer
  }
  // A reader waits for all bytes and for the first `layers`; the second request is returned.
  Request& stream(std::size_t node, std::uint64_t layers, ClientId client = ClientId{1}) {
    wholes_.push_back(&cluster_->get(node, kA, true, client));
    return cluster_->get(node, kA, true, client, layers * kLayer);
  }
  Request& put(std::size_t node, std::uint32_t attempt = 1) {
    return cluster_->put(node, kA, {.size_bytes = kSize, .incarnation = Incarnation{attempt}});
  }

  std::vector<Request*> wholes_;
};

INSTANTIATE_TEST_SUITE_P(Stripes, Early, kStripeCounts, stripe_name);

TEST_P(Early, LayersAreUsableEverywhereBeforeTheNextOneIsWritten) {
  Cluster& cluster = start(5, writes_slowly);
  Request& written = put(0);
  std::vector<Request*> first;
  for (std::size_t node = 0; node < 5; ++node) first.push_back(&stream(node, 1));
  for (Request* get : first) {
    expect_value(*get);
    EXPECT_LT(written.written, 3 * kLayer) << name_of(*get);
    EXPECT_TRUE(written.is_pending());
  }
  for (std::size_t node = 0; node < 5; ++node) {
    expect_value(cluster.get(node, kA, true, ClientId{1}, 5 * kLayer));
  }
  EXPECT_TRUE(written.is_pending());
  for (Request* whole : wholes_) expect_value(*whole);
}

TEST_P(Early, OriginThatDiesLeavesWhatHasComeAndFailsTheRest) {
  Cluster& cluster = start(3, writes_slowly);
  put(0);
  Request& first = stream(1, 2);
  expect_value(first);
  Request& next = cluster.get(1, kA, true, ClientId{1}, 7 * kLayer);
  cluster.crash(0);
  expect_error(next, Code::kObjectLost);
  expect_error(*wholes_[0], Code::kObjectLost);
  EXPECT_TRUE(first.pinned);
  cluster.run_for(1_s);
  cluster.release(first);  // its bytes are compared
}

TEST_P(Early, ReceiverThatDiesStopsNoOtherReader) {
  Cluster& cluster = start(5, writes_slowly);
  put(0);
  std::vector<Request*> first;
  for (std::size_t node = 1; node < 5; ++node) first.push_back(&stream(node, 1));
  for (Request* get : first) expect_value(*get);
  cluster.crash(1);
  for (std::size_t node = 2; node < 5; ++node) {
    expect_value(cluster.get(node, kA, true, ClientId{1}, 6 * kLayer));
    expect_value(*wholes_[node - 1]);
  }
}

TEST_P(Early, OtherAttemptHasAPlaceOfItsOwn) {
  Cluster& cluster = start(3, writes_slowly);
  Request& taken_back = put(0);
  Request& remote = stream(1, 1);
  Request& local = stream(0, 1);
  expect_value(remote);
  expect_value(local);
  Request& next = cluster.get(0, kA, false, ClientId{1}, 3 * kLayer);
  cluster.cancel(taken_back);
  expect_error(next, Code::kObjectLost);
  put(2, 2);
  cluster.run_for(1_ms);  // its home has heard of it
  Request& again = cluster.get(0, kA, false, ClientId{1}, 3 * kLayer);
  expect_value(again);
  EXPECT_EQ(again.fetched.incarnation, Incarnation{2});
  EXPECT_NE(again.fetched.extent, local.fetched.extent);
  expect_value(cluster.get(1, kA, true, ClientId{2}));
}

TEST_P(Early, ReaderThatTakesItsGetsBackKeepsWhatItHas) {
  Cluster& cluster = start(3, writes_slowly);
  put(0);
  Request& first = stream(1, 2);
  expect_value(first);
  Request& next = cluster.get(1, kA, true, ClientId{1}, 7 * kLayer);
  cluster.cancel(*wholes_[0]);
  cluster.cancel(next);
  expect_error(next, Code::kCancelled);
  expect_value(cluster.get(2, kA, true));
}

TEST_P(Early, ReaderThatDiesGivesItsRangeBack) {
  Cluster& cluster = start(3, writes_slowly);
  put(0);
  expect_value(stream(1, 2));
  cluster.kill_client(1, ClientId{1});
  cluster.run_for(2_s);
  EXPECT_EQ(cluster.stats(1).arena_bytes_used, 0U);
  expect_value(cluster.get(2, kA, true));
}

TEST_P(Early, SpilledObjectIsReadAsItComesBack) {
  start(2, [](ClusterConfig& config) {
    config.engine.when_full = WhenFull::kSpill;
    config.engine.spill_step_bytes = 16_KiB;
    config.disk_bytes_per_s = 1'000'000;
  });
  put_now(0, kA, {.size_bytes = kSize});
  for (std::uint64_t n = 10; n < 20; ++n) put_now(0, object_named(n), {.size_bytes = kSize});
  Request& first = stream(0, 1);
  expect_value(first);
  EXPECT_LT(first.fetched.ready_bytes, kSize);
  EXPECT_TRUE(wholes_[0]->is_pending());
  expect_value(*wholes_[0]);
}

}  // namespace
}  // namespace hoplite::sim
