// SPDX-License-Identifier: Apache-2.0
// A large reduce along a chain, as its home plans it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "plan/reduce/reduce_tree.h"

namespace hoplite {
namespace {

constexpr NodeId kHome{1}, kCaller{2}, kX{3}, kY{4};
constexpr Incarnation kFirst{1};
const ObjectMeta kMeta{4096, 1024, {{DType::kFloat32, 4096}}, "float32"};

// Sources 0, 1 and 2 are there, on kHome, kX and kY, and links are slow.
class ReduceBranchesTest : public ::testing::Test {
 protected:
  ReduceBranchesTest() {
    EXPECT_TRUE(view_.handle_view(
        Epoch{1},
        {{kHome, kFirst, {}}, {kCaller, kFirst, {}}, {kX, kFirst, {}}, {kY, kFirst, {}}}));
    while (view_.home_of(target_) != kHome) ++target_.bytes[0];
    config_.node = kHome;
    config_.inline_bytes_max = 256;
    config_.link_bytes_per_s = 1'000'000;
    tree_ = ReduceTree(config_);
    tree_.handle_view(view_);
    tree_.handle_recovered(view_);
    want_.target = target_;
    want_.meta = kMeta;
    want_.source_count = want_.count = 3;
    want_.confirmed = {{0, source(0), {}, false, kHome},
                       {1, source(1), {}, false, kX},
                       {2, source(2), {}, false, kY}};
    tree_.handle_want(kCaller, want_, view_);
    look();
  }
  static ObjectId source(std::uint8_t index) { return ObjectId{{1, index}}; }
  void look() {
    tree_.check_invariants();
    while (const auto parcel = tree_.poll_parcel()) {
      if (const auto* own = std::get_if<ReduceOwn>(&parcel->body)) {
        (own->is_branch ? branches_ : own_)[parcel->to] = *own;
      } else if (const auto* state = std::get_if<ReduceState>(&parcel->body)) {
        state_ = *state;
      } else if (std::holds_alternative<Drop>(parcel->body)) {
        dropped_.insert(parcel->to);
      }
    }
  }
  struct Said {
    std::vector<StripeIndex> folded = {};
    std::vector<std::uint32_t> lost = {};
  };
  void report(const Said& said) { report_from(kY, said); }
  void report_from(NodeId from, const Said& said) {
    ReduceReport news;
    news.folded = said.folded;
    news.lost = said.lost;
    news.target = target_;
    news.target_epoch = TargetEpoch{1};
    news.meta = kMeta;
    tree_.handle_report(from, news, view_);
    look();
  }
  ObjectId target_;
  EngineConfig config_;
  ReduceWant want_;
  Membership view_{kHome};
  ReduceTree tree_{EngineConfig{}};
  std::map<NodeId, ReduceOwn> own_, branches_;
  std::set<NodeId> dropped_;
  ReduceState state_;
};

TEST_F(ReduceBranchesTest, WhatIsThereGoesFromNodeToNodeToTheOneThatTheCallerReadsFrom) {
  ASSERT_EQ(own_.size(), 1U);
  ASSERT_TRUE(own_.contains(kY)) << "any but the caller's";
  ASSERT_EQ(own_[kY].members.size(), 2U) << "its own, and what the first of the others combines";
  EXPECT_TRUE(own_[kY].members[1].is_branch && own_[kY].sealed);
  EXPECT_EQ(branches_.size(), 1U) << "the last one sends its source";
  report({.folded = {StripeIndex{0}}});
  EXPECT_EQ(state_.phase, ReducePhase::kCommitted);
  EXPECT_EQ(state_.members.size(), 3U);
}

TEST_F(ReduceBranchesTest, WhatIsCutOffInItIsStriped) {
  report({.lost = {own_[kY].members[1].index}});
  EXPECT_EQ(dropped_, std::set<NodeId>{kY});
  EXPECT_EQ(own_.size(), 3U) << "every node but the caller's";
  EXPECT_EQ(own_[kX].members.size(), 3U);
  EXPECT_EQ(own_[kX].target_epoch, TargetEpoch{2});
}

// Owners must forget branches under another home. Otherwise they keep the result's range and pull
// its members until the commit.
TEST_F(ReduceBranchesTest, OwnersOfOlderStripesHearThatTheyOwnNothingNow) {
  tree_ = ReduceTree(config_);  // another home
  tree_.handle_view(view_);
  report_from(kHome, {});
  report_from(kX, {});
  tree_.handle_want(kCaller, want_, view_);
  tree_.handle_recovered(view_);
  look();
  ASSERT_EQ(own_[kY].target_epoch, TargetEpoch{2});
  EXPECT_EQ(dropped_, (std::set{kHome, kX}));
}

// The Drop that the home has sent is lost with the link.
TEST_F(ReduceBranchesTest, AReporterThatOwnsNothingHearsSo) {
  report_from(kX, {});
  EXPECT_EQ(dropped_, std::set{kX});
}

// Otherwise each holder and the caller hear of every loss, each time with the list of all.
TEST_F(ReduceBranchesTest, OneEpochFollowsHoweverManyMembersAreLostAtOnce) {
  config_.reduce_degree = kReduceSourcesMax;  // no branches
  tree_ = ReduceTree(config_);
  tree_.handle_view(view_);
  tree_.handle_recovered(view_);
  tree_.handle_want(kCaller, want_, view_);
  look();
  ASSERT_EQ(own_[kX].target_epoch, TargetEpoch{1});
  report_from(kX, {.lost = {0, 1}});
  EXPECT_EQ(state_.target_epoch, TargetEpoch{2});
}

TEST_F(ReduceBranchesTest, NamesTheOptionIfSourcesDifferInTheirBlocksAlone) {
  tree_ = ReduceTree(config_);
  tree_.handle_view(view_);
  tree_.handle_recovered(view_);
  want_.meta = {};
  for (ReduceSource& each : want_.confirmed) each.holder = kNoNode;
  tree_.handle_want(kCaller, want_, view_);
  ObjectMeta other = kMeta;
  other.block_bytes *= 2;
  tree_.handle_located({source(0), kFirst, kMeta, kHome}, view_);
  tree_.handle_located({source(1), kFirst, other, kX}, view_);
  look();
  EXPECT_EQ(state_.code, Code::kLayoutMismatch);
  EXPECT_NE(state_.text.find("link_mbit"), std::string::npos) << state_.text;
}

}  // namespace
}  // namespace hoplite
