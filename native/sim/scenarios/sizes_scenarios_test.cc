// SPDX-License-Identifier: Apache-2.0
// How long broadcasts and reduces take at few and many nodes and middle sizes, in virtual time
// (sim/runs/arrivals.h), beside what a chain of all nodes takes with its messages and blocks. That
// is the shape of both on a slow link where all nodes are there. A node that comes late may not
// make it longer.
#include <gtest/gtest.h>

#include "plan/broadcast/broadcast.h"
#include "sim/runs/arrivals.h"

namespace hoplite::sim {
namespace {

constexpr double kRateBytesPerS = 59'690'000, kHopS = 100e-6;  // as in sim/runs/arrivals.cc

double block_s(const ArrivalsRow& row) {
  EngineConfig config;
  config.link_bytes_per_s = static_cast<std::uint64_t>(kRateBytesPerS);
  return choose_block_bytes(row.size_bytes, config) / kRateBytesPerS;
}

// Returns the time of a copy after `hops` of messages, along a chain that passes `links` and stores
// a block at `stops`, in S/B.
double chain(const ArrivalsRow& row, double hops, double links, double stops) {
  const double copy_s = static_cast<double>(row.size_bytes) / kRateBytesPerS;
  return 1 + ((hops + links) * kHopS + stops * block_s(row)) / copy_s;
}

// Claim, Grant and PullStart go before the first block, and each receiver but the last sends on.
double broadcast_chain(const ArrivalsRow& row) {
  const auto n = static_cast<double>(row.nodes);
  return chain(row, 3, n - 1, n - 2);
}

// Want, Locate, Located, ReduceOwn and PullStart go before the first block, and the root and the
// reader each store one.
double reduce_chain(const ArrivalsRow& row) {
  const auto n = static_cast<double>(row.nodes);
  return chain(row, 5, n, n);
}

class Sizes : public testing::TestWithParam<std::uint64_t> {
 protected:
  template <typename Bound>
  static void expect_within(Collective collective, Bound bound) {
    const ArrivalsOptions options{.collectives = {collective},
                                  .sizes_bytes = {GetParam()},
                                  .lates = {0, 0.1, 0.5, 1},
                                  .turns = 1};
    measure_arrivals(options, [&](const ArrivalsRow& row) {
      for (const auto& failure : row.failures) ADD_FAILURE() << json_of(row) << failure;
      EXPECT_LE(row.took, bound(row)) << json_of(row);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Each, Sizes, testing::Values(256_KiB, 1_MiB, 4_MiB),
                         [](const testing::TestParamInfo<std::uint64_t>& param) {
                           return std::to_string(param.param / 1_KiB) + "KiB";
                         });

// Headers are a hundredth of blocks of 8 KiB.
TEST_P(Sizes, ABroadcastTakesAsLongAsAChain) {
  expect_within(Collective::kBroadcast,
                [](const ArrivalsRow& row) { return 1.02 * broadcast_chain(row); });
}

// A source that comes late makes it striped, and a quarter is then folded anew at worst.
TEST_P(Sizes, AReduceTakesAsLongAsAChainAndLittleLongerIfASourceComesLate) {
  expect_within(Collective::kReduce, [](const ArrivalsRow& row) {
    const bool are_there = !row.staggered && row.late == 0;
    return (are_there ? 1.03 : 1.3) * reduce_chain(row);
  });
}

}  // namespace
}  // namespace hoplite::sim
