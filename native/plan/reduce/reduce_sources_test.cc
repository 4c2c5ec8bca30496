// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plan/reduce/reduce_tree.h"

namespace hoplite {
namespace {

constexpr NodeId kHome{1}, kCaller{2};
constexpr Incarnation kFirst{1};

// Otherwise each answer about any source walks all plans, until their targets are deleted.
TEST(ReduceSources, LooksAtNoPlanThatHasEndedWhenASourceIsLocated) {
  EngineConfig config;
  config.node = kHome;
  ReduceTree tree(config);
  Membership view(kHome);
  ASSERT_TRUE(view.handle_view(Epoch{1}, {{kHome, kFirst, {}}, {kCaller, kFirst, {}}}));
  tree.handle_view(view);
  tree.handle_recovered(view);
  ReduceWant want;
  while (view.home_of(want.target) != kHome) ++want.target.bytes[0];
  const ObjectId source{{1, 1}}, other{{1, 2}};
  want.source_count = want.count = 1;
  want.confirmed = {{0, source, {}, false, kNoNode}};
  tree.handle_want(kCaller, want, view);
  EXPECT_EQ(tree.seeking_count(), 1U);
  tree.handle_source_lost(source, view);
  tree.handle_source_lost(other, view);
  EXPECT_EQ(tree.seeking_count(), 0U);
  EXPECT_EQ(tree.plan_count(), 1U) << "its caller may ask again";
}

}  // namespace
}  // namespace hoplite
