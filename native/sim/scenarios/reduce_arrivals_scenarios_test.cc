// SPDX-License-Identifier: Apache-2.0
// How long allreduces take whose sources come late, in virtual time, over a grid of nodes and sizes
// (sim/runs/arrivals.h): beside the better of two plans that know the delay, or beside a ring. The
// figures of many nodes and 32 MiB are of one home, because they take most of the time here.
#include <gtest/gtest.h>

#include "sim/runs/arrivals.h"

namespace hoplite::sim {
namespace {

// In S/B, beside the bounds, which have no messages and no blocks. An object of 1 MiB is 128
// blocks, so of 15 owners the longest stripe has 9 for 8.5, and each row of blocks waits for 15.
double room_for(const ArrivalsRow& row) {
  if (row.size_bytes > 1_MiB) return row.nodes > 12 ? 0.02 : 0;
  return row.nodes <= 8 ? 0.13 : 0.45;
}

double part_for(const ArrivalsRow& row) {
  if (row.staggered && row.size_bytes == 1_MiB) return 1.25;
  if (row.staggered) return row.nodes == 3 ? 0.9 : 1.15;
  if (row.late < 1) return 1.15;
  return row.nodes <= 7 ? 1.05 : 1.10;
}

class Arrivals : public testing::TestWithParam<std::uint64_t> {
 protected:
  static void expect_within_bounds(const std::vector<std::size_t>& nodes, std::size_t turns) {
    const ArrivalsOptions options{.collectives = {Collective::kAllreduce},
                                  .nodes = nodes,
                                  .sizes_bytes = {GetParam()},
                                  .lates = {0.05, 0.1, 0.25, 0.5, 1},
                                  .turns = turns};
    measure_arrivals(options, [](const ArrivalsRow& row) {
      for (const auto& failure : row.failures) ADD_FAILURE() << json_of(row) << failure;
      EXPECT_LE(row.took, part_for(row) * row.bound + room_for(row)) << json_of(row);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, Arrivals, testing::Values(1_MiB, 4_MiB, 32_MiB),
                         [](const testing::TestParamInfo<std::uint64_t>& param) {
                           return std::to_string(param.param / 1_MiB) + "MiB";
                         });

TEST_P(Arrivals, OfFewNodesTakeAboutAsLongAsTheBetterPlan) {
  expect_within_bounds({3, 4, 5, 6, 7, 8}, 3);
}

TEST_P(Arrivals, OfManyNodesTakeAboutAsLongAsTheBetterPlan) {
  expect_within_bounds({12, 16}, GetParam() < 32_MiB ? 3 : 1);
}

}  // namespace
}  // namespace hoplite::sim
