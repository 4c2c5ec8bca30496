// SPDX-License-Identifier: Apache-2.0
#include "sim/model/hops.h"

#include <gtest/gtest.h>

namespace hoplite::sim {
namespace {

TEST(Hops, WhatWasSetLastCountsAndTheRestStays) {
  Hops hops;
  EXPECT_EQ(hops.of({0, 100}), 0U);
  hops.set({0, 100}, 3);
  hops.set({40, 20}, 1);
  EXPECT_EQ(hops.of({0, 40}), 3U);
  EXPECT_EQ(hops.of({40, 20}), 1U);
  EXPECT_EQ(hops.of({59, 2}), 3U);
  EXPECT_EQ(hops.of({100, 50}), 0U);
  hops.set({30, 40}, 2);
  EXPECT_EQ(hops.of({30, 40}), 2U);
  EXPECT_EQ(hops.of({20, 10}), 3U);
  EXPECT_EQ(hops.of({70, 30}), 3U);
  hops.set({0, 200}, 0);
  EXPECT_EQ(hops.of({0, 200}), 0U);
}

}  // namespace
}  // namespace hoplite::sim
