// SPDX-License-Identifier: Apache-2.0
// An owner of a reduce that also reads the result: it has its own stripes whole, and other owners'
// stripes in part.
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

const NodeId kHome{2};   // owns stripe 1
const NodeId kOther{3};  // gets the result, and is leased to us for stripe 1
constexpr TransferId kTransfer{77};

class Owner : public OneEngine {
 protected:
  Owner() : OneEngine(3, kHome) {
    owns(TargetEpoch{1});
    asked_ = ask(GetCommand{id_, true});
    is_granted(TargetEpoch{1}, LeaseId{1});
  }
  ReduceOwn plan(TargetEpoch epoch) {
    ReduceOwn own;
    own.target = id_;
    own.target_epoch = epoch;
    own.meta = meta();
    own.stripe_count = 2;
    own.owned = {StripeIndex{0}};
    own.source_count = own.count = 1;
    own.members = {{0, source_, Incarnation{1}, false}};
    own.sealed = true;
    return own;
  }
  void owns(TargetEpoch epoch) { hear(kHome, plan(epoch)); }
  void is_granted(TargetEpoch epoch, LeaseId lease) {
    hear(kHome, Grant{id_, Incarnation{1}, epoch, meta(), 2, {{StripeIndex{1}, kHome, lease}}});
  }
  void other_starts() {
    hear(kOther, PullStart{id_, Incarnation{1}, TargetEpoch{1}, 2, StripeIndex{1}, 0, 4},
         kTransfer);
  }

  const ObjectId source_ = Nodes(3).object_at(2, 9);
  RequestId asked_;
};

// home: Grant(epoch 2) -> owner │ home: ReduceOwn(epoch 2) -> owner. The grant voids the folded
// blocks. Otherwise the owner reports blocks of the new range as folded although they have no
// bytes.
TEST_F(Owner, FoldsAgainWhatAGrantOfANewerTargetEpochHasVoided) {
  ask(PutCommand{source_, Incarnation{1}, floats_meta(meta().size_bytes), {}});
  ask(WroteCommand{source_, Incarnation{1}, meta().size_bytes, false});
  const std::size_t blocks = deeds<Fold>().size();
  EXPECT_EQ(blocks, 7U);
  is_granted(TargetEpoch{2}, LeaseId{2});  // overtakes the message that says which blocks are void
  owns(TargetEpoch{2});
  EXPECT_EQ(deeds<Fold>().size(), blocks);
}

// An untrue ReduceOwn cuts the stripe otherwise in the same epoch, and names no member. The owner
// must look again at the member that is already folded.
TEST_F(Owner, FoldsTheRestOfAStripeThatIsCutOtherwiseInTheSameEpoch) {
  ask(PutCommand{source_, Incarnation{1}, floats_meta(meta().size_bytes), {}});
  ask(WroteCommand{source_, Incarnation{1}, meta().size_bytes, false});
  const std::size_t half = deeds<Fold>().size();
  ReduceOwn own = plan(TargetEpoch{1});
  own.stripe_count = 1;
  own.members.clear();
  hear(kHome, own);
  EXPECT_EQ(half + deeds<Fold>().size(), meta().block_count());
}

// Without the refusal a get on the other node never ends.
TEST_F(Owner, RefusesWhoWaitsForStripesThatItStopsAskingFor) {
  other_starts();
  EXPECT_TRUE(said<PullRefused>().empty()) << "it receives that stripe and passes it on";
  cancel(asked_);
  EXPECT_EQ(said<PullRefused>().size(), 1U);
}

// The claim must name the declined grant's lease. Otherwise the home takes later claims for older
// than the grant, and the node's next get never ends.
TEST_F(Owner, SaysThatItHasHeardOfAGrantThatItNoLongerWants) {
  cancel(asked_);
  is_granted(TargetEpoch{1}, LeaseId{5});
  const auto claims = said<Claim>();
  ASSERT_FALSE(claims.empty());
  EXPECT_EQ(claims.back().stripes[1].lease, LeaseId{5});
}

// Without the report the owner waits for ever for the rest of the source's first attempt.
TEST_F(Owner, SaysThatASourceIsLostWhichIsPutAgainWhileItIsFetchedWhole) {
  hear(kOther, Located{source_, Incarnation{1}, meta(), kNoNode});
  said<PullStart>();
  hear(kOther, Grant{source_,
                     Incarnation{2},
                     TargetEpoch{0},
                     meta(),
                     1,
                     {{StripeIndex{0}, kHome, LeaseId{1}}}});
  ASSERT_EQ(said<PullStart>().size(), 1U);
  engine_.handle_io(BlockLanded{kHome, transfer_, BlockIndex{0}}, now_);
  const auto asked = said<Locate>();
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].incarnation, Incarnation{1});
  hear(kOther, Lost{source_, Code::kObjectLost, "put again by a later attempt"});
  const auto reports = said<ReduceReport>();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].lost, std::vector<std::uint32_t>{0});
}

// Looking at every member at every answer and every block costs the square of their number.
TEST_F(Owner, LooksAtAMemberWhenThereIsNewsOfIt) {
  constexpr std::uint32_t kMany = 64;
  ReduceOwn own;
  own.target = Nodes(3).object_at(1, 10);
  own.target_epoch = TargetEpoch{1};
  own.meta = floats_meta(1024);
  own.meta.block_bytes = 1024;
  own.stripe_count = 1;
  own.owned = {StripeIndex{0}};
  own.source_count = own.count = kMany;
  own.deterministic = true;  // pulled one by one
  own.sealed = true;
  for (std::uint32_t i = 0; i < kMany; ++i) {
    const auto number = static_cast<std::uint8_t>(20 + i);
    own.members.push_back({i, Nodes(3).object_at(2, number), Incarnation{1}, false});
  }
  const std::uint64_t before = engine_.stats().members_looked_at;
  said<Locate>();  // of the other reduce
  hear(kHome, own);
  EXPECT_EQ(said<Locate>().size(), kMany);
  for (const ReduceSource& member : own.members) {
    hear(kOther, Located{member.object, Incarnation{1}, own.meta, kOther});
  }
  std::size_t pulled = 0;
  for (auto opened = deeds<OpenReceive>(); !opened.empty(); opened = deeds<OpenReceive>()) {
    pulled += opened.size();
    for (const OpenReceive& receive : opened) {
      engine_.handle_io(BlockLanded{kOther, receive.transfer, BlockIndex{0}}, now_);
    }
  }
  EXPECT_EQ(pulled, kMany);
  EXPECT_LE(engine_.stats().members_looked_at - before, 5 * kMany);
}

TEST_F(Owner, LooksAtNoMemberWhenAnotherObjectIsWritten) {
  ask(PutCommand{source_, Incarnation{1}, floats_meta(meta().size_bytes), {}});
  ask(WroteCommand{source_, Incarnation{1}, 8192, false});
  const std::uint64_t before = engine_.stats().members_looked_at;
  const ObjectId other = Nodes(3).object_at(2, 12);
  ask(PutCommand{other, Incarnation{1}, floats_meta(meta().size_bytes), {}});
  for (std::uint64_t bytes = 0; bytes < meta().size_bytes; bytes += 8192) {
    ask(WroteCommand{other, Incarnation{1}, bytes, false});
  }
  ask(WroteCommand{other, Incarnation{1}, meta().size_bytes, false});
  EXPECT_EQ(engine_.stats().members_looked_at, before);
  ask(WroteCommand{source_, Incarnation{1}, 16'384, false});
  EXPECT_GT(engine_.stats().members_looked_at, before);
}

// A turn must not queue all folds of a large local source, because client replies wait behind them.
TEST_F(Owner, QueuesNoMoreFoldsThanATurnOrTwoWorkOff) {
  constexpr std::uint64_t kBytes = 96'000;
  const ObjectId local = Nodes(3).object_at(2, 11);
  ask(PutCommand{local, Incarnation{1}, floats_meta(kBytes), {}});
  ask(WroteCommand{local, Incarnation{1}, kBytes, false});
  ReduceOwn own;
  own.target = Nodes(3).object_at(1, 10);
  own.target_epoch = TargetEpoch{1};
  own.meta = floats_meta(kBytes);
  own.meta.block_bytes = 8192;
  own.stripe_count = 1;
  own.owned = {StripeIndex{0}};
  own.source_count = own.count = 2;
  own.members = {{0, local, Incarnation{1}, false}};
  hear(kHome, own);
  std::uint64_t folded = 0;
  for (int turn = 0; turn < 10 && folded < kBytes; ++turn) {
    for (int event = 0; event < 20; ++event) engine_.handle_timeout(now_);
    std::uint64_t queued = 0;
    for (const Fold& fold : deeds<Fold>()) queued += fold.from.size_bytes;
    EXPECT_LE(queued, kFoldBytesMaxHere + own.meta.block_bytes);
    folded += queued;
  }
  EXPECT_EQ(folded, kBytes);
}

TEST_F(Owner, DropsItOnlyWhenItsHomeSaysSo) {
  other_starts();
  hear(kOther, Drop{id_, Incarnation{1}, true});
  EXPECT_TRUE(said<PullRefused>().empty());
  hear(kHome, Drop{id_, Incarnation{1}, true});
  EXPECT_EQ(said<PullRefused>().size(), 1U);
}

TEST_F(Owner, RefusesWhoAsksForStripesThatItHasGivenUp) {
  ASSERT_EQ(said<PullStart>().size(), 1U);
  cancel(asked_);
  hear(kHome, PullRefused{}, transfer_);  // the stripe, which this node no longer wants
  EXPECT_TRUE(said<PullRefused>().empty());
  other_starts();
  EXPECT_EQ(said<PullRefused>().size(), 1U);
}

// A member whose bytes are spread over several nodes is fetched whole before it is folded.
class OwnerOfASpreadSource : public OneEngine {
 protected:
  OwnerOfASpreadSource() : OneEngine(3, kHome) {}
  ReduceOwn plan(const ObjectId& target, TargetEpoch epoch, std::uint32_t index,
                 const ObjectId& source) {
    ReduceOwn own;
    own.target = target;
    own.target_epoch = epoch;
    own.meta = meta();
    own.owned = {StripeIndex{0}};
    own.source_count = own.count = 2;
    own.members = {{index, source, Incarnation{1}, false}};
    return own;
  }
  void is_spread(const ObjectId& source, NodeId home) {
    hear(home, Located{source, Incarnation{1}, meta(), kNoNode});
  }
  // Whether the last claim of the object wants it; nothing if there was none.
  std::optional<bool> wants(const ObjectId& object) {
    std::optional<bool> wanted;
    for (const Claim& claim : said<Claim>()) {
      if (claim.object == object) wanted = claim.wants;
    }
    return wanted;
  }
  const ObjectId first_ = Nodes(3).object_at(2, 9);
  const ObjectId spare_ = Nodes(3).object_at(2, 10);
};

TEST_F(OwnerOfASpreadSource, WantsAMemberNoLongerThatAnotherOneReplaces) {
  hear(kHome, plan(id_, TargetEpoch{1}, 0, first_));
  is_spread(first_, kOther);
  EXPECT_EQ(wants(first_), true);
  hear(kHome, plan(id_, TargetEpoch{2}, 1, spare_));
  EXPECT_EQ(wants(first_), false);
}

// The home says where the later attempt is, and that one is located anew.
TEST_F(OwnerOfASpreadSource, WantsAMemberNoLongerOfWhichALaterAttemptComes) {
  hear(kHome, plan(id_, TargetEpoch{1}, 0, first_));
  is_spread(first_, kOther);
  EXPECT_EQ(wants(first_), true);
  hear(kOther,
       Grant{first_, Incarnation{2}, {}, meta(), 1, {{StripeIndex{0}, kOther, LeaseId{1}}}});
  ASSERT_EQ(said<PullStart>().size(), 1U);
  engine_.handle_io(BlockLanded{kOther, transfer_, BlockIndex{0}}, now_);
  engine_.check_invariants();
  EXPECT_EQ(wants(first_), false);
}

// The result is wanted by all nodes, and is a member of another reduce whose fold ends.
TEST_F(OwnerOfASpreadSource, StillWantsAResultForAllWhenAFoldOfItEnds) {
  ReduceOwn inner = plan(id_, TargetEpoch{1}, 0, first_);
  inner.everywhere = true;
  inner.stripe_count = 2;
  hear(kHome, inner);
  const ObjectId outer = Nodes(3).object_at(kHome.value - 1, 40);
  hear(kHome, plan(outer, TargetEpoch{1}, 0, id_));
  is_spread(id_, kHome);
  hear(kHome, Drop{outer, Incarnation{1}, false});
  hear(kHome, ResyncWanted{});  // so it says again what it wants
  EXPECT_EQ(wants(id_), true);
}

// A source is folded as far as its client has written it. Then the client ends. Seed 22414 of
// `hoplite_sim`: the reduce waited for ever, although spares were there.
TEST_F(OwnerOfASpreadSource, AsksForAMemberWhosePutHereIsTakenBack) {
  const RequestId put = ask(PutCommand{first_, Incarnation{1}, floats_meta(100'000), {}});
  ask(WroteCommand{first_, Incarnation{1}, 32'768});
  hear(kHome, plan(id_, TargetEpoch{1}, 0, first_));
  EXPECT_TRUE(said<Locate>().empty());
  engine_.handle_command({ClientId{1}, put, CancelCommand{first_}}, now_);
  engine_.check_invariants();
  const auto questions = said<Locate>();
  ASSERT_EQ(questions.size(), 1U);
  EXPECT_EQ(questions[0].object, first_);
}

// Two calls of one client over the same sources, of which no node has the second yet.
class CallsOfTheSameSources : public OneEngine {
 protected:
  CallsOfTheSameSources() : OneEngine(3, kHome) {}
  void call(const ObjectId& target, Instant at) {
    ask_at(ReduceCommand{target, ReduceOp::kSum, 2, 2}, at);
    for (const std::uint32_t index : {0U, 1U}) {
      ask_at(ReduceSourceCommand{target, {index, sources_[index], {}, false}, false}, at);
    }
  }
  void ask_at(CommandBody body, Instant at) {
    engine_.handle_command({ClientId{1}, RequestId{++last_ask_}, std::move(body)}, at);
  }
  // Targets that were handed to their home with sources since the last look.
  std::set<ObjectId> forward_targets() {
    std::set<ObjectId> targets;
    for (const ReduceWant& want : said<ReduceWant>()) {
      if (!want.confirmed.empty()) targets.insert(want.target);
    }
    return targets;
  }
  const ObjectId second_ = Nodes(3).object_at(kHome.value - 1, 40);
  const std::vector<ObjectId> sources_{Nodes(3).object_at(2, 9), Nodes(3).object_at(2, 10)};
  std::uint64_t last_ask_ = 500;
};

TEST_F(CallsOfTheSameSources, BothWaitForTheHomesAnswers) {
  call(id_, now_);
  call(second_, now_);
  hear(kOther, Located{sources_[0], Incarnation{1}, meta(), kOther});
  EXPECT_TRUE(forward_targets().empty()) << "the home has not answered for the other source";
  hear(kOther, Located{sources_[1], {}, {}, kNoNode});  // no node has it yet
  EXPECT_EQ(forward_targets(), (std::set<ObjectId>{id_, second_}));
}

TEST_F(CallsOfTheSameSources, EachWaitsAsLongForAnAnswer) {
  const Duration window = EngineConfig{}.progress_window;
  call(id_, now_);
  const Instant later = now_ + Duration{window.ns - 1};
  call(second_, later);
  hear(kOther, Located{sources_[0], Incarnation{1}, meta(), kOther});
  engine_.handle_timeout(now_ + window);
  EXPECT_EQ(forward_targets(), std::set<ObjectId>{id_});
  engine_.handle_timeout(later + window);
  EXPECT_EQ(forward_targets(), std::set<ObjectId>{second_});
}

}  // namespace
}  // namespace hoplite
