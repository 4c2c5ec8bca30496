// SPDX-License-Identifier: Apache-2.0
#include "node/completion.h"

#include <gtest/gtest.h>

#include <thread>

namespace hoplite {
namespace {

NodeEvent death_of(std::uint64_t node) {
  return {NodeEventKind::kPeerDead, NodeId{node}, Incarnation{1}};
}

TEST(Completion, EventsComeInOrderToAWaitingThread) {
  Completion completion;
  std::thread reactor([&] {
    for (std::uint64_t node = 1; node <= 100; ++node) completion.push_event(death_of(node));
  });
  for (std::uint64_t node = 1; node <= 100; ++node) {
    const auto event = completion.next_event(10_s);
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->node, NodeId{node});
  }
  reactor.join();
}

TEST(Completion, WithoutAnEventTheWaitEndsWithItsLimit) {
  Completion completion;
  EXPECT_FALSE(completion.next_event(1_ms).has_value());
}

TEST(Completion, ClosingEndsEveryWaitButLosesNoEvent) {
  Completion completion;
  std::thread waiting([&] { EXPECT_FALSE(completion.next_event(100_s).has_value()); });
  completion.close();
  waiting.join();
  completion.push_event(death_of(3));
  EXPECT_TRUE(completion.next_event(100_s).has_value());
  EXPECT_FALSE(completion.next_event(100_s).has_value());
}

TEST(Completion, PastItsLimitTheOldestEventGoes) {
  Completion completion;
  for (std::uint64_t node = 0; node <= Completion::kEventsWaitingMax; ++node) {
    completion.push_event(death_of(node));
  }
  EXPECT_EQ(completion.next_event(1_ms)->node, NodeId{1});
}

TEST(Completion, CountersAreReadAsTheyWerePublished) {
  Completion completion;
  NodeStats stats;
  stats.arena_bytes = 5;
  stats.engine.objects = 6;
  stats.links.links_up = 7;
  stats.clients.clients = 8;
  stats.turns.turns = 9;
  completion.publish(stats);
  const auto named = counters_by_name(completion.stats());
  EXPECT_EQ(named.at("arena_bytes"), 5U);
  EXPECT_EQ(named.at("objects"), 6U);
  EXPECT_EQ(named.at("links_up"), 7U);
  EXPECT_EQ(named.at("clients"), 8U);
  EXPECT_EQ(named.at("turns"), 9U);
}

TEST(Completion, HandsEachListToWhoAskedForIt) {
  Completion completion;
  const RequestId first = completion.begin_list();
  const RequestId second = completion.begin_list();
  ObjectRow row;
  row.size_bytes = 7;
  completion.finish_list(second, {{row}, {}, {}, {}});
  completion.finish_list(first, {});
  EXPECT_TRUE(completion.take_list(first).objects.empty());
  const auto rows = completion.take_list(second).objects;
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].size_bytes, 7U);
}

TEST(Completion, ClosingEndsTheWaitForAList) {
  Completion completion;
  const RequestId list = completion.begin_list();
  std::thread waiting([&] { EXPECT_TRUE(completion.take_list(list).objects.empty()); });
  completion.close();
  waiting.join();
}

}  // namespace
}  // namespace hoplite
