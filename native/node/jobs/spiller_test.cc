// SPDX-License-Identifier: Apache-2.0
#include "node/jobs/spiller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/check.h"

namespace hoplite {
namespace {

template <typename T>
T must_open(Result<T> result) {
  HOPLITE_CHECK(result.has_value());
  return std::move(*result);
}

struct SpillerTest : testing::Test {
  SpillDone poll_done() {
    for (;;) {
      auto all = spiller_->take_done();
      if (all.empty()) {
        (void)poller_.wait(std::nullopt);
        continue;
      }
      EXPECT_EQ(all.size(), 1U);
      return all.front();
    }
  }
  void fill(Extent range, int value) {
    std::ranges::fill(arena_.at(range), static_cast<std::byte>(value));
  }
  Poller poller_ = must_open(Poller::open());
  Arena arena_ = must_open(Arena::open(1_MiB));
  std::unique_ptr<Spiller> spiller_ =
      must_open(Spiller::start(std::filesystem::temp_directory_path(), arena_, poller_));
};

TEST_F(SpillerTest, ReadsBackWhatItWroteAndWakesTheReactorForEach) {
  const Extent here{4096, 100'000};
  const Extent file{0, 100'000};
  fill(here, 7);
  spiller_->submit({SpillId{1}, {}, SpillWay::kWrite, here, file});
  EXPECT_EQ(poll_done().error, "");
  fill(here, 0);
  const Extent there{500'000, 100'000};
  spiller_->submit({SpillId{2}, {}, SpillWay::kRead, there, file});
  spiller_->submit({SpillId{}, {}, SpillWay::kFree, {}, file});  // after the read
  const SpillDone read = poll_done();
  EXPECT_EQ(read.spill, SpillId{2});
  EXPECT_EQ(read.error, "");
  const auto bytes = arena_.at(there);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{7}; }));
}

TEST_F(SpillerTest, SaysWhatTheDiskSays) {
  spiller_->submit({SpillId{1}, {}, SpillWay::kRead, {0, 10}, {1 << 20, 10}});
  EXPECT_NE(poll_done().error.find("errno 5"), std::string::npos);
}

TEST_F(SpillerTest, LogsTheFirstFailureOfARow) {
  const auto read_beyond_the_end = [this] {
    spiller_->submit({SpillId{1}, {}, SpillWay::kRead, {0, 10}, {1 << 20, 10}});
    EXPECT_NE(poll_done().error, "");
  };
  testing::internal::CaptureStderr();
  read_beyond_the_end();
  read_beyond_the_end();
  spiller_->submit({SpillId{2}, {}, SpillWay::kWrite, {0, 10}, {0, 10}});
  EXPECT_EQ(poll_done().error, "");
  read_beyond_the_end();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), 2) << log;
  EXPECT_NE(log.find("logger=hoplite_ray.spill reading 10 bytes from "), std::string::npos) << log;
}

TEST_F(SpillerTest, EndsWithJobsThatNobodyWaitsFor) {
  for (std::uint64_t n = 0; n < 100; ++n) {
    spiller_->submit({SpillId{n}, {}, SpillWay::kWrite, {0, 1_MiB}, {n << 20, 1_MiB}});
  }
  spiller_.reset();
}

}  // namespace
}  // namespace hoplite
