// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace hoplite {
namespace {

using Given = std::vector<std::pair<TransferId, std::uint32_t>>;

constexpr TransferId kFirst{1}, kSecond{2}, kThird{3}, kFourth{4}, kFifth{5};

Given all_credit(FoldPace& pace) {
  Given given;
  while (const auto next = pace.poll_credit()) given.push_back(*next);
  return given;
}

TEST(FoldPace, GivesCreditAtOnceToWhomIsNotAhead) {
  FoldPace pace(2);
  pace.begin(kFirst, 0);
  pace.begin(kSecond, 0);
  pace.advance(kFirst, 1, 1);
  EXPECT_EQ(all_credit(pace), (Given{{kFirst, 1}}));
  EXPECT_TRUE(all_credit(pace).empty()) << "once";
}

TEST(FoldPace, HoldsAllCreditOfWhomIsAheadUntilTheOthersHaveComeNear) {
  FoldPace pace(2);
  pace.begin(kFirst, 0);
  pace.begin(kSecond, 0);
  pace.advance(kFirst, 2, 1);
  pace.advance(kFirst, 3, 1);
  EXPECT_TRUE(all_credit(pace).empty());
  pace.advance(kSecond, 1, 1);
  EXPECT_EQ(all_credit(pace), (Given{{kSecond, 1}}));
  pace.advance(kSecond, 2, 0);
  EXPECT_EQ(all_credit(pace), (Given{{kFirst, 2}}));
}

TEST(FoldPace, IsNotHeldUpByAQuarter) {
  FoldPace pace(1);
  for (const TransferId transfer : {kFirst, kSecond, kThird, kFourth}) pace.begin(transfer, 0);
  for (std::uint32_t block = 1; block < 10; ++block) {
    for (const TransferId transfer : {kSecond, kThird, kFourth}) {
      pace.advance(transfer, block, 1);
    }
    EXPECT_EQ(all_credit(pace).size(), 3U) << "the first gives nothing";
  }
  pace.begin(kFifth, 0);
  pace.advance(kSecond, 10, 1);
  EXPECT_FALSE(pace.poll_credit()) << "two of five are more";
}

TEST(FoldPace, WaitsForNobodyWhoStandsStillUntilItMoves) {
  FoldPace pace(1);
  pace.begin(kFirst, 0);
  pace.begin(kSecond, 0);
  pace.advance(kSecond, 1, 1);
  EXPECT_TRUE(pace.is_holding());
  pace.handle_window();
  EXPECT_FALSE(pace.poll_credit()) << "the first has only begun in it";
  pace.handle_window();
  EXPECT_EQ(all_credit(pace), (Given{{kSecond, 1}}));
  EXPECT_FALSE(pace.is_holding());
  pace.advance(kSecond, 2, 1);
  EXPECT_EQ(all_credit(pace), (Given{{kSecond, 1}}));
  pace.advance(kFirst, 1, 1);
  EXPECT_EQ(all_credit(pace), (Given{{kFirst, 1}}));
  pace.advance(kSecond, 3, 1);
  EXPECT_FALSE(pace.poll_credit());
}

TEST(FoldPace, StillWaitsForTheOthersAfterAWindowInWhichOnlyTheyMoved) {
  FoldPace pace(1);
  pace.begin(kFirst, 0);
  pace.begin(kSecond, 0);
  pace.advance(kSecond, 9, 1);
  for (std::uint32_t block = 1; block < 9; ++block) {
    pace.advance(kFirst, block, 0);
    pace.handle_window();
    EXPECT_FALSE(pace.poll_credit()) << "block " << block;
  }
  pace.advance(kFirst, 9, 0);
  EXPECT_EQ(all_credit(pace), (Given{{kSecond, 1}}));
}

TEST(FoldPace, GoesOnWithoutWhoHasEnded) {
  FoldPace pace(1);
  pace.begin(kFirst, 0);
  pace.begin(kSecond, 0);
  pace.advance(kSecond, 5, 3);
  EXPECT_FALSE(pace.poll_credit());
  pace.end(kFirst);
  EXPECT_EQ(all_credit(pace), (Given{{kSecond, 3}}));
  pace.advance(kSecond, 6, 1);
  pace.end(kSecond);
  EXPECT_FALSE(pace.poll_credit()) << "its credit is gone with it";
}

}  // namespace
}  // namespace hoplite
