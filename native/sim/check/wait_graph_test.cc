// SPDX-License-Identifier: Apache-2.0
#include "sim/check/wait_graph.h"

#include <gtest/gtest.h>

#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

const ObjectId kA = object_named(1);
const ObjectId kB = object_named(2);
constexpr NodeId kNode1{1}, kNode2{2}, kNode3{3};

// A copy that has `ready` blocks and waits for the next one from `sender`.
Wait receives(const ObjectId& object, NodeId sender, std::uint32_t ready) {
  const ObjectBytes name{object, {Incarnation{1}, {}}};
  return {name, 1, StripeIndex{0}, ready, sender, name, BlockIndex{ready}};
}

TEST(WaitGraph, ChainIsNoCircle) {
  WaitGraph graph;
  graph.set(kNode1, {receives(kA, kNode2, 3)});
  graph.set(kNode2, {receives(kA, kNode3, 3)});
  EXPECT_EQ(graph.circle_through(kNode1), std::nullopt);
  EXPECT_EQ(graph.circle_through(kNode2), std::nullopt);
}

TEST(WaitGraph, TwoReceiversThatLackTheSameBlockAreACircle) {
  WaitGraph graph;
  graph.set(kNode1, {receives(kA, kNode2, 3)});
  graph.set(kNode2, {receives(kA, kNode1, 3)});
  const auto circle = graph.circle_through(kNode2);
  ASSERT_TRUE(circle.has_value());
  EXPECT_NE(circle->find("node 0"), std::string::npos) << *circle;
  EXPECT_NE(circle->find("node 1"), std::string::npos) << *circle;
}

TEST(WaitGraph, SenderThatHasTheBlockIsNotWaitedFor) {
  WaitGraph graph;
  graph.set(kNode1, {receives(kA, kNode2, 3)});
  graph.set(kNode2, {receives(kA, kNode1, 4)});
  EXPECT_EQ(graph.circle_through(kNode1), std::nullopt);
}

TEST(WaitGraph, BytesOfAnotherAttemptAreNotWaitedFor) {
  WaitGraph graph;
  Wait later = receives(kA, kNode1, 3);
  later.name.bytes.incarnation = later.needed.bytes.incarnation = Incarnation{2};
  graph.set(kNode1, {receives(kA, kNode2, 3)});
  graph.set(kNode2, {later});
  EXPECT_EQ(graph.circle_through(kNode1), std::nullopt);
}

TEST(WaitGraph, StripesOfOneObjectWaitApart) {
  WaitGraph graph;
  Wait first = receives(kA, kNode2, 0);
  Wait second = receives(kA, kNode1, 0);
  first.stripe_count = second.stripe_count = 2;
  second.stripe = StripeIndex{1};
  second.block = BlockIndex{1};
  graph.set(kNode1, {first});
  graph.set(kNode2, {second});
  EXPECT_EQ(graph.circle_through(kNode1), std::nullopt);
}

TEST(WaitGraph, FoldWaitsForItsMemberAndItsReadersForTheFold) {
  const ObjectBytes target{kB, {Incarnation{1}, TargetEpoch{1}}};
  const ObjectBytes member{kA, {Incarnation{1}, {}}};
  const Wait fold{target, 1, StripeIndex{0}, 0, kNode2, member, BlockIndex{0}};
  WaitGraph graph;
  graph.set(kNode1, {fold});
  graph.set(kNode2, {receives(kA, kNode3, 0)});
  graph.set(kNode3, {{target, 1, StripeIndex{0}, 0, kNode1, target, BlockIndex{0}}});
  EXPECT_EQ(graph.circle_through(kNode3), std::nullopt);
  Wait closing = receives(kA, kNode1, 0);  // as if the member were made of the result
  closing.needed = target;
  graph.set(kNode3, {closing});
  EXPECT_TRUE(graph.circle_through(kNode3).has_value());
  graph.set(kNode2, {});
  EXPECT_EQ(graph.circle_through(kNode3), std::nullopt);
}

}  // namespace
}  // namespace hoplite::sim
