// SPDX-License-Identifier: Apache-2.0
// Parts of objects at one engine, whose test plays the home, a holder of the source, the helper
// thread and the clients.
#include "plan/engine/jobs/excerpts.h"

#include <array>
#include <string>
#include <utility>

#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

constexpr NodeId kHome{2};
constexpr NodeId kHolder{3};
constexpr NodeId kReader{3};
constexpr std::uint64_t kSize = 200'000;
constexpr std::uint64_t kPartSize = 100'000;  // every other 100 bytes

class Excerpting : public OneEngine {
 protected:
  Excerpting() : OneEngine(3, kHome) {}

  // Objects whose home is the second node, so that all that it hears is seen.
  static ObjectId name(std::uint8_t n) { return Nodes(3).object_at(1, n); }
  [[nodiscard]] Excerpt part() const {
    return {part_, floats_meta(kPartSize), {source_, Incarnation{1}}, {{0, 100, 100, 200, 1'000}}};
  }
  void put_source() {
    ask(PutCommand{source_, Incarnation{1}, floats_meta(kSize), {}});
    ask(WroteCommand{source_, Incarnation{1}, kSize});
    deeds<ReplyToClient>();
  }
  void locate(NodeId holder, std::uint32_t life = 1) {
    ObjectMeta meta = floats_meta(kSize);
    meta.block_bytes = 8192;
    hear(kHome, Located{source_, Incarnation{life}, meta, holder});
  }
  void pass(Duration time) {
    engine_.handle_timeout(now_ + time);
    engine_.check_invariants();
  }
  void answer(const RebuildJob& job, bool is_whole, const std::string& error = "") {
    engine_.handle_io(RebuildDone{job.rebuild, is_whole, error}, now_);
    engine_.check_invariants();
  }
  // All that the engine has done since the last call.
  struct Deeds {
    std::vector<RebuildJob> jobs;
    std::vector<ReplyToClient> replies;
    std::vector<Locate> questions;
    std::vector<NodeId> makers;
    std::vector<Lost> refusals;
    std::vector<Claim> claims;  // about the part
    [[nodiscard]] std::optional<Error> error() const {
      return replies.size() == 1 ? error_of(replies[0].reply) : std::nullopt;
    }
  };
  Deeds take() {
    Deeds deeds;
    while (const auto action = engine_.poll_action()) {
      if (const auto* job = std::get_if<RebuildJob>(&*action)) deeds.jobs.push_back(*job);
      if (const auto* reply = std::get_if<ReplyToClient>(&*action)) deeds.replies.push_back(*reply);
      const auto* sent = std::get_if<SendMessage>(&*action);
      if (sent == nullptr) continue;
      const PeerMessage& body = sent->message.body;
      if (const auto* asked = std::get_if<Locate>(&body)) deeds.questions.push_back(*asked);
      if (std::holds_alternative<MakeExcerpt>(body)) deeds.makers.push_back(sent->to);
      if (const auto* lost = std::get_if<Lost>(&body)) deeds.refusals.push_back(*lost);
      const auto* claim = std::get_if<Claim>(&body);
      if (claim != nullptr && claim->object == part_) deeds.claims.push_back(*claim);
    }
    return deeds;
  }
  // Wants the part, and asks the holder to make it.
  void ask_holder() {
    ask(ExcerptCommand{part(), true});
    locate(kHolder);
    EXPECT_EQ(take().makers, std::vector{kHolder});
  }

  const ObjectId source_ = name(1);
  const ObjectId part_ = name(2);
};

TEST_F(Excerpting, AsksTheSourcesHomeAndThenTheHolder) {
  ask(ExcerptCommand{part(), true});
  const Deeds asked = take();
  ASSERT_EQ(asked.claims.size(), 1U);
  EXPECT_TRUE(asked.claims[0].wants);
  EXPECT_TRUE(asked.claims[0].excerpt);
  EXPECT_FALSE(asked.claims[0].exists) << "no node has it yet";
  ASSERT_EQ(asked.questions.size(), 1U);
  EXPECT_EQ(asked.questions[0], (Locate{source_, Incarnation{1}, kNoNode, true, 0}));
  locate(kHolder);
  EXPECT_EQ(take().makers, std::vector{kHolder});
  ask(ExcerptCommand{part(), true});
  EXPECT_TRUE(take().makers.empty()) << "it is under way";
  EXPECT_EQ(engine_.stats().excerpts_wanted, 1U);
}

TEST_F(Excerpting, AsksAnotherHolderWhenOneRefusesOrDies) {
  ask_holder();
  hear(kHolder, Lost{part_, Code::kObjectLost, "it has gone"});
  const Deeds refused = take();
  ASSERT_EQ(refused.questions.size(), 1U);
  EXPECT_EQ(refused.questions[0].failed, kHolder);
  EXPECT_TRUE(refused.replies.empty());
  locate(kHolder);
  take();
  engine_.handle_io(LinkDown{kHolder}, now_);
  const Deeds dead = take();
  ASSERT_EQ(dead.questions.size(), 1U);
  EXPECT_EQ(dead.questions[0].failed, kHolder);
}

TEST_F(Excerpting, AsksAgainWhenNothingComes) {
  ask_holder();
  pass(500_ms);
  EXPECT_TRUE(take().questions.empty());
  pass(1_s);
  EXPECT_EQ(take().questions.size(), 1U);
}

TEST_F(Excerpting, FailsWithoutASourceOrWithAWrongPart) {
  struct Row {
    Code code;
    std::size_t times;
    Code ends_with;
  };
  for (const Row row : {Row{Code::kInvalidArgument, 1, Code::kInvalidArgument},
                        Row{Code::kStoreFull, 3, Code::kStoreFull}}) {
    ask_holder();
    for (std::size_t i = 1; i < row.times; ++i) {
      hear(kHolder, Lost{part_, row.code, "because"});
      locate(kHolder);
      EXPECT_TRUE(take().replies.empty());
    }
    hear(kHolder, Lost{part_, row.code, "because"});
    const auto error = take().error();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, row.ends_with);
    EXPECT_NE(error->text.find(short_name(source_)), std::string::npos) << error->text;
    EXPECT_EQ(engine_.stats().excerpts_wanted, 0U);
    EXPECT_EQ(engine_.stats().objects, 0U);
  }
  ask(ExcerptCommand{part(), true});
  take();
  hear(kHome, Lost{source_, Code::kObjectLost, "its last holder died"});
  EXPECT_EQ(take().error()->code, Code::kObjectLost);
  ask(ExcerptCommand{part(), true});
  take();
  locate(kHolder, 2);
  EXPECT_NE(take().error()->text.find("put again"), std::string::npos);
}

TEST_F(Excerpting, FaultyPartsAreRefusedAtOnce) {
  using Change = void (*)(Excerpt&);
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const std::array<Change, 11> faults{
      [](Excerpt& e) { e.source.incarnation = {}; },
      [](Excerpt& e) { e.source.object = e.object; },
      [](Excerpt& e) { e.runs[0].count = 0; },
      [](Excerpt& e) { e.runs[0].run_bytes = 0; },
      [](Excerpt& e) { e.runs[0].run_bytes = kHuge; },
      [](Excerpt& e) { e.runs[0].count = kHuge; },
      [](Excerpt& e) { e.runs[0].stride_bytes = 50; },
      [](Excerpt& e) { e.runs[0].into = 1; },
      [](Excerpt& e) { e.runs.insert(e.runs.begin(), {8, 0, 8, 0, 1}); },
      [](Excerpt& e) { e.meta.size_bytes = 1; },
      [](Excerpt& e) { e.runs.resize(kExcerptRunsMax + 1, {0, 0, 1, 0, 1}); }};
  put_source();
  for (const Change change : faults) {
    Excerpt wrong = part();
    change(wrong);
    EXPECT_NE(fault_of(wrong), nullptr);
    ask(ExcerptCommand{wrong, true});
    hear(kReader, MakeExcerpt{wrong});
    const Deeds deeds = take();
    ASSERT_TRUE(deeds.error());
    EXPECT_EQ(deeds.error()->code, Code::kInvalidArgument);
    ASSERT_EQ(deeds.refusals.size(), 1U);
    EXPECT_EQ(deeds.refusals[0].code, Code::kInvalidArgument);
  }
  EXPECT_EQ(engine_.stats().objects, 1U);
}

TEST_F(Excerpting, HolderMakesItOnceAndClaimsACopyThatMayLeave) {
  put_source();
  hear(kReader, MakeExcerpt{part()});
  hear(kHome, MakeExcerpt{part()});
  const Deeds begun = take();
  ASSERT_EQ(begun.jobs.size(), 1U);
  EXPECT_EQ(begun.jobs[0].runs, part().runs);
  EXPECT_EQ(begun.jobs[0].base.size_bytes, kSize);
  EXPECT_EQ(begun.jobs[0].target.size_bytes, kPartSize);
  answer(begun.jobs[0], false);
  const Deeds second = take();
  ASSERT_EQ(second.jobs.size(), 1U);
  answer(second.jobs[0], true);
  const Deeds made = take();
  ASSERT_EQ(made.claims.size(), 1U);
  EXPECT_TRUE(made.claims[0].excerpt);
  EXPECT_FALSE(made.claims[0].pinned);
  EXPECT_EQ(made.claims[0].stripes.at(0).state, StripeState::kComplete);
  EXPECT_EQ(engine_.stats().excerpts, 1U);
  hear(kReader, MakeExcerpt{part()});
  EXPECT_EQ(take().claims.size(), 1U) << "it is there";
}

TEST_F(Excerpting, HolderRefusesWhatItHasNot) {
  hear(kReader, MakeExcerpt{part()});
  const Deeds none = take();
  ASSERT_EQ(none.refusals.size(), 1U);
  EXPECT_EQ(none.refusals[0].code, Code::kObjectLost);
  put_source();
  Excerpt wrong = part();
  wrong.runs[0].from = 101;  // the last byte is outside
  hear(kReader, MakeExcerpt{wrong});
  EXPECT_EQ(take().refusals.size(), 1U);
  Excerpt later = part();
  later.source.incarnation = Incarnation{2};
  hear(kReader, MakeExcerpt{later});
  EXPECT_EQ(take().refusals.size(), 1U);
}

TEST_F(Excerpting, StepThatFailsAndADeletedSourceTellTheReader) {
  put_source();
  hear(kReader, MakeExcerpt{part()});
  answer(take().jobs.at(0), false, "a step has failed");
  EXPECT_EQ(take().refusals.size(), 1U);
  hear(kReader, MakeExcerpt{part()});
  const Deeds begun = take();
  hear(kHome, Drop{source_, Incarnation{1}, true});
  answer(begun.jobs.at(0), true);
  const Deeds ended = take();
  EXPECT_EQ(ended.refusals.size(), 1U);
  EXPECT_EQ(engine_.stats().excerpts, 0U);
  EXPECT_EQ(engine_.stats().arena_bytes_used, 0U);
}

TEST_F(Excerpting, NodeWithTheSourceMakesItForItself) {
  put_source();
  const RequestId first = ask(ExcerptCommand{part(), true});
  ask(ExcerptCommand{part(), true});
  const Deeds begun = take();
  EXPECT_TRUE(begun.questions.empty());
  ASSERT_EQ(begun.jobs.size(), 1U);
  engine_.handle_command({ClientId{1}, first, CancelCommand{part_}}, now_);
  answer(begun.jobs[0], true);
  EXPECT_EQ(take().replies.size(), 2U) << "one was cancelled, one has its value";
}

TEST_F(Excerpting, SourceThatIsWrittenIsWaitedFor) {
  ask(PutCommand{source_, Incarnation{1}, floats_meta(kSize), {}});
  hear(kReader, MakeExcerpt{part()});
  const Deeds before = take();
  EXPECT_TRUE(before.jobs.empty());
  EXPECT_TRUE(before.refusals.empty());
  ask(WroteCommand{source_, Incarnation{1}, kSize});
  EXPECT_EQ(take().jobs.size(), 1U);
}

TEST_F(Excerpting, QuestionWhatAnObjectIsMovesNoBytes) {
  Excerpt question;
  question.source.object = source_;
  ask(ExcerptCommand{question, true});
  ASSERT_EQ(take().questions.size(), 1U);
  locate(kHolder);
  const Deeds answered = take();
  ASSERT_EQ(answered.replies.size(), 1U);
  const auto& fetched = std::get<Fetched>(answered.replies[0].reply);
  EXPECT_EQ(fetched.incarnation, Incarnation{1});
  EXPECT_EQ(fetched.meta.layout, floats_meta(kSize).layout);
  EXPECT_EQ(fetched.meta.size_bytes, 0U);
  EXPECT_FALSE(fetched.mapped);
  put_source();
  ask(ExcerptCommand{question, true});
  EXPECT_EQ(take().replies.size(), 1U) << "it is here";
}

TEST_F(Excerpting, QuestionThatIsWithdrawnOrLostLeavesNothing) {
  Excerpt question;
  question.source.object = source_;
  const RequestId asked = ask(ExcerptCommand{question, false});
  take();
  engine_.handle_command({ClientId{1}, asked, CancelCommand{source_}}, now_);
  EXPECT_EQ(take().error()->code, Code::kCancelled);
  EXPECT_EQ(engine_.stats().questions, 0U);
  ask(ExcerptCommand{question, false});
  take();
  engine_.handle_command({ClientId{1}, RequestId{0}, ClientLostCommand{}}, now_);
  take();
  EXPECT_EQ(engine_.stats().questions, 0U);
  ask(ExcerptCommand{question, true});
  take();
  hear(kHome, Lost{source_, Code::kObjectLost, "no node has it"});
  EXPECT_EQ(take().error()->code, Code::kObjectLost);
  EXPECT_EQ(engine_.stats().excerpts_wanted, 0U);
}

}  // namespace
}  // namespace hoplite
