// SPDX-License-Identifier: Apache-2.0
// The home's part of a reduce by itself: members in order of arrival, owners, epochs, commit, ends.
#include "plan/reduce/reduce_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace hoplite {
namespace {

constexpr NodeId kHome{1}, kCaller{2}, kX{3}, kY{4};
// A target whose home is kHome in a view of all four.
const ObjectId kTarget = [] {
  Membership view(kHome);
  const bool ok =
      view.handle_view(Epoch{1}, {{kHome, {}, {}}, {kCaller, {}, {}}, {kX, {}, {}}, {kY, {}, {}}});
  ObjectId id;
  while (ok && view.home_of(id) != kHome) ++id.bytes[0];
  return id;
}();
const ObjectMeta kMeta{4096, 1024, {{DType::kFloat32, 4096}}, "float32"};

class ReduceTreeTest : public ::testing::Test {
 protected:
  using Indices = std::vector<std::uint32_t>;

  ReduceTreeTest() {
    change_view({{kHome, 1}, {kCaller, 1}, {kX, 1}, {kY, 1}});
    tree_.handle_recovered(view_);
  }

  static ObjectId source(std::uint32_t index) {
    return ObjectId{{1, static_cast<std::uint8_t>(index)}};
  }
  void want(std::uint32_t sources, std::uint32_t count) {
    want_.target = kTarget;
    want_.source_count = sources;
    want_.count = count;
    say();
  }
  void confirm(std::uint32_t index, bool failed = false, NodeId holder = kNoNode) {
    want_.confirmed.push_back({index, source(index), {}, failed, holder});
    say();
  }
  void say() {
    tree_.handle_want(kCaller, want_, view_);
    look();
  }
  void locate(std::uint32_t index, const ObjectMeta& meta = kMeta, NodeId holder = kNoNode) {
    tree_.handle_located({source(index), Incarnation{1}, meta, holder}, view_);
    look();
  }
  struct Said {
    TargetEpoch target_epoch = {};  // 0: the one it was told
    std::vector<StripeIndex> folded = {};
    std::vector<std::uint32_t> lost = {}, committed = {};
    Code code = Code::kOk;
    std::string text = {};
  };
  void report(NodeId from, const Said& said) {
    const TargetEpoch epoch =
        said.target_epoch.value > 0 ? said.target_epoch : own_[from].target_epoch;
    const ReduceReport news{kTarget,        epoch,   kMeta,     said.folded, said.lost,
                            said.committed, kNoNode, said.code, said.text};
    tree_.handle_report(from, news, view_);
    look();
  }
  void fold_all() {
    for (const auto& [owner, own] : std::map(own_)) report(owner, {.folded = own.owned});
  }
  void fold_all_but(NodeId one) {
    for (const auto& [owner, own] : std::map(own_)) {
      if (owner != one) report(owner, {.folded = own.owned});
    }
  }
  void lose(NodeId owner, std::uint32_t index) { report(owner, {.lost = {index}}); }
  void die(NodeId node) {
    view_.handle_dead(node, Incarnation{1}, true);
    tree_.handle_node_dead(node, true, view_);
    own_.erase(node);
    look();
  }
  void change_view(const std::vector<std::pair<NodeId, std::uint32_t>>& nodes) {
    std::vector<Member> members;
    for (const auto& [node, life] : nodes) members.push_back({node, Incarnation{life}, {}});
    EXPECT_TRUE(view_.handle_view(Epoch{view_.epoch().value + 1}, members));
    tree_.handle_view(view_);
    look();
  }

  // Keeps the newest message that each node was sent.
  void look() {
    tree_.check_invariants();
    while (auto parcel = tree_.poll_parcel()) {
      if (const auto* own = std::get_if<ReduceOwn>(&parcel->body)) {
        ReduceOwn& known = own_[parcel->to];
        std::vector<ReduceSource> members;
        if (own->target_epoch == known.target_epoch) members = known.members;
        news_[parcel->to].clear();
        for (const ReduceSource& each : own->members) news_[parcel->to].push_back(each.index);
        members.insert(members.end(), own->members.begin(), own->members.end());
        known = *own;
        known.members = members;
      } else if (const auto* state = std::get_if<ReduceState>(&parcel->body)) {
        if (parcel->to == kCaller) answers_.push_back(*state);
      } else if (std::holds_alternative<Drop>(parcel->body)) {
        dropped_.insert(parcel->to);
      }
    }
    while (auto state = tree_.poll_state()) published_ = *state;
    while (auto asked = tree_.poll_locate()) located_.push_back(asked->object.bytes[1]);
    while (tree_.poll_cancelled()) ++cancelled_;
  }
  [[nodiscard]] std::vector<std::uint32_t> told(NodeId owner) {
    std::vector<std::uint32_t> indices;
    for (const ReduceSource& member : own_[owner].members) indices.push_back(member.index);
    return indices;
  }
  [[nodiscard]] ReduceState answer() const {
    return answers_.empty() ? ReduceState{} : answers_.back();
  }

  static EngineConfig config() {
    EngineConfig config;
    config.node = kHome;
    config.inline_bytes_max = 256;
    config.reduce_degree = kReduceSourcesMax;  // no branches, and no chain
    return config;
  }
  ReduceTree tree_{config()};
  Membership view_{kHome};
  ReduceWant want_;
  std::map<NodeId, ReduceOwn> own_;
  std::map<NodeId, Indices> news_;  // members in the last ReduceOwn
  std::vector<ReduceState> answers_;
  ReduceState published_;
  std::vector<std::uint32_t> located_;
  std::set<NodeId> dropped_;
  int cancelled_ = 0;
};

TEST_F(ReduceTreeTest, AsksForTheFirstMemberAndThenGivesEveryNodeButTheCallersAStripe) {
  want(3, 2);
  confirm(2);
  EXPECT_EQ(located_, Indices{2});
  EXPECT_TRUE(own_.empty());
  locate(2);
  EXPECT_EQ(own_.size(), 3U);
  EXPECT_FALSE(own_.contains(kCaller));
  EXPECT_EQ(told(kX), Indices{2});
  EXPECT_FALSE(own_[kX].sealed);
}

TEST_F(ReduceTreeTest, SealsTheFirstSourcesInOrderOfArrival) {
  want(3, 2);
  for (const std::uint32_t index : {2U, 0U, 1U}) confirm(index);
  EXPECT_EQ(located_, (Indices{2, 0})) << "no spare";
  locate(2);
  locate(0);
  EXPECT_EQ(told(kX), (Indices{2, 0}));
  EXPECT_TRUE(own_[kX].sealed);
  fold_all();
  EXPECT_EQ(answer().phase, ReducePhase::kCommitted);
  EXPECT_EQ(answer().members, (Indices{2, 0}));
  EXPECT_EQ(published_, answer());
}

TEST_F(ReduceTreeTest, TellsOwnersOnlyWhatIsNew) {
  want(2, 2);
  confirm(0);
  locate(0);
  confirm(1);
  locate(1);
  EXPECT_EQ(news_[kX], Indices{1});
  EXPECT_EQ(told(kX), (Indices{0, 1}));
}

// A want that names fewer sources is untrue, and no owner could read the ReduceOwn that follows.
TEST_F(ReduceTreeTest, HasNoFewerSourcesThanItsMembersCountTo) {
  want(3, 1);
  confirm(2);
  locate(2, kMeta, kX);
  want(1, 1);
  die(kX);
  EXPECT_EQ(own_.at(kY).source_count, 3U);
}

TEST_F(ReduceTreeTest, SaysWhoHoldsEachMember) {
  want(3, 3);
  confirm(0);
  locate(0, kMeta, kX);
  EXPECT_EQ(own_[kY].members[0].holder, kX);
  EXPECT_EQ(own_[kY].members[0].incarnation, Incarnation{1});
}

TEST_F(ReduceTreeTest, WaitsForNoAnswerOnceItsCallerHasFoundThemAll) {
  want_.meta = kMeta;
  want(2, 2);
  confirm(0, false, kX);
  EXPECT_TRUE(own_.empty()) << "who owns depends on who is there";
  confirm(1, false, kY);
  EXPECT_EQ(located_, Indices{0});
  EXPECT_EQ(told(kY), (Indices{0, 1}));
}

TEST_F(ReduceTreeTest, AsksForWhatItsCallerHasFoundOnADeadNode) {
  die(kY);
  want_.meta = kMeta;
  want(1, 1);
  confirm(0, false, kY);
  EXPECT_TRUE(own_.empty());
}

TEST_F(ReduceTreeTest, TellsManyMembersThatComeTogetherInFewMessages) {
  want(8, 8);
  confirm(0);
  locate(0);
  for (std::uint32_t index = 1; index < 8; ++index) confirm(index);
  std::vector<std::size_t> told_after;
  for (std::uint32_t index = 1; index < 8; ++index) {
    locate(index);
    told_after.push_back(told(kX).size());
  }
  EXPECT_EQ(told_after, (std::vector<std::size_t>{1, 1, 1, 5, 5, 7, 8}));
}

TEST_F(ReduceTreeTest, PlansWhenItKnowsAllThatHaveArrived) {
  want(3, 3);
  confirm(0);
  confirm(1);
  locate(0);
  EXPECT_TRUE(own_.empty());
  locate(1);
  EXPECT_EQ(told(kX), (Indices{0, 1}));
}

TEST_F(ReduceTreeTest, RefusesAMemberOfAnotherShapeByName) {
  want(2, 2);
  confirm(0);
  confirm(1);
  locate(0);
  ObjectMeta other = kMeta;
  other.layout = "float32, but another shape";
  locate(1, other);
  EXPECT_EQ(answer().code, Code::kLayoutMismatch);
  EXPECT_NE(answer().text.find("source 1"), std::string::npos) << answer().text;
}

TEST_F(ReduceTreeTest, GivesNoStripeOfAnAllreduceToTheOneOfAFewWhoseSourceIsLate) {
  const ObjectMeta meta{8192, 1024, {{DType::kFloat32, 8192}}, "a block for each"};
  for (const auto& [count, arrived] : {std::pair{8U, 7U}, {8U, 6U}, {3U, 2U}, {3U, 1U}}) {
    std::vector<std::pair<NodeId, std::uint32_t>> nodes;
    for (std::uint64_t node = 1; node <= count; ++node) nodes.emplace_back(NodeId{node}, 1);
    own_.clear();
    want_ = {};
    want_.everywhere = true;
    tree_ = ReduceTree(config());
    change_view(nodes);
    tree_.handle_recovered(view_);
    want(count, count);
    for (std::uint32_t index = 0; index < arrived; ++index) confirm(index);
    for (std::uint32_t index = 0; index < arrived; ++index) {
      tree_.handle_located({source(index), Incarnation{1}, meta, NodeId{index + 1}}, view_);
      look();
    }
    EXPECT_EQ(own_.contains(NodeId{count}), arrived + 1 < count) << "two would cost too much";
  }
}

TEST_F(ReduceTreeTest, TakesItsStripeFromTheOneOfEightThatIsLateOnceTheOthersAreBeingFolded) {
  std::vector<std::pair<NodeId, std::uint32_t>> nodes;
  for (std::uint64_t node = 1; node <= 8; ++node) nodes.emplace_back(NodeId{node}, 1);
  const ObjectMeta meta{8192, 1024, {{DType::kFloat32, 8192}}, "a block for each"};
  const auto arrive = [&](std::uint32_t index) {
    confirm(index);
    tree_.handle_located({source(index), Incarnation{1}, meta, NodeId{index + 1}}, view_);
    look();
  };
  const auto begin = [&] {
    tree_.handle_begun(kTarget, view_);
    look();
    return own_[NodeId{1}].target_epoch.value;
  };
  want_.everywhere = true;
  change_view(nodes);
  tree_.handle_recovered(view_);
  want(8, 8);
  for (std::uint32_t index = 0; index < 6; ++index) arrive(index);
  EXPECT_TRUE(own_.contains(NodeId{8})) << "the first source came alone";
  EXPECT_EQ(begin(), 1U) << "two late ones would cost too much";
  arrive(6);
  EXPECT_TRUE(dropped_.empty());
  EXPECT_EQ(begin(), 2U);
  EXPECT_EQ(dropped_, std::set{NodeId{8}});
  own_.erase(NodeId{8});
  EXPECT_EQ(own_[NodeId{7}].stripe_count, 7);
  EXPECT_EQ(told(NodeId{7}).size(), 7U) << "in a new epoch all that are known";
  EXPECT_EQ(begin(), 2U) << "nothing to change";
  arrive(7);
  EXPECT_TRUE(own_[NodeId{7}].sealed);
  EXPECT_FALSE(own_.contains(NodeId{8}));
  fold_all();
  EXPECT_EQ(answer().phase, ReducePhase::kCommitted);
  EXPECT_EQ(begin(), 2U) << "it has ended";
}

TEST_F(ReduceTreeTest, LeavesItsStripeToTheLateOneWhoseSourceIsBeingLocated) {
  want_.everywhere = true;
  std::vector<std::pair<NodeId, std::uint32_t>> nodes;
  for (std::uint64_t node = 1; node <= 8; ++node) nodes.emplace_back(NodeId{node}, 1);
  const ObjectMeta meta{8192, 1024, {{DType::kFloat32, 8192}}, "a block for each"};
  change_view(nodes);
  tree_.handle_recovered(view_);
  want(8, 8);
  for (std::uint32_t index = 0; index < 8; ++index) {
    confirm(index);
    if (index == 7) break;
    tree_.handle_located({source(index), Incarnation{1}, meta, NodeId{index + 1}}, view_);
    look();
  }
  tree_.handle_begun(kTarget, view_);
  look();
  EXPECT_TRUE(dropped_.empty());
  EXPECT_EQ(own_[NodeId{8}].target_epoch, TargetEpoch{1});
}

TEST_F(ReduceTreeTest, LeavesTheStripesOfAReduceForOneReaderWhereTheyAre) {
  want(2, 2);
  confirm(0);
  locate(0);
  const TargetEpoch before = own_[kX].target_epoch;
  tree_.handle_begun(kTarget, view_);
  tree_.handle_begun(ObjectId{}, view_);
  look();
  EXPECT_EQ(own_[kX].target_epoch, before);
  EXPECT_TRUE(dropped_.empty());
}

TEST_F(ReduceTreeTest, GivesAShareToTheNodeThatHasItsReadersSource) {
  want_.share = {kMeta.size_bytes, 1024, 1};
  want_.meta = {2048, 1024, {{DType::kFloat32, 2048}}, "some rows"};
  want(2, 2);
  confirm(0);
  locate(0);
  EXPECT_TRUE(own_.empty()) << "nobody knows yet where source 1 will be";
  confirm(1);
  tree_.handle_located({source(1), Incarnation{1}, kMeta, kY}, view_);
  look();
  ASSERT_EQ(own_.size(), 1U);
  EXPECT_EQ(own_[kY].share, want_.share);
  EXPECT_EQ(own_[kY].meta, want_.meta);
  EXPECT_EQ(own_[kY].stripe_count, 1);
  die(kY);
  EXPECT_EQ(own_.size(), 1U) << "another node folds it";
  EXPECT_FALSE(own_.contains(kY));
}

TEST_F(ReduceTreeTest, RefusesASourceThatAShareDoesNotFit) {
  want_.share = {kMeta.size_bytes + 64, 0, 0};
  want_.meta = {2048, 1024, {{DType::kFloat32, 2048}}, "some rows"};
  want(2, 2);
  confirm(0);
  locate(0);
  EXPECT_EQ(answer().code, Code::kLayoutMismatch);
  EXPECT_NE(answer().text.find("what is to be shared"), std::string::npos) << answer().text;
}

TEST_F(ReduceTreeTest, CommitsOnlyWhenEveryStripeIsFoldedInThisEpochByItsOwner) {
  want(2, 2);
  confirm(0);
  confirm(1);
  locate(0);
  locate(1);
  const StripeIndex of_x = own_[kX].owned[0];
  report(kX, {.folded = {own_[kY].owned[0]}});  // not its own
  report(kY, {.folded = own_[kY].owned});
  report(kHome, {.folded = own_[kHome].owned});
  report(kX, {.target_epoch = TargetEpoch{99}, .folded = {of_x}});
  EXPECT_NE(answer().phase, ReducePhase::kCommitted);
  report(kX, {.folded = {of_x}});
  EXPECT_EQ(answer().phase, ReducePhase::kCommitted);
}

TEST_F(ReduceTreeTest, ReplacesALostMemberByTheNextConfirmedUnderANewEpoch) {
  want(3, 2);
  for (const std::uint32_t index : {0U, 1U, 2U}) confirm(index);
  locate(0);
  locate(1);
  const TargetEpoch before = own_[kX].target_epoch;
  report(kHome, {.folded = own_[kHome].owned});
  lose(kX, 0);
  locate(2);
  EXPECT_GT(own_[kX].target_epoch, before);
  EXPECT_EQ(told(kX), (Indices{1, 2}));
  report(kX, {.folded = own_[kX].owned});
  report(kY, {.folded = own_[kY].owned});
  EXPECT_EQ(answer().phase, ReducePhase::kRunning) << "what was folded before is void";
  report(kHome, {.folded = own_[kHome].owned});
  EXPECT_EQ(answer().members, (Indices{1, 2}));
  EXPECT_EQ(answer().lost, Indices{0});
}

TEST_F(ReduceTreeTest, LeavesTheEpochAloneWhenASpareIsLost) {
  want(3, 2);
  for (const std::uint32_t index : {0U, 1U, 2U}) confirm(index);
  locate(0);
  locate(1);
  const TargetEpoch before = own_[kX].target_epoch;
  lose(kX, 2);
  EXPECT_EQ(own_[kX].target_epoch, before);
}

TEST_F(ReduceTreeTest, WaitsForAnotherSourceWhileOneCanStillCome) {
  want(3, 2);
  confirm(0);
  confirm(1);
  locate(0);
  locate(1);
  lose(kX, 1);
  EXPECT_EQ(answer().phase, ReducePhase::kRunning);
  EXPECT_EQ(told(kX), Indices{0});
  EXPECT_FALSE(own_[kX].sealed);
  confirm(2, true);
  EXPECT_EQ(answer().code, Code::kReduceFailed);
  EXPECT_NE(answer().text.find("source 2: it failed"), std::string::npos) << answer().text;
  EXPECT_EQ(answer().lost, (Indices{1, 2}));
  EXPECT_EQ(dropped_, (std::set{kHome, kX, kY}));
}

TEST_F(ReduceTreeTest, AsksForTheNextMemberWhenTheFirstIsLostBeforeItIsKnown) {
  want(2, 1);
  confirm(0);
  confirm(1);
  tree_.handle_source_lost(source(0), view_);
  look();
  EXPECT_EQ(located_, (Indices{0, 1}));
  locate(1, kMeta, kX);
  EXPECT_EQ(told(kX), Indices{1});
}

TEST_F(ReduceTreeTest, GivesTheStripesOfADeadOwnerToAnotherInTheSameEpoch) {
  want(2, 2);
  confirm(0);
  confirm(1);
  locate(0);
  locate(1);
  const TargetEpoch before = own_[kX].target_epoch;
  fold_all_but(kY);
  die(kX);
  std::size_t owned = 0;
  for (const auto& [owner, own] : own_) {
    EXPECT_EQ(own.target_epoch, before);
    owned += own.owned.size();
  }
  EXPECT_EQ(owned, 3U);
  report(kY, {.folded = own_[kY].owned});
  report(kHome, {.folded = own_[kHome].owned});
  EXPECT_EQ(answer().phase, ReducePhase::kCommitted);
}

TEST_F(ReduceTreeTest, DoesNotTrustWhatAnOwnerFoldedInAnEarlierLife) {
  want(2, 2);
  confirm(0);
  confirm(1);
  locate(0);
  locate(1);
  fold_all_but(kY);
  change_view({{kHome, 1}, {kCaller, 1}, {kX, 2}, {kY, 1}});
  tree_.handle_node_dead(kX, true, view_);
  tree_.handle_recovered(view_);
  look();
  report(kY, {.folded = own_[kY].owned});
  EXPECT_NE(answer().phase, ReducePhase::kCommitted);
  report(kX, {.folded = own_[kX].owned});
  EXPECT_EQ(answer().phase, ReducePhase::kCommitted);
}

TEST_F(ReduceTreeTest, EndsWithItsCallersNode) {
  want(2, 2);
  confirm(0);
  locate(0);
  die(kCaller);
  EXPECT_EQ(cancelled_, 1);
  tree_.handle_delete(kTarget);
  look();
  EXPECT_EQ(tree_.plan_count(), 0U);
  EXPECT_EQ(dropped_, (std::set{kHome, kX, kY}));
}

TEST_F(ReduceTreeTest, FailsTheCallersRequestWhenItsTargetIsDeleted) {
  want(2, 2);
  confirm(0);
  locate(0);
  tree_.handle_delete(kTarget);
  look();
  EXPECT_EQ(answer().code, Code::kCancelled);
}

TEST_F(ReduceTreeTest, FailsWhenAnOwnerCannotGoOn) {
  want(1, 1);
  confirm(0);
  locate(0);
  report(kX, {.code = Code::kStoreFull, .text = "no room"});
  EXPECT_EQ(answer().code, Code::kStoreFull);
  EXPECT_NE(answer().text.find("no room"), std::string::npos);
}

TEST_F(ReduceTreeTest, SaysItsAnswerAgainToACallerThatAsksAgain) {
  want(1, 1);
  confirm(0);
  locate(0);
  fold_all();
  const auto before = answers_.size();
  say();
  ASSERT_EQ(answers_.size(), before + 1);
  EXPECT_EQ(answer().members, Indices{0});
}

TEST_F(ReduceTreeTest, AsANewHomeGoesOnAboveEveryEpochThatOwnersKnow) {
  change_view({{kHome, 1}, {kCaller, 1}, {kX, 1}, {kY, 1}});
  report(kX, {.target_epoch = TargetEpoch{7}});
  want_.confirmed = {{0, source(0), {}, false}};
  want(1, 1);
  EXPECT_TRUE(located_.empty()) << "it does not plan before it has heard from all";
  tree_.handle_recovered(view_);
  look();
  locate(0, kMeta, kX);
  EXPECT_EQ(own_[kX].target_epoch, TargetEpoch{8});
}

TEST_F(ReduceTreeTest, AsANewHomeKeepsACommittedResult) {
  change_view({{kHome, 1}, {kCaller, 1}, {kX, 1}, {kY, 1}});
  report(kX, {.target_epoch = TargetEpoch{7}, .committed = {1, 0}});
  want_.confirmed = {{0, source(0), {}, false}, {1, source(1), {}, false}};
  want(2, 2);
  EXPECT_EQ(answer().phase, ReducePhase::kCommitted);
  EXPECT_EQ(answer().members, (Indices{1, 0}));
  EXPECT_EQ(answer().target_epoch, TargetEpoch{7});
}

// Receivers of the result must not wait for a commit that no node remembers.
TEST_F(ReduceTreeTest, AsANewHomeKeepsACommitThatItHearsOfAfterAllOthersHaveReported) {
  report(kX, {.target_epoch = TargetEpoch{7}, .committed = {1, 0}});
  EXPECT_EQ(published_.phase, ReducePhase::kCommitted);
  EXPECT_EQ(published_.target_epoch, TargetEpoch{7});
  EXPECT_EQ(published_.members, (Indices{1, 0}));
}

TEST_F(ReduceTreeTest, AsANewHomeKeepsACommitWhateverItHadBegunToLocate) {
  want(3, 2);
  confirm(0);
  confirm(1);
  report(kX, {.target_epoch = TargetEpoch{7}, .committed = {1, 0}});
  ObjectMeta other = kMeta;
  other.size_bytes = 2048;
  tree_.handle_source_lost(source(0), view_);
  locate(1, other);
  say();
  EXPECT_EQ(answer().phase, ReducePhase::kCommitted);
  EXPECT_EQ(answer().target_epoch, TargetEpoch{7});
  EXPECT_EQ(answer().lost, Indices{});
}

// The caller gave up while the home was dead, so only the new home can free the accumulators.
TEST_F(ReduceTreeTest, AsANewHomeFreesOwnersThatNobodyWaitsFor) {
  change_view({{kHome, 1}, {kCaller, 1}, {kX, 1}, {kY, 1}});
  report(kX, {.target_epoch = TargetEpoch{7}});
  tree_.handle_recovered(view_);
  look();
  EXPECT_EQ(dropped_, std::set{kX});
  report(kY, {.target_epoch = TargetEpoch{7}});  // its report came later
  EXPECT_EQ(dropped_, (std::set{kX, kY}));
  EXPECT_EQ(tree_.plan_count(), 0U);
}

TEST_F(ReduceTreeTest, TellsAnOwnerEverythingAgainAfterItsLinkBroke) {
  want(2, 2);
  confirm(0);
  locate(0);
  confirm(1);
  locate(1);
  own_.erase(kX);
  tree_.handle_link_up(kX, view_);
  look();
  EXPECT_EQ(told(kX), (Indices{0, 1}));
}

TEST_F(ReduceTreeTest, FoldsASmallResultWhereItWillBeRead) {
  want(1, 1);
  confirm(0);
  locate(0, {100, 100, {{DType::kFloat32, 100}}, ""});
  ASSERT_EQ(own_.size(), 1U);
  EXPECT_TRUE(own_.contains(kCaller));
}

}  // namespace
}  // namespace hoplite
