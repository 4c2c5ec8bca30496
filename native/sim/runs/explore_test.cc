// SPDX-License-Identifier: Apache-2.0
// Every order of tiny worlds, and the canary that only a search can find.
#include "sim/runs/explore.h"

#include <gtest/gtest.h>

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kStatesMax = 15'000;  // the larger worlds are left to hoplite_sim

class Orders : public testing::TestWithParam<World> {};

TEST_P(Orders, AllEndWell) {
  const Exploration found = explore(GetParam(), kStatesMax);
  for (const std::string& failure : found.failures) {
    ADD_FAILURE() << failure << " in schedule " << found.schedule;
  }
  EXPECT_TRUE(found.is_complete || found.states == kStatesMax);
  EXPECT_GT(found.ends, 40U);
  EXPECT_GT(found.states, found.ends);
}
INSTANTIATE_TEST_SUITE_P(, Orders, testing::ValuesIn(tiny_worlds()), [](const auto& world) {
  std::string name = world.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

World with_canary(Canary canary) {
  return {.name = "planted", .play = World::Play::kBroadcast, .nodes = 3, .canary = canary};
}

TEST(Explore, FindsWhatGoesWrongInSomeOrdersOnly) {
  const World world = with_canary(Canary::kForgetEarlyClaim);
  const Exploration found = explore(world, kStatesMax);
  ASSERT_FALSE(found.failures.empty());
  EXPECT_GT(found.schedules, 1U) << "the first order is not one of them";
  EXPECT_EQ(replay(world, found.schedule, false), found.failures);
  const Exploration healthy = explore(with_canary(Canary::kNone), kStatesMax);
  EXPECT_TRUE(healthy.is_complete && healthy.failures.empty());
}

TEST(Explore, FindsWhatGoesWrongInEveryOrder) {
  EXPECT_EQ(explore(with_canary(Canary::kForgetReply), kStatesMax).schedules, 1U);
}

TEST(Explore, SaysWhenItHasNotTriedAll) {
  const Exploration found = explore(with_canary(Canary::kNone), 100);
  EXPECT_FALSE(found.is_complete);
  EXPECT_EQ(found.states, 100U);
}

TEST(Timeline, StreamsKeepTheirOrderAndTimersComeLast) {
  Timeline timeline;
  const Stream a{Stream::Kind::kControl, 1, 2};
  const Stream b{Stream::Kind::kControl, 2, 1};
  std::string log;
  timeline.after(9_ms, [&] { log += "1"; }, a);
  timeline.after(1_ms, [&] { log += "2"; }, a);
  timeline.after(5_ms, [&] { log += "3"; }, b);
  timeline.after(1_ms, [&] { log += "t"; });
  timeline.after(7_ms, [&] { log += "now"; }, {Stream::Kind::kAtOnce});
  EXPECT_EQ(timeline.streams_in_flight(), (std::vector<Stream>{a, b}));
  const Instant before = timeline.now();
  for (const Stream& next : {a, b, a}) timeline.step(next);
  EXPECT_EQ(timeline.now(), before);
  EXPECT_TRUE(timeline.streams_in_flight().empty());
  timeline.step(Stream{});
  EXPECT_EQ(log, "now132t");
  EXPECT_EQ(timeline.now(), before + 1_ms);
}

}  // namespace
}  // namespace hoplite::sim
