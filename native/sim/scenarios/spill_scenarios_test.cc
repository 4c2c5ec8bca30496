// SPDX-License-Identifier: Apache-2.0
// Nodes that spill: four times as much as their arenas hold, deaths, and disks with faults; each
// for one and for three stripes.
#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kCount = 16;  // of 1 MiB in an arena of 4 MiB
constexpr std::uint64_t kSize = 1'000'000;

class Spill : public Scenario {
 protected:
  static void spills(ClusterConfig& config) {
    config.engine.when_full = WhenFull::kSpill;
    config.engine.block_bytes_min = config.engine.block_bytes_max = 16_KiB;
    config.engine.credit_bytes = 256_KiB;
  }
  void put_all() {
    for (std::uint64_t n = 0; n < kCount; ++n) {
      put_now(0, object_named(10 + n), {.size_bytes = kSize, .dtype = DType::kFloat32});
    }
  }
  void expect_all(std::size_t node) {
    for (std::uint64_t n = 0; n < kCount; ++n) {
      Request& get = cluster_->get(node, object_named(10 + n), true);
      expect_value(get);
      cluster_->release(get);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Stripes, Spill, kStripeCounts, stripe_name);

TEST_P(Spill, FourTimesWhatFitsIsReadHereAndElsewhere) {
  Cluster& cluster = start(3, spills);
  put_all();
  EXPECT_GE(cluster.stats(0).spill_bytes, (kCount - 4) * kSize);
  expect_all(0);
  expect_all(1);
  const std::uint64_t written = cluster.stats(0).spill_bytes_written;
  expect_all(2);
  EXPECT_EQ(cluster.stats(0).spill_bytes_written, written) << "what is in the file stays there";
}

TEST_P(Spill, SourcesOfAReduceComeFromTheFile) {
  Cluster& cluster = start(3, spills);
  put_all();
  Request& reduce = cluster.reduce(1, object_named(5), {.source_count = 6, .count = 6});
  for (std::uint32_t i = 0; i < 6; ++i) cluster.confirm(reduce, i, object_named(10 + i));
  expect_value(reduce, 30_s);
  expect_value(cluster.get(2, object_named(5)));
}

TEST_P(Spill, DrainingNodeHandsOverWhatItHasSpilled) {
  Cluster& cluster = start(3, [](ClusterConfig& config) {
    spills(config);
    config.engine.caller_grace = 60_s;  // orphans are not spilled
  });
  put_all();
  cluster.drain(0);
  EXPECT_TRUE(cluster.run_until([&] { return cluster.drain_count(0) > 0; }, 60_s))
      << cluster.stats(0).sole_copies << " sole copies";
  cluster.crash(0);
  cluster.run_for(3_s);
  expect_all(1);
}

TEST_P(Spill, CrashOfAReceiverIsNothingAndOfTheHolderIsALoss) {
  Cluster& cluster = start(3, spills);
  put_all();
  cluster.get(1, object_named(10), true);
  cluster.run_for(2_ms);
  cluster.crash(1);
  expect_all(2);
  cluster.crash(0);
  cluster.run_for(3_s);
  cluster.restart(0);
  cluster.run_for(1_s);
  EXPECT_EQ(cluster.stats(0).spill_bytes, 0U);
}

TEST_P(Spill, FullDiskRefusesPutsAndLosesNothing) {
  Cluster& cluster = start(2, [](ClusterConfig& config) {
    spills(config);
    config.disk_bytes = 4 * kSize;
  });
  cluster.checker().allow_store_full();
  std::vector<ObjectId> there;
  std::string text;
  for (std::uint64_t n = 0; n < kCount; ++n) {
    Request& put = cluster.put(0, object_named(10 + n), {.size_bytes = kSize});
    EXPECT_TRUE(cluster.run_until_answered(put, 30_s));
    if (put.code() == Code::kOk) there.push_back(put.object);
    if (put.error) text = put.error->text;
  }
  EXPECT_GE(there.size(), 6U);
  EXPECT_LT(there.size(), 9U);
  EXPECT_NE(text.find("Spilling failed: no space left on disk"), std::string::npos) << text;
  cluster.erase(0, there.back());  // room in the arena, to read the others back
  there.pop_back();
  for (const ObjectId& object : there) {
    Request& get = cluster.get(1, object, true);
    expect_value(get, 30_s);
    cluster.release(get);
  }
}

TEST_P(Spill, WhatCanNotBeReadBackIsLostWithAReason) {
  Cluster& cluster = start(2, spills);
  put_all();
  cluster.erase(0, object_named(10 + kCount - 1));  // room in the arena: nothing is to be written
  cluster.fail_disks(1000);
  Request& get = cluster.get(0, object_named(10), true);
  expect_error(get, Code::kObjectLost);
  EXPECT_NE(get.error->text.find("input/output error"), std::string::npos) << get.error->text;
  cluster.fail_disks(0);
  expect_value(cluster.get(1, object_named(11), true));
}

TEST_P(Spill, DeletingEmptiesTheDiskAlsoWhileItIsWrittenAndRead) {
  Cluster& cluster = start(2, [](ClusterConfig& config) {
    spills(config);
    config.disk_bytes_per_s = 10'000'000;
  });
  for (std::uint64_t n = 0; n < 6; ++n) {
    cluster.put(0, object_named(10 + n), {.size_bytes = kSize});
  }
  cluster.run_for(50_ms);
  cluster.get(1, object_named(10));
  for (std::uint64_t n = 0; n < 6; ++n) cluster.erase(1, object_named(10 + n));
  cluster.run_for(5_s);
  EXPECT_EQ(cluster.stats(0).spill_bytes, 0U);
  EXPECT_EQ(cluster.stats(0).arena_bytes_used, 0U);
}

}  // namespace
}  // namespace hoplite::sim
