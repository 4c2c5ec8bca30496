// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/arrivals.h"

#include <gtest/gtest.h>

namespace hoplite::sim {
namespace {

TEST(ArrivalsTable, TheBetterChoiceIsThatOfTheTwoPlans) {
  EXPECT_DOUBLE_EQ(better_choice(4, 0), 1.5) << "all own a stripe, as in a ring";
  EXPECT_DOUBLE_EQ(better_choice(4, 0.1), 1.5);
  EXPECT_DOUBLE_EQ(better_choice(4, 0.5), 5.0 / 3 - 0.5) << "the late one owns nothing";
  EXPECT_DOUBLE_EQ(better_choice(4, 1), 1) << "its source has to leave its link";
}

TEST(ArrivalsTable, EveryCaseIsMeasuredBesideItsBound) {
  std::vector<ArrivalsRow> rows;
  measure_arrivals({.nodes = {4}, .sizes_bytes = {1_MiB}, .lates = {0, 1}, .turns = 1},
                   [&](const ArrivalsRow& row) { rows.push_back(row); });
  ASSERT_EQ(rows.size(), 9U);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ArrivalsRow& row = rows[i];
    EXPECT_EQ(row.collective, static_cast<Collective>(i / 3));
    EXPECT_EQ(row.late, i % 3 == 1 ? 1 : 0);
    EXPECT_EQ(row.staggered, i % 3 == 2);
    EXPECT_EQ(row.bound > 1, row.collective == Collective::kAllreduce && i % 3 != 1);
    for (const auto& failure : row.failures) ADD_FAILURE() << failure;
    EXPECT_GE(row.took, 1) << "the last copy has to leave its link";
    EXPECT_LE(row.took, 2.5);
  }
}

}  // namespace
}  // namespace hoplite::sim
