// SPDX-License-Identifier: Apache-2.0
#include "node/jobs/rebuilder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/must_test.h"
#include "base/prng.h"
#include "delta/finder.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

constexpr std::uint64_t kSize = 3_MiB;  // three sections

struct RebuilderTest : testing::Test {
  RebuilderTest() {
    Prng prng(7);
    std::vector<std::byte> whole(kSize);
    for (std::byte& byte : whole) byte = static_cast<std::byte>(prng.next());
    const auto base = arena_.at(base_);
    std::ranges::copy(whole, base.begin());
    for (std::size_t i = 0; i < 5000; ++i) whole[prng.below(kSize)] ^= std::byte{1};
    const std::array<DeltaRange, 1> ranges{{{kSize, 2}}};
    auto finder = must(DeltaFinder::start(ranges, base, {}, {.limit_bytes = kSize}));
    EXPECT_TRUE(finder.add(whole));
    const auto delta = finder.finish();
    delta_ = {8_MiB, delta->size()};
    std::ranges::copy(*delta, arena_.at(delta_).begin());
    whole_ = std::move(whole);
    crc_ = crc32c(whole_);
  }
  [[nodiscard]] RebuildJob job(std::uint64_t rebuild, std::uint64_t step_bytes = kSize) const {
    return {RebuildId{rebuild}, {}, RebuildWay::kMake, base_, {delta_}, target_, crc_, step_bytes};
  }
  RebuildDone poll_done() {
    for (;;) {
      auto all = rebuilder_.take_done();
      if (!all.empty()) {
        EXPECT_EQ(all.size(), 1U);
        return all.front();
      }
      (void)poller_.wait(std::nullopt);
    }
  }
  RebuildDone make(const RebuildJob& step) {
    rebuilder_.submit(step);
    return poll_done();
  }
  [[nodiscard]] bool is_made() const { return std::ranges::equal(arena_.at(target_), whole_); }

  const Extent base_{0, kSize};
  const Extent target_{4_MiB, kSize};
  Extent delta_;
  std::vector<std::byte> whole_;
  std::uint32_t crc_ = 0;  // of the whole
  Poller poller_ = must(Poller::open());
  Arena arena_ = must(Arena::open(16_MiB));
  Rebuilder rebuilder_{arena_, poller_};
};

TEST_F(RebuilderTest, MakesTheWholeInOneStepOrInSeveral) {
  for (const std::uint64_t step_bytes : {kSize, std::uint64_t{1_MiB}, std::uint64_t{1}}) {
    std::ranges::fill(arena_.at(target_), std::byte{0});
    const RebuildJob step = job(step_bytes, step_bytes);
    RebuildDone done = make(step);
    std::size_t steps = 1;
    for (; !done.is_whole && done.error.empty(); ++steps) done = make(step);
    EXPECT_EQ(done.error, "");
    EXPECT_EQ(steps, step_bytes == kSize ? 1U : 3U);
    EXPECT_TRUE(is_made());
  }
}

TEST_F(RebuilderTest, NamesTheObjectAndWhatIsWrong) {
  arena_.at(base_)[100] ^= std::byte{1};
  testing::internal::CaptureStderr();
  const RebuildDone done = make(job(1));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(done.is_whole);
  EXPECT_NE(done.error.find("rebuilding object 00000000"), std::string::npos) << done.error;
  EXPECT_NE(log.find("logger=hoplite_ray.rebuild rebuilding object"), std::string::npos) << log;
  arena_.at(base_)[100] ^= std::byte{1};
  EXPECT_TRUE(make(job(2)).is_whole) << "the thread goes on";
}

TEST_F(RebuilderTest, RefusesBytesThatAreNoDelta) {
  std::ranges::fill(arena_.at(delta_), std::byte{3});
  testing::internal::CaptureStderr();
  EXPECT_NE(make(job(1)).error, "");
  testing::internal::GetCapturedStderr();
}

TEST_F(RebuilderTest, RefusesTheDeltasOfAnotherVersion) {
  ++crc_;
  testing::internal::CaptureStderr();
  const RebuildDone done = make(job(1));
  testing::internal::GetCapturedStderr();
  EXPECT_NE(done.error.find("lead to another version"), std::string::npos) << done.error;
}

TEST_F(RebuilderTest, ForgetsARebuildThatGoesOnNoMore) {
  EXPECT_FALSE(make(job(1, 1)).is_whole);
  RebuildJob forget = job(1);
  forget.way = RebuildWay::kForget;
  rebuilder_.submit(forget);
  EXPECT_FALSE(make(job(1, 1)).is_whole) << "it begins again";
  EXPECT_FALSE(make(job(1, 1)).is_whole);
  EXPECT_TRUE(make(job(1, 1)).is_whole);
}

TEST_F(RebuilderTest, StepsOfSeveralRebuildsMayAlternate) {
  RebuildJob other = job(2, 1_MiB);
  other.target.offset = 12_MiB;
  EXPECT_FALSE(make(job(1, 1_MiB)).is_whole);
  EXPECT_FALSE(make(other).is_whole);
  EXPECT_FALSE(make(job(1, 1_MiB)).is_whole);
  EXPECT_FALSE(make(other).is_whole);
  EXPECT_TRUE(make(job(1, 1_MiB)).is_whole);
  EXPECT_TRUE(make(other).is_whole);
  EXPECT_TRUE(is_made());
  EXPECT_TRUE(std::ranges::equal(arena_.at(other.target), whole_));
}

}  // namespace
}  // namespace hoplite
