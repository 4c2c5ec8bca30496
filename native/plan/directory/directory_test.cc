// SPDX-License-Identifier: Apache-2.0
// One directory shard alone: its grants, pushes and answers, and the things that it must never say,
// for any input in any order.
#include "plan/directory/directory_test.h"

namespace hoplite {
namespace {

using DirectoryShard = DirectoryTest;

TEST_F(DirectoryShard, GrantsAWaiterWhatAHolderHas) {
  has(kA);
  wants(kB);
  const Granted grant = only<Granted>(kB);
  EXPECT_EQ(grant.sender, kA);
  EXPECT_EQ(grant.meta, kMeta);
  EXPECT_EQ(grant.incarnation, Incarnation{1});
}

TEST_F(DirectoryShard, AnswersAGetThatCameBeforeThePut) {
  wants(kB);
  elapse(100_s);
  expect_silence();
  writes(kA);
  EXPECT_EQ(only<Granted>(kB).sender, kA) << "a put that is still being written is streamed";
}

TEST_F(DirectoryShard, FeedsALatecomerFromAReceiverSoThatTheOriginSendsOneCopy) {
  has(kA);
  wants(kB);
  EXPECT_EQ(only<Granted>(kB).sender, kA);
  wants(kC);
  EXPECT_EQ(only<Granted>(kC).sender, kB);
  wants(kD);
  EXPECT_EQ(only<Granted>(kD).sender, kC);
}

TEST_F(DirectoryShard, MovesAReceiverWhoseSenderFailedItAndComesBackToTheOnlyOneAfterADelay) {
  has(kA);
  wants(kB);
  const Granted first = only<Granted>(kB);
  failed(kB, first);
  expect_silence();
  elapse(kRegrantDelay);
  const Granted second = only<Granted>(kB);
  EXPECT_EQ(second.sender, kA);
  EXPECT_GT(second.lease, first.lease);
  has(kC);
  failed(kB, second);
  EXPECT_EQ(only<Granted>(kB).sender, kC) << "another holder serves at once";
}

TEST_F(DirectoryShard, MovesTheReceiversOfADeadNode) {
  has(kA);
  wants(kB);
  wants(kC);
  take();
  die(kB);
  EXPECT_EQ(only<Granted>(kC).sender, kA);
}

TEST_F(DirectoryShard, IgnoresAClaimThatCrossesItsNewerGrant) {
  has(kA);
  wants(kB);
  const Granted old = only<Granted>(kB);
  has(kC);
  die(kA);
  const Granted fresh = only<Granted>(kB);
  EXPECT_EQ(fresh.sender, kC);
  receives(kB, old);
  failed(kB, old);
  elapse(10_s);
  expect_silence();
  failed(kB, fresh);
  elapse(10_s);
  EXPECT_EQ(only<Granted>(kB).sender, kC);
}

// home: Granted(lease 2) -> receiver │ the link breaks: the grant is lost │ receiver: claim with
// lease 1. The home must take such claims for current.
TEST_F(DirectoryShard, BelievesAReceiverAgainWhoseNewerGrantWasLostWithTheLink) {
  has(kA);
  has(kC);
  wants(kB);
  const Granted old = only<Granted>(kB);
  failed(kB, old);
  const Granted lost = only<Granted>(kB);
  EXPECT_NE(lost.sender, old.sender);
  directory_.handle_link_down(kB);
  receives(kB, old);
  done(kB);
  expect_silence();
  failed(kB, old);
  const Granted third = only<Granted>(kB);
  EXPECT_EQ(third.sender, lost.sender);
  EXPECT_GT(third.lease, lost.lease);
}

TEST_F(DirectoryShard, ForgetsWhatAHolderNoLongerClaimsAfterItsLinkBroke) {
  has(kA);
  has(kC);
  take();
  directory_.handle_link_down(kC);  // and loses the claim that the copy is evicted
  done(kC);
  die(kA);
  wants(kB);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

TEST_F(DirectoryShard, SaysLostOnlyWhenNobodyCanTurnOutToHaveIt) {
  has(kA);
  wants(kB);
  const Granted grant = only<Granted>(kB);
  die(kA);
  expect_silence();  // its last block may have come
  failed(kB, grant);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
  has(kC);
  wants(kD);
  EXPECT_EQ(only<Granted>(kD).sender, kC) << "it was found again";
}

TEST_F(DirectoryShard, SaysNothingIsLostWhileItDoesNotReachAMember) {
  const Said asks{.wants = true, .exists = true, .incarnation = 0};
  directory_.handle_unreachable(kA);
  directory_.handle_unreachable(kD);
  claim(kB, asks);
  elapse(10_s);
  expect_silence();
  die(kD);
  elapse(10_s);
  expect_silence();
  has(kA);  // its put, which this shard has not heard of
  done(kA);
  EXPECT_EQ(only<Granted>(kB).sender, kA);
}

TEST_F(DirectoryShard, SaysThatItIsLostWhenTheLastUnreachableMemberHasNotPutIt) {
  const Said asks{.wants = true, .exists = true, .incarnation = 0};
  directory_.handle_unreachable(kA);
  claim(kB, asks);
  elapse(10_s);
  expect_silence();
  done(kA);
  expect_silence();
  elapse(kLostGrace);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
  directory_.handle_unreachable(kA);
  change_view({kHome, kB, kC, kD});
  claim(kB, asks);
  for (const NodeId node : {kB, kC, kD}) done(node);
  elapse(10_s);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

TEST_F(DirectoryShard, SaysNothingIsLostWhileItRecovers) {
  has(kA);
  wants(kB);
  const Granted grant = only<Granted>(kB);
  change_view({kHome, kB, kC, kD});  // without A
  failed(kB, grant);
  done(kB);
  done(kD);
  elapse(10_s);
  expect_silence();
  claim(kC, {.state = StripeState::kComplete});
  EXPECT_EQ(only<Granted>(kB).sender, kC) << "what is known is granted at once";
}

TEST_F(DirectoryShard, SaysLostWhenAllHaveReportedAndNobodyHasIt) {
  has(kA);
  wants(kB);
  const Granted grant = only<Granted>(kB);
  change_view({kHome, kB, kC, kD});
  failed(kB, grant);
  for (const NodeId node : {kB, kC, kD}) done(node);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

TEST_F(DirectoryShard, SaysLostWhenTheLastOneThatItHasNotHeardDies) {
  has(kA);
  wants(kB);
  const Granted grant = only<Granted>(kB);
  change_view({kHome, kB, kC, kD});
  failed(kB, grant);
  for (const NodeId node : {kB, kC}) done(node);
  expect_silence();  // it may be the one that has it
  die(kD);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

TEST_F(DirectoryShard, SaysNothingThatItFoundLostUnderAnOlderViewUntilAllAreHeard) {
  has(kA);
  die(kA);
  wants(kB);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
  change_view({kHome, kB, kC, kD});
  wants(kB);
  for (const NodeId node : {kB, kD}) done(node);
  expect_silence();
  claim(kC, {.state = StripeState::kComplete, .pinned = true});  // put again meanwhile
  EXPECT_EQ(only<Granted>(kB).sender, kC);
}

TEST_F(DirectoryShard, BreaksACircleThatTwoHomesHaveMade) {
  change_view({kHome, kA, kB, kC, kD});
  has(kA);
  claim(kB, {.state = StripeState::kReceiving, .lease = 3, .sender = kC, .wants = true});
  claim(kC, {.state = StripeState::kReceiving, .lease = 4, .sender = kB, .wants = true});
  for (const NodeId node : {kA, kB, kC, kD}) done(node);
  const Granted grant = only<Granted>(kC);
  EXPECT_EQ(grant.sender, kA);
  EXPECT_GT(grant.lease, LeaseId{4});
}

TEST_F(DirectoryShard, AnswersAGetOfAnObjectThatExistsAndNobodyClaimsAfterTheGrace) {
  claim(kB, {.wants = true, .exists = true, .incarnation = 0});
  elapse(Duration{kLostGrace.ns - 1});
  expect_silence();
  elapse(1_ms);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

// putter: says what it has, its end │ put, claim │ the home hears both after more than the grace.
TEST_F(DirectoryShard, WaitsForWhatAMemberHasPutSinceItSaidWhatItHas) {
  change_view({kHome, kA, kB, kC, kD});
  for (const NodeId node : {kB, kC, kD}) done(node);
  claim(kB, {.wants = true, .exists = true, .incarnation = 0});
  elapse(kLostGrace * 2);
  done(kA);
  expect_silence();
  has(kA);
  EXPECT_EQ(only<Granted>(kB).sender, kA);
}

TEST_F(DirectoryShard, SaysThatAnObjectIsLostThoughALinkBreaksAgainAndAgain) {
  claim(kB, {.wants = true, .exists = true, .incarnation = 0});
  for (int i = 0; i < 30; ++i) {
    elapse(500_ms);
    directory_.handle_unreachable(kA);
    done(kA);
  }
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

// A member can claim to have a newer view that never comes.
TEST_F(DirectoryShard, ConcludesAgainOnceTheMemberIsGoneThatSpokeOfANewerView) {
  directory_.handle_newer_view(kC, Epoch{1ULL << 40});
  claim(kB, {.wants = true, .exists = true, .incarnation = 0});
  elapse(10_s);
  expect_silence();
  change_view({kHome, kA, kB, kD});
  for (const NodeId node : {kA, kD}) done(node);
  claim(kB, {.wants = true, .exists = true, .incarnation = 0});
  done(kB);
  elapse(10_s);
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

// Otherwise later grants begin anew at 0, and a receiver accepts only a newer grant.
TEST_F(DirectoryShard, TakesNoLeaseFromAClaimThatItHasNotGiven) {
  claim(kC, {.lease = ~0U, .sender = kA});
  has(kA);
  wants(kB);
  EXPECT_EQ(only<Granted>(kB).lease, LeaseId{1});
  change_view({kHome, kA, kB, kC, kD});
  claim(kC, {.lease = ~0U, .sender = kA});
  claim(kD, {.lease = 7, .sender = kA});
  for (const NodeId node : {kA, kB, kC, kD}) done(node);
  has(kA);
  wants(kB);
  EXPECT_EQ(only<Granted>(kB).lease, LeaseId{8}) << "an older home had given the seventh";
}

TEST_F(DirectoryShard, AwaitsWhatAMemberHasOncePerViewAndLink) {
  EXPECT_FALSE(directory_.awaits(kA));
  directory_.handle_link_down(kA);
  EXPECT_TRUE(directory_.awaits(kA));
  EXPECT_FALSE(directory_.awaits(kB));
  done(kA);
  EXPECT_FALSE(directory_.awaits(kA));
  change_view({kHome, kA, kB});
  EXPECT_TRUE(directory_.awaits(kA) && directory_.awaits(kB));
}

TEST_F(DirectoryShard, WaitsForEverForAnObjectThatNobodyKnowsToExist) {
  claim(kB, {.wants = true, .incarnation = 0});
  elapse(1000_s);
  expect_silence();
  EXPECT_EQ(directory_.entry_count(), 1U);
  claim(kB, {.incarnation = 0});
  ASSERT_TRUE(take().empty());
  EXPECT_EQ(directory_.entry_count(), 0U) << "the question was taken back";
}

TEST_F(DirectoryShard, RefusesASecondObjectWithAnotherLayoutUnderTheSameId) {
  has(kA);
  ObjectMeta other = kMeta;
  other.layout = "int64";
  claim(kB, {.state = StripeState::kComplete, .meta = other});
  EXPECT_EQ(only<Lost>(kB).code, Code::kDuplicateObject);
  wants(kC);
  EXPECT_EQ(only<Granted>(kC).sender, kA);
}

TEST_F(DirectoryShard, ReplacesAnOlderAttemptEverywhere) {
  has(kA);
  wants(kB);
  take();
  claim(kC, {.state = StripeState::kComplete, .incarnation = 2});
  const auto sent = take();
  EXPECT_EQ(of<Drop>(sent, kA).size(), 1U);
  ASSERT_EQ(of<Granted>(sent, kB).size(), 1U);
  EXPECT_EQ(of<Granted>(sent, kB)[0].incarnation, Incarnation{2});
  EXPECT_EQ(of<Granted>(sent, kB)[0].sender, kC);
  claim(kD, {.state = StripeState::kComplete, .incarnation = 1});
  EXPECT_EQ(only<Drop>(kD).upto, Incarnation{1}) << "it came late";
}

TEST_F(DirectoryShard, DropsADeletedObjectEverywhereAndRefusesItForALife) {
  has(kA);
  wants(kB);
  take();
  remove(kC, 0);
  auto sent = take();
  EXPECT_EQ(of<Drop>(sent, kA).size(), 1U);
  EXPECT_EQ(of<Drop>(sent, kB).size(), 1U);
  EXPECT_EQ(of<Lost>(sent, kB).size(), 1U);
  EXPECT_TRUE(of<Deleted>(sent, kC).empty()) << "A may not have heard of it";
  has_nothing(kA);
  expect_silence();
  has_nothing(kB);
  EXPECT_EQ(only<Deleted>(kC).upto, Incarnation{0}) << "as it was asked for";
  EXPECT_EQ(directory_.entry_count(), 0U) << "it costs no entry";
  has(kD);
  EXPECT_TRUE(only<Drop>(kD).deleted);
  has_nothing(kD);
  wants(kD);
  EXPECT_EQ(only<Lost>(kD).code, Code::kObjectLost);
  elapse(kTombstoneLife);
  EXPECT_FALSE(directory_.is_deleted(kObject));
}

TEST_F(DirectoryShard, KeepsDeletingUntilTheClaimsAfterABrokenLinkSayThatNothingIsLeft) {
  has(kA);
  remove(kC, 1);
  take();
  directory_.handle_link_down(kA);
  has(kA);  // its resync: the Drop was lost with the link
  EXPECT_EQ(only<Drop>(kA).upto, Incarnation{1});
  done(kA);
  expect_silence();
  directory_.handle_link_down(kA);
  done(kA);
  EXPECT_EQ(only<Deleted>(kC).upto, Incarnation{1}) << "its resync claims none of it";
}

TEST_F(DirectoryShard, AsksEveryMemberForWhatIsDeletedBeforeItIsHeardOf) {
  remove(kC, 0);
  auto sent = take();
  for (const NodeId node : {kA, kB, kD}) EXPECT_EQ(of<Drop>(sent, node).size(), 1U);
  claim(kA, {.state = StripeState::kComplete, .incarnation = 70});
  EXPECT_EQ(only<Drop>(kA).upto, Incarnation{70}) << "whatever there is";
  for (const NodeId node : {kA, kB}) has_nothing(node);
  expect_silence();
  die(kD);
  EXPECT_EQ(only<Deleted>(kC).upto, Incarnation{0});
}

TEST_F(DirectoryShard, AsksEveryMemberForAnAttemptThatIsDeletedBeforeItIsHeardOf) {
  has(kA);
  remove(kC, 2);
  for (const NodeId node : {kA, kB}) has_nothing(node);
  take();
  claim(kD, {.state = StripeState::kComplete, .incarnation = 2, .pinned = true});
  EXPECT_EQ(only<Drop>(kD).upto, Incarnation{2});
  has_nothing(kD);
  EXPECT_EQ(only<Deleted>(kC).upto, Incarnation{2});
}

class Adopting : public DirectoryShard {
 protected:
  static NodeId asked_to_adopt(const std::vector<Parcel>& sent) {
    NodeId adopter = kNoNode;
    for (const NodeId node : {kHome, kB, kC, kD}) {
      if (!of<Adopt>(sent, node).empty()) adopter = node;
    }
    return adopter;
  }
};

TEST_F(Adopting, AwaitsTheMemberThatItHasAskedToAdoptWhatIsDeleted) {
  has(kA);
  directory_.handle_draining(kA, true, now_);
  const NodeId adopter = asked_to_adopt(take());
  ASSERT_NE(adopter, kNoNode);
  remove(kA, 1);
  EXPECT_EQ(only<Drop>(adopter).upto, Incarnation{1});
  has_nothing(adopter);
  EXPECT_EQ(only<Deleted>(kA).upto, Incarnation{1});
}

// The adopter's arena is full, so it evicts the orphan as soon as it has it. Its claims arrive
// before the draining node's answer. If they led to an adoption, that would never end.
TEST_F(Adopting, HandsAnOrphanOverOnce) {
  has(kA);
  directory_.handle_orphan({kObject, Incarnation{1}}, now_);
  take();
  directory_.handle_draining(kA, true, now_);
  const NodeId adopter = asked_to_adopt(take());
  ASSERT_NE(adopter, kNoNode);
  claim(adopter, {.wants = true, .pinned = true});
  take();
  claim(adopter, {.state = StripeState::kComplete, .lease = 1, .orphaned = true});
  const auto standings = of<Standing>(take(), kA);
  ASSERT_EQ(standings.size(), 1U);
  EXPECT_TRUE(standings[0].elsewhere);
  has_nothing(adopter);
  expect_silence();
}

TEST_F(DirectoryShard, AwaitsTheMembersThatItHasNotHeardSinceTheViewChanged) {
  change_view({kHome, kA, kB, kC});
  for (const NodeId node : {kB, kC}) done(node);
  remove(kC, 1);
  has_nothing(kB);
  has(kA);
  take();
  done(kA);
  expect_silence();
  has_nothing(kA);
  EXPECT_EQ(only<Deleted>(kC).upto, Incarnation{1});
}

TEST_F(DirectoryShard, GivesAMemberThatNeverAnswersUpAfterALife) {
  has(kA);
  remove(kC, 1);
  take();
  elapse(Duration{kTombstoneLife.ns - 1});
  expect_silence();
  elapse(Duration{1});
  EXPECT_EQ(only<Deleted>(kC).object, kObject);
}

TEST_F(DirectoryShard, KeepsNoFailedReduceWhoseCallersNodeIsGoneForGood) {
  ends(ReducePhase::kFailed);
  change_view({kHome, kA, kB, kC});
  for (const NodeId node : {kA, kB, kC}) done(node);
  elapse(Duration{kCallerGrace.ns - 1});
  EXPECT_FALSE(directory_.is_deleted(kObject));
  elapse(Duration{1});
  EXPECT_TRUE(directory_.is_deleted(kObject));
  EXPECT_EQ(of<Delete>(take(), kHome).size(), 1U) << "the reduce's plan goes as well";
  elapse(kTombstoneLife);
  EXPECT_EQ(directory_.entry_count(), 0U);
}

TEST_F(DirectoryShard, SaysThatAResultIsLostOnceItsOnlyOwnerHasGivenItUp) {
  claim(kA, {.state = StripeState::kRoot, .target_epoch = 1, .committed = false, .pinned = true});
  claim(kB, {.wants = true, .exists = true, .incarnation = 0});
  take();
  elapse(kLostGrace);
  expect_silence();
  has_nothing(kA);  // told so by a home that knew of no caller
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

TEST_F(DirectoryShard, SaysThatACommittedResultIsLostIfNoNodeHasIt) {
  ends(ReducePhase::kCommitted);
  wants(kB);  // without a handle: the shard itself knows that the object was there
  elapse(Duration{kLostGrace.ns - 1});
  expect_silence();
  elapse(Duration{1});
  EXPECT_EQ(only<Lost>(kB).code, Code::kObjectLost);
}

// A holder that missed the newer epoch says that its bytes are committed. The reduce goes on.
TEST_F(DirectoryShard, TakesNoCommitFromAClaimOfAnOlderTargetEpoch) {
  ends(ReducePhase::kRunning);
  claim(kA, {.state = StripeState::kComplete, .target_epoch = 0});
  has_nothing(kA);
  claim(kB, {.wants = true, .exists = true, .incarnation = 0});
  elapse(kLostGrace);
  EXPECT_TRUE(of<Lost>(take(), kB).empty());
}

// Otherwise a member of the view could void the bytes of all holders by a claim of nothing.
TEST_F(DirectoryShard, KeepsAResultWhereAClaimOfALaterTargetEpochHasNothingOfIt) {
  claim(kA, {.state = StripeState::kComplete, .target_epoch = 1});
  take();
  claim(kC, {.wants = true, .target_epoch = 7});
  EXPECT_EQ(of<Drop>(take(), kC).size(), 1U) << "it would refuse all grants of the first epoch";
  wants(kB);
  EXPECT_EQ(only<Granted>(kB).target_epoch, TargetEpoch{1});
}

TEST_F(DirectoryShard, AsksTheCallersNodeOfAResultToForgetIt) {
  for (const auto phase : {ReducePhase::kRunning, ReducePhase::kCommitted, ReducePhase::kFailed}) {
    reset(1);
    ends(phase);
    claim(kA, {.state = StripeState::kComplete, .target_epoch = 1});
    take();
    remove(kA, 1);
    EXPECT_TRUE(only<Drop>(kD).deleted);
    has_nothing(kD);
    EXPECT_EQ(only<Deleted>(kA).object, kObject);
  }
}

TEST_F(DirectoryShard, RefusesThePutOfAnObjectThatWasDeletedFirst) {
  remove(kD, 0);
  take();
  has(kA);
  EXPECT_EQ(only<Drop>(kA).upto, Incarnation{1});
  for (const NodeId node : {kA, kB, kC}) has_nothing(node);
  EXPECT_EQ(only<Deleted>(kD).upto, Incarnation{0});
  claim(kA, {.state = StripeState::kComplete, .incarnation = 2});
  wants(kB);
  EXPECT_EQ(only<Granted>(kB).incarnation, Incarnation{2});
}

TEST_F(DirectoryShard, BeginsADeletionAnewThatItEndedBeforeItKnewItsMembers) {
  directory_ = Directory(config_);
  remove(kHome, 1);
  change_view({kHome, kA});
  take();
  remove(kHome, 1);
  EXPECT_TRUE(only<Drop>(kA).deleted) << "A may have some of it";
  done(kA);
  EXPECT_EQ(only<Deleted>(kHome).upto, Incarnation{1});
}

TEST_F(DirectoryShard, KeepsALaterAttemptThanTheDeletedOne) {
  claim(kA, {.state = StripeState::kComplete, .incarnation = 2});
  remove(kA, 1);
  EXPECT_EQ(only<Deleted>(kA).upto, Incarnation{1});
  wants(kB);
  EXPECT_EQ(only<Granted>(kB).sender, kA);
}

TEST_F(DirectoryShard, ServesAPutUnderAnIdThatWasTheResultOfADeletedReduce) {
  claim(kA, {.state = StripeState::kComplete, .target_epoch = 3});
  remove(kA, 1);
  take();
  claim(kC, {.state = StripeState::kComplete, .incarnation = 2});
  wants(kB);
  EXPECT_EQ(only<Granted>(kB).sender, kC);
}

// After any claims in any order and number, the forest stays a forest. Every receiver that still
// wants the object at the end is fed, as long as its origin lives.
TEST_F(DirectoryShard, FeedsEveryWaiterWhateverWasSaidBefore) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    DirectoryTest::reset(static_cast<std::uint16_t>(1 + random.below(3)));
    std::map<NodeId, std::vector<Granted>> grants;
    has(kA);
    for (int i = 0; i < 60; ++i) {
      const NodeId node = std::array{kB, kC, kD}[random.below(3)];
      switch (random.below(7)) {
        case 0:
          claim(node, {.incarnation = 0});
          grants.erase(node);
          break;
        case 1:
        case 2:
          claim_all(node, grants[node], StripeState::kReceiving);
          break;
        case 3:
          claim_all(node, grants[node], StripeState::kIdle);
          break;
        case 4:
          directory_.handle_link_down(node);
          claim_all(node, grants[node], StripeState::kReceiving);
          done(node);
          break;
        case 5:
          elapse(kRegrantDelay);
          break;
        default:
          change_view({kHome, kA, kB, kC, kD});
          has(kA);
          for (const NodeId each : {kB, kC, kD}) {
            claim_all(each, grants[each], StripeState::kReceiving);
          }
          for (const NodeId each : {kA, kB, kC, kD}) done(each);
      }
      for (const Parcel& parcel : take()) {
        const auto grant = find_lease(parcel);
        if (grant) grants[parcel.to].push_back(*grant);
        ASSERT_FALSE(std::holds_alternative<Lost>(parcel.body));
      }
    }
    settle_and_expect_fed({kB, kC, kD}, grants);
    if (HasFailure()) return;
  }
}
}  // namespace
}  // namespace hoplite
