// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/poller.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "base/check.h"

namespace hoplite {
namespace {

class PollerTest : public ::testing::Test {
 protected:
  PollerTest() : poller_(open()) {
    std::array<int, 2> ends{};
    HOPLITE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
    ours_ = UniqueFd(ends[0]);
    theirs_ = UniqueFd(ends[1]);
  }
  static Poller open() {
    auto poller = Poller::open();
    HOPLITE_CHECK(poller.has_value());
    return std::move(*poller);
  }
  Poller poller_;
  UniqueFd ours_;
  UniqueFd theirs_;
};

TEST_F(PollerTest, ReportsWhatIsAskedFor) {
  ASSERT_TRUE(poller_.add(ours_.value(), 7, Interest::kRead));
  EXPECT_TRUE(poller_.wait(Duration{0}).empty());
  ASSERT_EQ(::write(theirs_.value(), "x", 1), 1);
  auto ready = poller_.wait(Duration{0});
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].token, 7U);
  EXPECT_TRUE(ready[0].is_readable);
  EXPECT_FALSE(ready[0].is_writable);
  poller_.change(ours_.value(), 8, Interest::kBoth);
  ready = poller_.wait(Duration{0});
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].token, 8U);
  EXPECT_TRUE(ready[0].is_writable);
}

TEST_F(PollerTest, IsLevelTriggeredSoThatATurnMayStopEarly) {
  ASSERT_TRUE(poller_.add(ours_.value(), 7, Interest::kRead));
  ASSERT_EQ(::write(theirs_.value(), "xy", 2), 2);
  for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(poller_.wait(Duration{0}).size(), 1U);
}

TEST_F(PollerTest, ADescriptorThatIsHandedOnIsReportedUntilItIsRemoved) {
  ASSERT_TRUE(poller_.add(ours_.value(), 7, Interest::kRead));
  const UniqueFd copy(::dup(ours_.value()));
  ours_.reset();
  ASSERT_EQ(::write(theirs_.value(), "x", 1), 1);
  EXPECT_EQ(poller_.wait(Duration{0}).size(), 1U);  // of a descriptor that is closed here
  ASSERT_TRUE(poller_.add(copy.value(), 8, Interest::kRead));
  poller_.remove(copy.value());
  const auto ready = poller_.wait(Duration{0});
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].token, 7U);
}

TEST_F(PollerTest, ReportsTheEndOfAPeerEvenWithoutInterest) {
  ASSERT_TRUE(poller_.add(ours_.value(), 7, Interest::kNone));
  theirs_.reset();
  const auto ready = poller_.wait(Duration{0});
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_TRUE(ready[0].is_readable);
}

TEST_F(PollerTest, AnotherThreadEndsTheWaitAndWakesAreMerged) {
  std::thread other([this] {
    poller_.wake();
    poller_.wake();
  });
  other.join();
  EXPECT_TRUE(poller_.wait(std::nullopt).empty());
  EXPECT_TRUE(poller_.wait(Duration{0}).empty());
}

TEST_F(PollerTest, AWaitThatBeginsAwakeFindsWhatComesAndFallsAsleepOtherwise) {
  ASSERT_TRUE(poller_.add(ours_.value(), 7, Interest::kRead));
  EXPECT_TRUE(poller_.wait(1_ms, Waiting::kAwake).empty());
  std::thread other([this] { EXPECT_EQ(::write(theirs_.value(), "x", 1), 1); });
  EXPECT_EQ(poller_.wait(std::nullopt, Waiting::kAwake).size(), 1U);
  other.join();
  EXPECT_EQ(poller_.wait(std::nullopt, Waiting::kAwake).size(), 1U);  // found in the first look
  std::array<char, 1> byte{};
  EXPECT_EQ(::read(ours_.value(), byte.data(), byte.size()), 1);
  poller_.wake();
  EXPECT_TRUE(poller_.wait(std::nullopt, Waiting::kAwake).empty());
}

TEST_F(PollerTest, RefusesAClosedDescriptor) {
  const int fd = ours_.value();
  ours_.reset();
  auto added = poller_.add(fd, 7, Interest::kRead);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, Code::kSystem);
}

// 64 KiB in 50 us are 1.3 GB/s.
TEST(ChooseWaiting, AThreadLooksIfTheNextPacketIsHereBeforeTheLookEnds) {
  EXPECT_EQ(choose_waiting(256 * 1024, Duration{100'000}), Waiting::kAwake);
  EXPECT_EQ(choose_waiting(256 * 1024, 1_ms), Waiting::kAsleep);
  EXPECT_EQ(choose_waiting(0, Duration{0}), Waiting::kAsleep);
}

}  // namespace
}  // namespace hoplite
