// SPDX-License-Identifier: Apache-2.0
#include "sim/model/lazy_arena.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hoplite::sim {
namespace {

constexpr std::size_t kSize = 10'000;  // not a multiple of a page

TEST(LazyArena, WhatNothingHasWrittenIsMarked) {
  LazyArena arena(kSize);
  EXPECT_EQ(arena.size(), kSize);
  const auto all = arena.range(0, kSize);
  EXPECT_EQ(std::ranges::count(all, LazyArena::kMark), static_cast<std::ptrdiff_t>(kSize));
}

TEST(LazyArena, WhatIsWrittenStaysWhenTheRangeIsLookedAtAgain) {
  LazyArena arena(kSize);
  std::ranges::fill(arena.range(4000, 200), std::byte{7});  // of two pages
  const auto all = arena.range(0, kSize);
  EXPECT_EQ(std::ranges::count(all, std::byte{7}), 200);
  EXPECT_EQ(all[3999], LazyArena::kMark);
  EXPECT_EQ(all[4200], LazyArena::kMark);
}

TEST(LazyArena, ARangeOutsideOfItIsAMistake) {
  LazyArena arena(kSize);
  EXPECT_TRUE(arena.range(kSize, 0).empty());
  EXPECT_DEATH((void)arena.range(kSize - 1, 2), "check failed");
}

}  // namespace
}  // namespace hoplite::sim
