// SPDX-License-Identifier: Apache-2.0
// Random lives: kept seeds and a fresh handful each build; and the canaries, which must be seen.
#include "sim/runs/random_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace hoplite::sim {
namespace {

RunResult expect_clean(const RunOptions& options) {
  RunResult result = random_run(options);
  for (const std::string& failure : result.failures) {
    ADD_FAILURE() << "seed " << options.seed << " (" << result.summary << "): " << failure;
  }
  return result;
}

TEST(RandomRun, KeptSeedsPass) {
  std::ifstream file(HOPLITE_ROOT "/native/sim/seeds.txt");
  std::string line;
  int count = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    const std::uint64_t seed = std::stoull(line);
    expect_clean({.seed = seed});
    expect_clean({.seed = seed, .small_limits = Choice::kAlways});
    expect_clean({.seed = seed,  // as most of them failed
                  .small_limits = Choice::kNever,
                  .real_turns = Choice::kNever,
                  .liar = Choice::kNever});
    ++count;
  }
  EXPECT_GT(count, 0) << "seeds.txt was not found";
}

TEST(RandomRun, FirstSeedsPass) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) expect_clean({.seed = seed});
}

TEST(RandomRun, SeedsPassWithAllLimitsSmall) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    expect_clean({.seed = seed, .small_limits = Choice::kAlways});
  }
}

TEST(RandomRun, SeedsPassWithRealTurnsAndUnfairSchedules) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    expect_clean({.seed = seed, .real_turns = Choice::kAlways});
  }
}

TEST(RandomRun, SeedsPassWithAMemberThatLies) {
  std::uint64_t lies = 0, honest = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const RunResult result = expect_clean({.seed = seed, .liar = Choice::kAlways});
    lies += result.lies;
    honest += result.answered_honest;
  }
  EXPECT_GT(lies, 1000U);
  EXPECT_GT(honest, 100U);
}

TEST(RandomRun, SeedsPassWithVersionsThatAreRebuilt) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    expect_clean({.seed = seed, .rebuilds = Choice::kAlways});
  }
}

TEST(RandomRun, SameSeedGivesTheSameRun) {
  const RunResult first = random_run({.seed = 7});
  const RunResult again = random_run({.seed = 7});
  EXPECT_EQ(first.events, again.events);
  EXPECT_EQ(first.answered, again.answered);
}

// Seeds of forty whose run with the canary says something that begins with `said`.
int count_reports(Canary canary, const std::string& said) {
  int count = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const auto failures = random_run({.seed = seed, .canary = canary}).failures;
    const auto says = [&](const std::string& failure) { return failure.starts_with(said); };
    if (std::any_of(failures.begin(), failures.end(), says)) ++count;
  }
  return count;
}

class Canaries : public testing::TestWithParam<Canary> {};

// Not every seed has a fold or a second block in it; most must show the damage.
TEST_P(Canaries, IsReported) { EXPECT_GE(count_reports(GetParam(), ""), 3); }

class FenceCanaries : public testing::TestWithParam<Canary> {};

TEST_P(FenceCanaries, IsReportedAsSuch) { EXPECT_GE(count_reports(GetParam(), "not fenced: "), 3); }

std::string canary_name(const testing::TestParamInfo<Canary>& canary) {
  static constexpr const char* kNames[] = {
      "None",          "FoldTwice",  "FlipByte",     "LoseWrite",     "ForgetReply",
      "GrantInCircle", "SendTwice",  "Scribble",     "ForgetRelease", "ForgetEarlyClaim",
      "ObeyOldView",   "RenewLease", "TakeOldBlock", "TrustBase"};
  return kNames[static_cast<std::size_t>(canary.param)];
}
INSTANTIATE_TEST_SUITE_P(Each, Canaries,
                         testing::Values(Canary::kFoldTwice, Canary::kFlipByte, Canary::kLoseWrite,
                                         Canary::kForgetReply, Canary::kGrantInCircle,
                                         Canary::kSendTwice, Canary::kScribble,
                                         Canary::kForgetRelease, Canary::kTrustBase),
                         canary_name);
INSTANTIATE_TEST_SUITE_P(Each, FenceCanaries,
                         testing::Values(Canary::kObeyOldView, Canary::kRenewLease,
                                         Canary::kTakeOldBlock),
                         canary_name);

}  // namespace
}  // namespace hoplite::sim
