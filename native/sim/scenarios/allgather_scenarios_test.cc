// SPDX-License-Identifier: Apache-2.0
// Allgather: every node has an object and gets all others', so that n broadcasts share all links.
// In virtual time, on links of 500 Mbit/s. Bounds on what is reached.
//
#include <algorithm>
#include <array>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kRate = 59'687'500;  // payload bytes per second of 500 Mbit/s
constexpr std::size_t kNodes = 8;

struct Case {
  const char* name;
  std::uint64_t size_bytes;
  std::uint64_t stands_for;  // bytes that each stored byte stands for
  bool all_wait;             // True if the gets wait for the puts, and false if the puts come first
  Duration apart{0};         // between one node's gets and the next node's
  double at_most;            // times (n - 1) size / rate
};

class Allgather : public testing::TestWithParam<Case> {
 protected:
  ObjectId object_of(std::size_t node) const { return object_named(first_ + node); }

  void start() {
    const Case& is = GetParam();
    ClusterConfig config = ClusterConfig::small(0);
    config.nodes = kNodes;
    config.engine = EngineConfig{};
    config.engine.arena_bytes = 12 * is.size_bytes + 4_MiB;
    config.network.rate_bytes_per_s = kRate;
    config.network.stands_for = is.stands_for;
    config.check_every = 1000;
    cluster_ = std::make_unique<Cluster>(config);
    cluster_->run_for(100_ms);
  }
  void put_all() {
    for (std::size_t node = 0; node < kNodes; ++node) {
      cluster_->put(node, object_of(node), {.size_bytes = GetParam().size_bytes});
    }
  }
  // Times (n - 1) size / rate.
  double run(std::uint64_t first) {
    const Case& is = GetParam();
    first_ = first;
    start();
    if (!is.all_wait) put_all();
    cluster_->run_for(100_ms);
    std::vector<Request*> gets;
    for (std::size_t n = 0; n < kNodes; ++n) {
      const std::size_t node = n * 5 % kNodes;  // in another order than that of their numbers
      if (n > 0) cluster_->run_for(is.apart);
      for (std::size_t of = 0; of < kNodes; ++of) {
        gets.push_back(&cluster_->get(node, object_of(of)));
      }
    }
    if (is.all_wait) cluster_->run_for(20_ms);
    const Instant begun = cluster_->now();
    if (is.all_wait) put_all();
    Instant ended = begun;
    for (Request* get : gets) {
      if (!cluster_->run_until_answered(*get, 60_s)) {
        ADD_FAILURE() << "a get has no answer";
        return is.at_most;
      }
      EXPECT_EQ(get->code(), Code::kOk);
      ended = std::max(ended, *get->answered);
    }
    finish();
    const double copy_ns = static_cast<double>(is.size_bytes) * 1e9 / static_cast<double>(kRate);
    return static_cast<double>((ended - begun).ns) / (copy_ns * (kNodes - 1));
  }
  void finish() {
    cluster_->finish();
    for (const std::string& failure : cluster_->checker().failures()) ADD_FAILURE() << failure;
  }
  std::uint64_t first_ = 0;  // of the names of the objects
  std::unique_ptr<Cluster> cluster_;
};

// The median of three runs, whose objects have other homes and other trees.
TEST_P(Allgather, UsesAllLinksNearlyAllTheTime) {
  const Case& is = GetParam();
  std::array<double, 3> took{};
  for (std::size_t i = 0; i < took.size(); ++i) took[i] = run(100 * (1 + i));
  std::sort(took.begin(), took.end());
  std::printf("allgather of %llu KiB of each of %zu nodes, %s: %.3f (%.3f to %.3f) x the bound\n",
              static_cast<unsigned long long>(is.size_bytes / 1_KiB), kNodes, is.name, took[1],
              took[0], took[2]);
  EXPECT_LE(took[1], is.at_most);
}
std::string name_of_case(const testing::TestParamInfo<Case>& each) { return each.param.name; }
INSTANTIATE_TEST_SUITE_P(
    , Allgather,
    testing::Values(Case{"AllWaitFor1MiB", 1_MiB, 1, true, {0}, 1.05},
                    Case{"Of1MiBOneLongAfterTheOther", 1_MiB, 1, false, 3_ms, 1.4},
                    Case{"Of4MiBThatIsThere", 4_MiB, 8, false, {0}, 1.4},
                    Case{"Of4MiBOneAfterTheOther", 4_MiB, 8, false, 500_us, 1.35},
                    Case{"AllWaitFor32MiB", 32_MiB, 64, true, {0}, 1.13}),
    name_of_case);
// Sizes and times between the cases above.
INSTANTIATE_TEST_SUITE_P(
    Slow, Allgather,
    testing::Values(Case{"Of1MiBThatIsThere", 1_MiB, 1, false, {0}, 1.4},
                    Case{"AllWaitFor4MiB", 4_MiB, 8, true, {0}, 1.25},
                    Case{"Of4MiBOneLongAfterTheOther", 4_MiB, 8, false, 3_ms, 1.5},
                    Case{"Of32MiBThatIsThere", 32_MiB, 64, false, {0}, 1.25},
                    Case{"Of32MiBOneAfterTheOther", 32_MiB, 64, false, 1_ms, 1.35}),
    name_of_case);

}  // namespace
}  // namespace hoplite::sim
