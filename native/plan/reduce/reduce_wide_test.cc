// SPDX-License-Identifier: Apache-2.0
// A large reduce over many nodes in two levels, as its home plans it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "plan/reduce/reduce_tree.h"

namespace hoplite {
namespace {

constexpr std::uint32_t kNodes = 48;
constexpr NodeId kHome{1}, kCaller{2}, kSome{20};
const ObjectMeta kMeta{2048, 1024, {{DType::kFloat32, 2048}}, "float32"};

// Source i is on node i + 1.
class WideReduce : public ::testing::Test {
 protected:
  WideReduce() {
    change_view();
    while (view_.home_of(target_) != kHome) ++target_.bytes[0];
    tree_.handle_recovered(view_);
    ReduceWant want;
    want.target = target_;
    want.meta = kMeta;
    want.source_count = want.count = kNodes;
    for (std::uint32_t i = 0; i < kNodes; ++i) {
      want.confirmed.push_back(
          {i, ObjectId{{1, static_cast<std::uint8_t>(i)}}, {}, false, NodeId{i + 1}});
    }
    tree_.handle_want(kCaller, want, view_);
    look();
  }
  void change_view() {
    std::vector<Member> members;
    for (std::uint64_t node = 1; node <= kNodes; ++node) {
      members.push_back({NodeId{node}, Incarnation{1}, {}});
    }
    EXPECT_TRUE(view_.handle_view(Epoch{view_.epoch().value + 1}, members));
    tree_.handle_view(view_);
  }
  static EngineConfig config() {
    EngineConfig config;
    config.node = kHome;
    config.inline_bytes_max = 256;
    return config;
  }
  // Forgets what was said before.
  void look() {
    tree_.check_invariants();
    owns_.clear();
    branches_.clear();
    cancelled_.clear();
    while (const auto parcel = tree_.poll_parcel()) {
      const auto* own = std::get_if<ReduceOwn>(&parcel->body);
      if (own != nullptr && own->is_branch) branches_[own->target][parcel->to] = *own;
      if (own != nullptr && !own->is_branch) owns_[parcel->to] = *own;
    }
    while (const auto id = tree_.poll_cancelled()) cancelled_.insert(*id);
  }
  void expect_two_levels() {
    std::set<std::uint32_t> sources;
    ASSERT_GE(branches_.size(), 2U);
    for (const auto& [id, owners] : branches_) {
      std::set<StripeIndex> stripes;
      for (const auto& [owner, own] : owners) {
        EXPECT_NE(owner, kHome) << "it has the plan to tell";
        EXPECT_TRUE(own.sealed && own.members.size() == own.count);
        ASSERT_EQ(own.owned.size(), 1U);
        EXPECT_TRUE(stripes.insert(own.owned[0]).second);
      }
      EXPECT_EQ(stripes.size(), owners.begin()->second.stripe_count);
      for (const ReduceSource& source : owners.begin()->second.members) {
        EXPECT_TRUE(sources.insert(source.index).second) << source.index;
      }
    }
    EXPECT_EQ(sources.size(), kNodes);
    ASSERT_FALSE(owns_.empty());
    for (const auto& [owner, own] : owns_) {
      EXPECT_NE(owner, kCaller);
      EXPECT_EQ(own.owned.size(), 1U);
      EXPECT_EQ(own.members.size(), branches_.size());
      for (const ReduceSource& branch : own.members) {
        const ReduceOwn& below = branches_.at(branch.object).at(branch.holder);
        EXPECT_EQ(below.owned[0].value, own.owned[0].value % below.stripe_count);
      }
    }
  }
  // All stripes are folded anew from the sources, under the next target epoch.
  void expect_one_level(const std::set<ObjectId>& ended) {
    EXPECT_EQ(cancelled_, ended);
    EXPECT_TRUE(branches_.empty());
    ASSERT_FALSE(owns_.empty());
    for (const auto& [owner, own] : owns_) {
      EXPECT_EQ(own.target_epoch, TargetEpoch{2});
      EXPECT_EQ(own.members.size(), kNodes);
      EXPECT_FALSE(own.members[0].is_branch);
    }
  }
  [[nodiscard]] std::set<ObjectId> names() const {
    std::set<ObjectId> names;
    for (const auto& [id, owners] : branches_) names.insert(id);
    return names;
  }
  // An owner of the first branch says this of it.
  void report(Code code, const std::vector<std::uint32_t>& lost) {
    const auto& [id, owners] = *branches_.begin();
    ReduceReport news;
    news.target = id;
    news.target_epoch = TargetEpoch{1};
    news.code = code;
    news.lost = lost;
    tree_.handle_report(owners.begin()->first, news, view_);
  }

  ObjectId target_;
  Membership view_{kHome};
  ReduceTree tree_{config()};
  std::map<NodeId, ReduceOwn> owns_;
  std::map<ObjectId, std::map<NodeId, ReduceOwn>> branches_;
  std::set<ObjectId> cancelled_;
};

TEST_F(WideReduce, PullsEachBranchFromTheOwnerOfItsStripe) { expect_two_levels(); }

TEST_F(WideReduce, IsOneLevelAfterADeath) {
  const auto before = names();
  view_.handle_dead(kSome, Incarnation{1}, true);
  tree_.handle_node_dead(kSome, true, view_);
  look();
  expect_one_level(before);
}

TEST_F(WideReduce, IsOneLevelIfANodeCannotReachAnother) {
  const auto before = names();
  report(Code::kOk, {5});
  look();
  expect_one_level(before);
}

TEST_F(WideReduce, IsOneLevelIfANodeHasNoRoomForABranch) {
  const auto before = names();
  report(Code::kStoreFull, {});
  look();
  expect_one_level(before);
}

TEST_F(WideReduce, IsOneLevelIfNodesHaveNoRoomForTheResult) {
  const auto before = names();
  ReduceReport news;
  news.target = target_;
  news.target_epoch = TargetEpoch{1};
  news.code = Code::kStoreFull;
  tree_.handle_report(owns_.begin()->first, news, view_);
  look();
  expect_one_level(before);
  const NodeId owner = owns_.begin()->first;
  tree_.handle_report(owner, news, view_);  // of the two levels as well
  EXPECT_EQ(tree_.poll_parcel(), std::nullopt);
  news.target_epoch = TargetEpoch{2};
  tree_.handle_report(owner, news, view_);
  std::optional<Code> answer;
  while (const auto parcel = tree_.poll_parcel()) {
    const auto* state = std::get_if<ReduceState>(&parcel->body);
    if (state != nullptr && parcel->to == kCaller) answer = state->code;
  }
  EXPECT_EQ(answer, Code::kStoreFull);
}

TEST_F(WideReduce, FailsForAnyOtherReason) {
  report(Code::kCancelled, {});
  look();
  EXPECT_TRUE(owns_.empty());
}

TEST_F(WideReduce, BeginsAnewInTwoLevelsUnderANewView) {
  const auto before = names();
  change_view();
  look();
  EXPECT_EQ(cancelled_, before);
  tree_.handle_recovered(view_);
  look();
  expect_two_levels();
  for (const ObjectId& id : names()) EXPECT_FALSE(before.contains(id));
}

TEST_F(WideReduce, TellsANodeAgainWhenItsLinkIsUp) {
  const auto [id, owners] = *branches_.begin();
  const auto [owner, own] = *owners.begin();
  tree_.handle_link_up(owner, view_);
  look();
  EXPECT_EQ(branches_.at(id).at(owner), own);
}

}  // namespace
}  // namespace hoplite
