// SPDX-License-Identifier: Apache-2.0
#include "plan/links/membership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/prng.h"

namespace hoplite {
namespace {

std::vector<Member> members(std::uint64_t count, std::uint32_t life = 1) {
  std::vector<Member> all;
  for (std::uint64_t i = 1; i <= count; ++i) all.push_back({NodeId{i}, Incarnation{life}, {}});
  return all;
}
std::vector<ObjectId> objects(std::size_t count) {
  Prng random(1);
  std::vector<ObjectId> ids(count);
  for (ObjectId& id : ids) {
    for (auto& byte : id.bytes) byte = static_cast<std::uint8_t>(random.below(256));
  }
  return ids;
}

TEST(Membership, IsItsOwnHomeWithoutAView) {
  EXPECT_EQ(Membership(NodeId{3}).home_of(ObjectId{}), NodeId{3});
  EXPECT_TRUE(Membership(NodeId{3}).is_live(NodeId{3}));
}

TEST(Membership, TakesOnlyNewerViewsThatItIsIn) {
  Membership view(NodeId{1});
  EXPECT_TRUE(view.handle_view(Epoch{2}, members(2)));
  EXPECT_FALSE(view.handle_view(Epoch{2}, members(3))) << "not newer";
  EXPECT_FALSE(view.handle_view(Epoch{1}, members(3))) << "older";
  EXPECT_FALSE(view.handle_view(Epoch{3}, {{NodeId{2}, Incarnation{1}, {}}})) << "without us";
  EXPECT_FALSE(view.handle_view(Epoch{3}, members(kViewMembersMax + 1))) << "too large";
  EXPECT_EQ(view.epoch(), Epoch{2});
  EXPECT_EQ(view.members().size(), 2U);
}

TEST(Membership, GivesEveryNodeTheSameHomesAndAFairShare) {
  Membership one(NodeId{1});
  Membership two(NodeId{2});
  EXPECT_TRUE(one.handle_view(Epoch{1}, members(4)));
  std::vector<Member> reversed = members(4);
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_TRUE(two.handle_view(Epoch{1}, reversed));
  std::map<NodeId, int> share;
  for (const ObjectId& id : objects(4000)) {
    EXPECT_EQ(one.home_of(id), two.home_of(id));
    ++share[one.home_of(id)];
  }
  for (const auto& [node, count] : share) EXPECT_NEAR(count, 1000, 150) << node.value;
}

TEST(Membership, MovesOnlyTheHomesOfTheMemberThatCameOrWent) {
  Membership before(NodeId{1});
  Membership after(NodeId{1});
  EXPECT_TRUE(before.handle_view(Epoch{1}, members(4)));
  EXPECT_TRUE(after.handle_view(Epoch{1}, members(5)));
  for (const ObjectId& id : objects(2000)) {
    if (after.home_of(id) != NodeId{5}) {
      EXPECT_EQ(after.home_of(id), before.home_of(id));
    }
  }
}

TEST(Membership, HoldsADeathAgainstThatLifeOnly) {
  Membership view(NodeId{1});
  EXPECT_TRUE(view.handle_view(Epoch{1}, members(2)));
  EXPECT_TRUE(view.is_live(NodeId{2}));
  EXPECT_FALSE(view.is_live(NodeId{7}));
  view.handle_dead(NodeId{2}, Incarnation{1}, true);
  EXPECT_FALSE(view.is_live(NodeId{2}));
  ASSERT_NE(view.find(NodeId{2}), nullptr) << "still listed";
  EXPECT_TRUE(view.handle_view(Epoch{2}, members(2, 2)));
  EXPECT_TRUE(view.is_live(NodeId{2})) << "its next life";
  view.handle_dead(NodeId{2}, Incarnation{1}, true);
  EXPECT_TRUE(view.is_live(NodeId{2})) << "late news of the life before";
}

TEST(Membership, LetsOthersReachWhomItDoesNotReachItself) {
  Membership view(NodeId{1});
  EXPECT_TRUE(view.handle_view(Epoch{1}, members(3)));
  view.handle_dead(NodeId{2}, Incarnation{1}, false);
  view.handle_dead(NodeId{3}, Incarnation{1}, true);
  EXPECT_FALSE(view.is_live(NodeId{2}));
  EXPECT_TRUE(view.may_live(NodeId{2}));
  EXPECT_FALSE(view.may_live(NodeId{3}));
  EXPECT_FALSE(view.may_live(NodeId{7})) << "no member";
  EXPECT_TRUE(view.may_live(NodeId{1})) << "ourselves";
  view.handle_dead(NodeId{2}, Incarnation{1}, true);
  EXPECT_FALSE(view.may_live(NodeId{2}));
}

}  // namespace
}  // namespace hoplite
