// SPDX-License-Identifier: Apache-2.0
// Some thousand sieges; siege_fuzz.cc goes on from here.
#include "sim/runs/siege.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace hoplite::sim {
namespace {

class Siege100 : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Siege100, NothingThatAMemberAndAClientSayStopsANode) {
  constexpr int kSteps = 200;
  std::uint64_t grants = 0, blocks = 0;
  for (std::uint64_t seed = 100 * GetParam(); seed < 100 * GetParam() + 100; ++seed) {
    Prng prng(seed);
    Siege siege([&prng] { return static_cast<std::uint8_t>(prng.next() >> 32); });
    for (int step = 0; step < kSteps; ++step) siege.step();
    grants += siege.stats().grants;
    blocks += siege.stats().blocks_received;
  }
  EXPECT_GT(grants, 0U) << "lies that meet nothing show nothing";
  EXPECT_GT(blocks, 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Siege100, ::testing::Range(std::uint64_t{0}, std::uint64_t{60}));

}  // namespace
}  // namespace hoplite::sim
