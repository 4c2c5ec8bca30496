// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/scale.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

namespace hoplite::sim {
namespace {

TEST(Scale, EveryCaseIsCountedAndNoneFails) {
  constexpr std::size_t kNodes = 6;
  std::map<std::pair<std::string, std::uint64_t>, ScaleRow> rows;
  measure_scale(
      {.nodes = {kNodes}, .sizes_bytes = {1_KiB, 64_KiB, 1_MiB}, .directory_objects = 120},
      [&](const ScaleRow& row) {
        for (const auto& failure : row.failures) {
          ADD_FAILURE() << row.name << ": " << failure;
        }
        EXPECT_EQ(row.nodes, kNodes);
        EXPECT_GE(row.messages_busiest, row.messages_home);
        EXPECT_GE(row.turns, row.turns_busiest);
        rows[{row.name, row.size_bytes}] = row;
      });
  EXPECT_EQ(rows.size(), 8U + 6U + 5U);
  for (const std::uint64_t size_bytes : {1_KiB, 64_KiB, 1_MiB}) {
    // All but the home, at most, ask it; each hears of it and says that it is there.
    EXPECT_GE(rows.at({"broadcast", size_bytes}).messages_home, 3 * (kNodes - 2));
    EXPECT_GE(rows.at({"broadcast", size_bytes}).depth, 1U);
    EXPECT_LT(rows.at({"broadcast", size_bytes}).depth, kNodes);
    EXPECT_GE(rows.at({"reduce", size_bytes}).seconds, rows.at({"reduce", size_bytes}).bound_s);
  }
  EXPECT_EQ(rows.at({"reduce", 1_MiB}).depth, 2U);  // to the stripe's owner, and to the reader
  EXPECT_GT(rows.at({"broadcast, a relay dies", 1_MiB}).messages,
            rows.at({"broadcast", 1_MiB}).messages);
  EXPECT_GE(rows.at({"puts of many", 1_KiB}).shard_max, 120 / kNodes);
  // Each of those left says to each other that it has said all.
  EXPECT_GE(rows.at({"a node leaves", 1_KiB}).messages, (kNodes - 1) * (kNodes - 2));
}

// Two levels of a reduce, one grant for all stripes, and a home that feeds no other node.
TEST(Scale, ManyNodesTakeFewTimesTheBound) {
  const std::map<std::string, double> most = {{"broadcast", 4},
                                              {"broadcast, all wait", 3.6},
                                              {"reduce", 6},
                                              {"allreduce", 6.5},
                                              {"broadcast, a relay dies", 8}};
  measure_scale({.nodes = {256}, .sizes_bytes = {1_MiB}}, [&](const ScaleRow& row) {
    for (const auto& failure : row.failures) ADD_FAILURE() << row.name << ": " << failure;
    EXPECT_LE(row.seconds / row.bound_s, most.at(row.name)) << row.name;
  });
}

}  // namespace
}  // namespace hoplite::sim
