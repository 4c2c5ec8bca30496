// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/loans.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

constexpr Extent kRange{8192, 4096};
constexpr TransferId kFirst{1}, kSecond{2};

Place stripe(std::uint16_t index, std::uint16_t count, std::uint32_t block_bytes = 1024) {
  return {kRange, block_bytes, count, StripeIndex{index}};
}

TEST(Loans, ARangeIsKeptUntilTheLastReceiveWritesNoMore) {
  Loans loans;
  loans.add(kFirst, stripe(0, 2));
  loans.add(kSecond, stripe(1, 2));
  EXPECT_TRUE(loans.keep(kRange));
  loans.check_invariants();
  EXPECT_FALSE(loans.remove(kSecond));
  EXPECT_EQ(loans.remove(kFirst), kRange);
  EXPECT_TRUE(loans.places().empty());
  EXPECT_TRUE(loans.ranges().empty());
}

TEST(Loans, ARangeThatWasNotGivenBackIsNotReleased) {
  Loans loans;
  loans.add(kFirst, stripe(0, 1));
  EXPECT_FALSE(loans.remove(kFirst));
  EXPECT_FALSE(loans.keep(kRange)) << "nothing writes there";
}

TEST(Loans, ARangeBesideItIsFree) {
  Loans loans;
  loans.add(kFirst, stripe(0, 1));
  EXPECT_FALSE(loans.keep({kRange.offset - 64, 64}));
  EXPECT_FALSE(loans.keep({kRange.offset + kRange.size_bytes, 64}));
  EXPECT_TRUE(loans.keep({kRange.offset - 64, 8192})) << "as a slot inside a workspace";
  EXPECT_EQ(loans.remove(kFirst), (Extent{kRange.offset - 64, 8192}));
}

TEST(Loans, OnlyOtherStripesOfTheSameCutAreFree) {
  Loans loans;
  loans.add(kFirst, stripe(1, 3));
  EXPECT_FALSE(loans.is_free(stripe(1, 3)));
  EXPECT_TRUE(loans.is_free(stripe(0, 3)));
  EXPECT_FALSE(loans.is_free(stripe(0, 2))) << "another number of stripes";
  EXPECT_FALSE(loans.is_free(stripe(0, 3, 512))) << "other blocks";
  EXPECT_FALSE(loans.is_free({{kRange.offset + 1024, 64}, 1024, 3, StripeIndex{0}}));
  EXPECT_TRUE(loans.is_free({{kRange.offset + 4096, 64}, 1024, 3, StripeIndex{1}}));
}

}  // namespace
}  // namespace hoplite
