// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/asked_deletions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "plan/engine/engine_test.h"

namespace hoplite {
namespace {

constexpr Instant kStart{1'000'000};
constexpr NodeId kFrozen{2}, kOther{3};

class AskedDeletionsTest : public testing::Test {
 protected:
  static EngineConfig config() {
    EngineConfig config;
    config.deletes_max = 2;
    return config;
  }
  static ObjectId object(NodeId home, std::uint8_t number) {
    return Nodes(3).object_at(home.value - 1, number);
  }
  void ask(NodeId home, std::uint8_t number, std::uint32_t upto = 1) {
    const DeleteCommand command{object(home, number), Incarnation{upto}};
    if (asked_.has_room(home)) {
      asked_.note(home, {command.object, command.upto}, Incarnation{1}, kStart);
    } else {
      asked_.hold(home, {{}, command});
    }
    asked_.check_invariants();
  }
  std::vector<Delete> asked_again(std::span<const NodeId> gone = {}) {  // in a view of three nodes
    std::vector<Member> members;
    for (std::uint64_t node = 1; node <= 3; ++node) {
      members.push_back({NodeId{node}, Incarnation{1}, {}});
    }
    Membership view(NodeId{1});
    EXPECT_TRUE(view.handle_view(Epoch{1}, members));
    asked_.handle_view(view, gone);
    asked_.check_invariants();
    std::vector<Delete> said;
    asked_.for_each([&](const Delete& request) { said.push_back(request); });
    return said;
  }
  std::optional<ObjectId> next() {
    const auto held = asked_.poll_held();
    return held ? std::optional(held->command.object) : std::nullopt;
  }

  AskedDeletions asked_{config()};
};

TEST_F(AskedDeletionsTest, HoldsBackThoseOfAHomeThatHasTooMany) {
  for (std::uint8_t number = 1; number <= 3; ++number) ask(kFrozen, number);
  for (std::uint8_t number = 1; number <= 3; ++number) ask(kOther, number);
  EXPECT_EQ(next(), std::nullopt);
  asked_.handle_deleted({object(kOther, 1), Incarnation{1}});
  EXPECT_EQ(next(), object(kOther, 3)) << "the frozen home holds up its own alone";
  EXPECT_EQ(next(), std::nullopt);
  EXPECT_EQ(asked_.size(), 4U);
}

TEST_F(AskedDeletionsTest, HoldsBackThoseOfAllHomesBeyondEightTimesAsMany) {
  for (std::uint64_t home = 1; home <= 10; ++home) {
    for (std::uint64_t i = 0; i < 2; ++i) {
      const ObjectId id = object(kOther, static_cast<std::uint8_t>(2 * home + i));
      if (!asked_.has_room(NodeId{home})) continue;
      asked_.note(NodeId{home}, {id, Incarnation{1}}, Incarnation{1}, kStart);
    }
  }
  EXPECT_EQ(asked_.size(), 16U);
}

TEST_F(AskedDeletionsTest, ForgetsWhatIsNotAnsweredForALife) {
  for (std::uint8_t number = 1; number <= 3; ++number) ask(kFrozen, number);
  EXPECT_EQ(asked_.poll_timeout(), kStart + config().tombstone_life);
  asked_.handle_timeout(kStart + config().tombstone_life);
  asked_.check_invariants();
  EXPECT_FALSE(asked_.covers(object(kFrozen, 1), Incarnation{1}));
  EXPECT_EQ(next(), object(kFrozen, 3));
}

TEST_F(AskedDeletionsTest, KeepsADeletionOfAllAttemptsApart) {
  ask(kOther, 1);
  ask(kOther, 1, 0);
  std::vector<Incarnation> said;
  asked_.for_each([&](const Delete& request) { said.push_back(request.upto); });
  EXPECT_EQ(said, (std::vector{Incarnation{1}, Incarnation{0}}));
  asked_.handle_deleted({object(kOther, 1), Incarnation{1}});
  EXPECT_EQ(asked_.size(), 1U);
  EXPECT_TRUE(asked_.covers(object(kOther, 1), Incarnation{1}));
  asked_.handle_deleted({object(kOther, 1), Incarnation{0}});
  EXPECT_EQ(asked_.size(), 0U);
}

TEST_F(AskedDeletionsTest, AsksAHomeThatHasGoneAgainWithinTheLifeOfTheRequest) {
  ask(kOther, 1, 0);
  asked_.handle_deleted({object(kOther, 1), Incarnation{0}});
  EXPECT_TRUE(asked_again().empty()) << "the same home";
  EXPECT_EQ(asked_again(std::vector{kOther}),
            (std::vector{Delete{object(kOther, 1), Incarnation{1}}}))
      << "no attempt that was put since";
  asked_.handle_deleted({object(kOther, 1), Incarnation{1}});
  EXPECT_EQ(asked_.poll_timeout(), kStart + config().tombstone_life);
  asked_.handle_timeout(kStart + config().tombstone_life);
  EXPECT_TRUE(asked_again(std::vector{kOther}).empty());
  EXPECT_EQ(asked_.poll_timeout(), std::nullopt);
}

TEST_F(AskedDeletionsTest, ForgetsTheOldestAnsweredOneBeyondItsBound) {
  for (std::uint8_t number = 1; number <= 5; ++number) {
    const Delete request{object(kOther, number), Incarnation{1}};
    asked_.note(kOther, request, Incarnation{1}, kStart + 1_s * number);
    asked_.handle_deleted({request.object, request.upto});
    asked_.check_invariants();
  }
  EXPECT_EQ(asked_.size(), 0U) << "none of them is open";
  const auto again = asked_again(std::vector{kOther});
  EXPECT_EQ(again.size(), 2U);
  EXPECT_TRUE(std::ranges::none_of(
      again, [](const Delete& each) { return each.object == object(kOther, 1); }));
}

TEST_F(AskedDeletionsTest, CountsAndHoldsThemByTheHomesOfTheNewView) {
  for (std::uint8_t number = 1; number <= 4; ++number) ask(kFrozen, number);
  Membership view(NodeId{1});
  ASSERT_TRUE(view.handle_view(Epoch{1}, {{NodeId{1}, Incarnation{1}, {}}}));
  asked_.handle_view(view, {});
  asked_.check_invariants();
  EXPECT_TRUE(asked_.has_room(kFrozen));
  EXPECT_FALSE(asked_.has_room(NodeId{1}));
  EXPECT_EQ(next(), std::nullopt) << "all lines are of the one home that is left";
  asked_.handle_deleted({object(kFrozen, 1), Incarnation{1}});
  EXPECT_EQ(next(), object(kFrozen, 3));
}

}  // namespace
}  // namespace hoplite
