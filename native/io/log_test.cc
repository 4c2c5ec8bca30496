// SPDX-License-Identifier: Apache-2.0
#include "io/log.h"

#include <gtest/gtest.h>

#include <regex>

namespace hoplite {
namespace {

TEST(Log, ALineHasTheFormOfThePythonHalf) {
  tm local{};
  local.tm_year = 126;
  local.tm_mon = 10;
  local.tm_mday = 8;
  local.tm_hour = 9;
  local.tm_sec = 7;
  local.tm_isdst = -1;
  EXPECT_EQ(warning_line("hoplite_ray.links", "rail 0 is cut", {::mktime(&local), 45'999'999}),
            "2026-11-08 09:00:07,045 level=WARNING logger=hoplite_ray.links rail 0 is cut\n");
}

TEST(Log, AWarningIsOneLineOfStandardError) {
  testing::internal::CaptureStderr();
  log_warning("hoplite_ray.spill", "no room");
  const std::string line = testing::internal::GetCapturedStderr();
  const std::regex form(
      R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} level=WARNING logger=\S+ no room\n)");
  EXPECT_TRUE(std::regex_match(line, form)) << line;
}

TEST(Log, ANodeIsNamedInHex) {
  EXPECT_EQ(node_name(NodeId{0xfedc000000000001}), "node fedc000000000001");
}

}  // namespace
}  // namespace hoplite
