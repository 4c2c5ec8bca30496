// SPDX-License-Identifier: Apache-2.0
#include "io/links/refusal_log.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

class RefusalLogTest : public ::testing::Test {
 protected:
  std::string refuse(const std::string& why) { return log_.handle_refusal(why, now_).value_or(""); }
  RefusalLog log_;
  Instant now_{1};
};

TEST_F(RefusalLogTest, SaysEachNewReasonAtOnceAndARepeatedOneOnceAMinute) {
  EXPECT_EQ(refuse("a"), "a");
  EXPECT_EQ(refuse("a"), "");
  EXPECT_EQ(refuse("b"), "b (and 1 more were refused since the last line)");
  EXPECT_EQ(refuse("b"), "");
  now_ = now_ + 60_s;
  EXPECT_EQ(refuse("b"), "b (and 1 more were refused since the last line)");
  EXPECT_EQ(log_.last(), "b");
}

TEST_F(RefusalLogTest, StrangersOfManyKindsFillNoDisk) {
  std::size_t lines = 0;
  for (int i = 0; i < 1000; ++i) lines += refuse(std::to_string(i)).empty() ? 0 : 1;
  EXPECT_EQ(lines, RefusalLog::kLinesPerMinute);
  now_ = now_ + 60_s;
  EXPECT_EQ(refuse("x"), "x (and 980 more were refused since the last line)");
}

}  // namespace
}  // namespace hoplite
