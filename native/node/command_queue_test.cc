// SPDX-License-Identifier: Apache-2.0
#include "node/command_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/check.h"

namespace hoplite {
namespace {

Poller open_poller() {
  auto poller = Poller::open();
  HOPLITE_CHECK(poller.has_value());
  return std::move(*poller);
}

Command view_of(std::uint64_t epoch) {
  return {ClientId{0}, RequestId{0}, SetViewCommand{Epoch{epoch}, {}}};
}

std::uint64_t epoch_of(const Command& command) {
  return std::get<SetViewCommand>(command.body).epoch.value;
}

TEST(CommandQueue, PushingEndsTheReactorsWait) {
  Poller poller = open_poller();
  CommandQueue queue(poller);
  std::thread other([&] { queue.push(view_of(1)); });
  EXPECT_TRUE(poller.wait(std::nullopt).empty());  // ends, or the test's limit does
  other.join();
  const auto taken = queue.take(10);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(epoch_of(taken[0]), 1U);
  EXPECT_TRUE(queue.is_empty());
}

TEST(CommandQueue, TakesInOrderAndNoMoreThanAsked) {
  const Poller poller = open_poller();
  CommandQueue queue(poller);
  for (std::uint64_t epoch = 1; epoch <= 5; ++epoch) queue.push(view_of(epoch));
  EXPECT_EQ(epoch_of(queue.take(2).back()), 2U);
  EXPECT_FALSE(queue.is_empty());
  EXPECT_EQ(epoch_of(queue.take(10).front()), 3U);
}

TEST(CommandQueue, PastTheirLimitTheOldestViewGoesAndNothingElse) {
  const Poller poller = open_poller();
  CommandQueue queue(poller);
  queue.push({ClientId{0}, RequestId{7}, ListCommand{1, 0}});
  for (std::uint64_t epoch = 0; epoch <= CommandQueue::kViewsMax; ++epoch)
    queue.push(view_of(epoch));
  const auto taken = queue.take(1000);
  ASSERT_EQ(taken.size(), CommandQueue::kViewsMax + 1);
  EXPECT_EQ(taken.front().request, RequestId{7});
  EXPECT_EQ(epoch_of(taken[1]), 1U);
}

TEST(CommandQueue, ManyThreadsLoseNothing) {
  const Poller poller = open_poller();
  CommandQueue queue(poller);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 16; ++i) queue.push(view_of(1));
    });
  }
  std::size_t taken = 0;
  while (taken < 64) taken += queue.take(3).size();
  for (auto& each : threads) each.join();
  EXPECT_TRUE(queue.is_empty());
}

TEST(CommandQueue, StoppingIsSeenAndWakes) {
  Poller poller = open_poller();
  CommandQueue queue(poller);
  EXPECT_FALSE(queue.is_stopping());
  std::thread other([&] { queue.stop(); });
  EXPECT_TRUE(poller.wait(std::nullopt).empty());
  other.join();
  EXPECT_TRUE(queue.is_stopping());
}

}  // namespace
}  // namespace hoplite
