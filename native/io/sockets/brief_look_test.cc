// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/brief_look.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

using std::chrono::microseconds;

struct Time {  // stands still unless a test moves it
  using duration = microseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Time>;
  static time_point now() { return time_point(microseconds(passed_us)); }
  static void pass(microseconds time) { passed_us += time.count(); }
  static inline rep passed_us = 1'000'000;
};

class BriefLookTest : public ::testing::Test {
 protected:
  BriefLookTest() { EXPECT_FALSE(finds_at_once()); }  // there was nothing a moment ago
  using Look = BriefLookBy<Time>;
  // How long it looked, in vain.
  microseconds looks_in_vain() {
    const auto before = Time::now();
    EXPECT_FALSE(look_.finds([] {
      Time::pass(microseconds(1));
      return false;
    }));
    return Time::now() - before;
  }
  // How long it rests after a look in vain that was the last thing it did.
  microseconds rest() {
    const auto before = Time::now();
    while (looks_in_vain() == microseconds(0)) Time::pass(microseconds(100));
    return Time::now() - before - Look::kLasts;
  }
  bool finds_at_once() {
    return look_.finds([] { return true; });
  }
  Look look_;
};

TEST_F(BriefLookTest, FindsWhatIsThereAndWhatComesInAMoment) {
  EXPECT_TRUE(finds_at_once());
  EXPECT_TRUE(look_.finds([looks = 0]() mutable {
    Time::pass(microseconds(20));
    return ++looks == 2;
  }));
  EXPECT_TRUE(finds_at_once());
  EXPECT_EQ(looks_in_vain(), Look::kLasts);
}

TEST_F(BriefLookTest, LooksOnlyWhereTheLastWaitWasAMomentAgo) {
  Time::pass(Look::kAMoment);
  EXPECT_TRUE(finds_at_once());
  Time::pass(Look::kAMoment + microseconds(1));
  EXPECT_EQ(looks_in_vain(), microseconds(0));
  EXPECT_EQ(looks_in_vain(), Look::kLasts);
}

TEST_F(BriefLookTest, SpendsAHundredthOfItsTimeWhereItNeverFindsAnything) {
  ASSERT_EQ(looks_in_vain(), Look::kLasts);
  for (const int us : {200, 400, 800, 1600, 3200, 5000, 5000}) EXPECT_EQ(rest(), microseconds(us));
}

TEST_F(BriefLookTest, LooksEachTimeAgainOnceItHasFoundSomething) {
  ASSERT_EQ(looks_in_vain(), Look::kLasts);
  EXPECT_EQ(rest(), microseconds(200));
  EXPECT_EQ(rest(), microseconds(400));
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(finds_at_once()) << i;
    Time::pass(microseconds(100));
  }
  EXPECT_TRUE(finds_at_once());
  EXPECT_TRUE(finds_at_once());
  ASSERT_EQ(looks_in_vain(), Look::kLasts);
  EXPECT_EQ(rest(), microseconds(200));
}

}  // namespace
}  // namespace hoplite
