// SPDX-License-Identifier: Apache-2.0
#include "node/jobs/gatherer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/prng.h"

namespace hoplite {
namespace {

std::vector<std::byte> random_bytes(std::uint64_t size, Prng& prng) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next());
  return bytes;
}

// The excerpt, byte by byte.
std::vector<std::byte> pick(const std::vector<StridedRuns>& runs,
                            const std::vector<std::byte>& source, std::uint64_t size) {
  std::vector<std::byte> picked(size);
  for (const StridedRuns& run : runs) {
    for (std::uint64_t row = 0; row < run.count; ++row) {
      for (std::uint64_t i = 0; i < run.run_bytes; ++i) {
        picked[run.into + row * run.run_bytes + i] = source[run.from + row * run.stride_bytes + i];
      }
    }
  }
  return picked;
}

TEST(Gatherer, CopiesRunsWhateverItsStepsAre) {
  Prng prng(3);
  for (std::size_t round = 0; round < 300; ++round) {
    const std::uint64_t source_bytes = 1 + prng.below(5000);
    const auto source = random_bytes(source_bytes, prng);
    std::vector<StridedRuns> runs;
    std::uint64_t end = 0;
    for (std::size_t i = 0, count = 1 + prng.below(4); i < count; ++i) {
      StridedRuns run;
      run.into = end + prng.below(2) * prng.below(100);
      run.run_bytes = 1 + prng.below(std::min<std::uint64_t>(source_bytes, 300));
      run.from = prng.below(source_bytes - run.run_bytes + 1);
      run.stride_bytes = run.run_bytes + prng.below(100);
      run.count = 1 + prng.below(1 + (source_bytes - run.from - run.run_bytes) / run.stride_bytes);
      end = run.into + run.run_bytes * run.count;
      runs.push_back(run);
    }
    const std::uint64_t target_bytes = end + prng.below(70);
    ASSERT_TRUE(do_runs_fit(runs, source_bytes, target_bytes));
    auto target = random_bytes(target_bytes, prng);
    Gatherer gatherer(runs);
    const std::uint64_t step_bytes = 1 + prng.below(2 * target_bytes);
    std::size_t steps = 0;
    for (; !gatherer.is_done(); ++steps) gatherer.step(source, target, step_bytes);
    EXPECT_EQ(target, pick(runs, source, target_bytes));
    EXPECT_LE(steps, 2 * target_bytes / step_bytes + 2 * runs.size() + 2);
  }
}

TEST(Gatherer, RunsOutsideOfTheirSourceOrTargetDoNotFit) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const std::array<StridedRuns, 10> wrong{{{0, 0, 0, 0, 1},
                                           {0, 0, 8, 8, 0},
                                           {0, 93, 8, 8, 1},
                                           {0, 0, 8, 24, 5},
                                           {0, 0, 8, 8, 7},
                                           {45, 0, 8, 8, 1},
                                           {0, kHuge, 8, 8, 1},
                                           {0, 0, kHuge, 8, 1},
                                           {0, 0, 8, kHuge, 2},
                                           {0, 0, 1, 0, kHuge}}};
  for (const StridedRuns& run : wrong) EXPECT_FALSE(do_runs_fit({&run, 1}, 100, 50));
  const std::array<StridedRuns, 2> overlapping{{{0, 0, 8, 8, 2}, {15, 0, 8, 8, 1}}};
  EXPECT_FALSE(do_runs_fit(overlapping, 100, 50));
  const std::array<StridedRuns, 2> right{{{0, 0, 8, 23, 5}, {42, 92, 8, 0, 1}}};
  EXPECT_TRUE(do_runs_fit(right, 100, 50));
}

}  // namespace
}  // namespace hoplite
