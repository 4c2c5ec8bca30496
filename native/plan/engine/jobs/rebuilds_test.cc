// SPDX-License-Identifier: Apache-2.0
// Rebuilds of one engine, whose test plays the helper thread, the home and the clients.
#include <algorithm>
#include <functional>
#include <utility>

#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

constexpr NodeId kHome{2};
constexpr std::uint64_t kSize = 200'000;
constexpr std::uint64_t kDeltaSize = 20'000;
constexpr std::uint32_t kCrc = 77;
constexpr std::uint64_t kFits = 900'000;  // of 1 MiB, of which 1/8 is kept for folds

class Rebuilding : public OneEngine {
 protected:
  Rebuilding() : OneEngine(2, kHome) { put(base_, kSize); }

  // Objects whose home is the other node, so that all that it hears is seen.
  static ObjectId name(std::uint8_t n) { return Nodes(2).object_at(1, n); }
  static ObjectMeta meta_of(std::uint64_t bytes) {
    ObjectMeta meta = floats_meta(bytes);
    meta.block_bytes = 8192;
    return meta;
  }
  void put(const ObjectId& object, std::uint64_t bytes) {
    const bool is_small = bytes <= kInlineBytesMax;
    ask(PutCommand{object, Incarnation{1}, floats_meta(bytes), is_small ? Bytes(bytes) : Bytes{}});
    if (!is_small) ask(WroteCommand{object, Incarnation{1}, bytes});
    deeds<ReplyToClient>();
  }
  [[nodiscard]] RebuildCommand recipe(std::size_t deltas = 1) const {
    RebuildCommand recipe{whole_, Incarnation{1},          meta_of(kSize),
                          kCrc,   {base_, Incarnation{1}}, {}};
    for (std::size_t i = 0; i < deltas; ++i) {
      recipe.deltas.push_back({name(static_cast<std::uint8_t>(10 + i)), Incarnation{1}});
    }
    return recipe;
  }
  void push(const ObjectId& object, std::uint32_t life = 1) {  // as its home does with small ones
    Push push{object, Incarnation{life}, {}, floats_meta(kDeltaSize), {}};
    push.meta.block_bytes = kDeltaSize;
    engine_.handle_io(
        MessageIn{kHome, Message{Epoch{1}, {}, {}, std::move(push)}, Bytes(kDeltaSize)}, now_);
    engine_.check_invariants();
  }
  void answer(const RebuildJob& job, bool is_whole, const std::string& error = "") {
    engine_.handle_io(RebuildDone{job.rebuild, is_whole, error}, now_);
    engine_.check_invariants();
  }
  // All that the engine has done since the last call.
  struct Deeds {
    std::vector<RebuildJob> jobs;
    std::vector<Claim> claims;  // about the whole object
    std::vector<ReplyToClient> replies;
    [[nodiscard]] std::size_t fetched() const {
      return static_cast<std::size_t>(std::ranges::count_if(
          replies, [](const auto& reply) { return std::holds_alternative<Fetched>(reply.reply); }));
    }
    // True if the home was asked for the whole object in the end.
    [[nodiscard]] bool asks() const { return !claims.empty() && claims.back().wants; }
  };
  Deeds take() {
    Deeds deeds;
    while (const auto action = engine_.poll_action()) {
      if (const auto* job = std::get_if<RebuildJob>(&*action)) deeds.jobs.push_back(*job);
      if (const auto* reply = std::get_if<ReplyToClient>(&*action)) deeds.replies.push_back(*reply);
      const auto* closed = std::get_if<CloseReceive>(&*action);
      if (closed != nullptr) end_receive(*closed);
      const auto* sent = std::get_if<SendMessage>(&*action);
      if (sent == nullptr) continue;
      const auto* claim = std::get_if<Claim>(&sent->message.body);
      if (claim != nullptr && claim->object == whole_) deeds.claims.push_back(*claim);
    }
    return deeds;
  }
  // Begins a rebuild and returns its first job.
  RebuildJob begin() {
    ask(recipe());
    push(name(10));
    const Deeds deeds = take();
    EXPECT_EQ(deeds.jobs.size(), 1U);
    EXPECT_FALSE(deeds.asks());
    return deeds.jobs.empty() ? RebuildJob{} : deeds.jobs[0];
  }
  // The rebuild has ended amid a step.
  void expect_ranges_until_answer(const RebuildJob& job) {
    EXPECT_TRUE(take().jobs.empty());
    EXPECT_GE(engine_.stats().arena_bytes_used, 2 * kSize);
    answer(job, false);
    const Deeds deeds = take();
    ASSERT_EQ(deeds.jobs.size(), 1U);
    EXPECT_EQ(deeds.jobs[0].way, RebuildWay::kForget);
    EXPECT_EQ(deeds.fetched(), 0U);
    EXPECT_LT(engine_.stats().arena_bytes_used, 2 * kSize);
  }
  [[nodiscard]] std::uint64_t pin_bytes() const { return engine_.stats().arena_bytes_pinned; }

  const ObjectId base_ = name(1);
  const ObjectId whole_ = name(2);
};

TEST_F(Rebuilding, MakesTheObjectStepByStepAndClaimsACopyThatMayLeave) {
  const RebuildJob first = begin();
  EXPECT_EQ(first.way, RebuildWay::kMake);
  EXPECT_EQ(first.object, whole_);
  EXPECT_EQ(first.base.size_bytes, kSize);
  EXPECT_EQ(first.target.size_bytes, kSize);
  EXPECT_EQ(first.crc32c, kCrc);
  ASSERT_EQ(first.deltas.size(), 1U);
  EXPECT_EQ(first.deltas[0].size_bytes, kDeltaSize);
  answer(first, false);
  const Deeds second = take();
  ASSERT_EQ(second.jobs.size(), 1U);
  EXPECT_EQ(second.jobs[0].target, first.target);
  EXPECT_EQ(second.fetched(), 0U);
  answer(second.jobs[0], true);
  const Deeds last = take();
  EXPECT_EQ(last.fetched(), 1U);
  ASSERT_EQ(last.claims.size(), 1U);
  const Claim& claim = last.claims[0];
  EXPECT_EQ(claim.incarnation, Incarnation{1});
  EXPECT_EQ(claim.meta, meta_of(kSize)) << "as the recipe cuts it";
  EXPECT_FALSE(claim.wants);
  EXPECT_FALSE(claim.pinned);
  ASSERT_EQ(claim.stripes.size(), 1U);
  EXPECT_EQ(claim.stripes[0].state, StripeState::kComplete);
  ask(ReleaseCommand{whole_, Incarnation{1}});
  EXPECT_EQ(pin_bytes(), kSize / 4096 * 4096 + 4096) << "of the base alone";
  EXPECT_EQ(engine_.stats().rebuilds, 1U);
}

TEST_F(Rebuilding, IsSharedByAllThatWait) {
  ask(recipe());
  ask(GetCommand{whole_});
  ask(recipe());
  push(name(10));
  const Deeds begun = take();
  ASSERT_EQ(begun.jobs.size(), 1U);
  EXPECT_FALSE(begun.asks());
  answer(begun.jobs[0], true);
  EXPECT_EQ(take().fetched(), 3U);
}

TEST_F(Rebuilding, WaitsForAllDeltasOfAChain) {
  ask(recipe(3));
  push(name(12));
  push(name(10));
  EXPECT_TRUE(take().jobs.empty());
  push(name(11));
  const Deeds begun = take();
  ASSERT_EQ(begun.jobs.size(), 1U);
  EXPECT_EQ(begun.jobs[0].deltas.size(), 3U);
}

// Where no rebuild begins, the node asks the home for the object at once.
TEST_F(Rebuilding, BeginsOnlyOnABaseThatIsWholeAndHere) {
  struct Row {
    const char* what;
    std::function<void(RebuildCommand&)> change;
  };
  const std::vector<Row> rows = {
      {"another base", [](RebuildCommand& r) { r.base.object = name(77); }},
      {"another attempt", [](RebuildCommand& r) { r.base.incarnation = Incarnation{2}; }},
      {"another size", [](RebuildCommand& r) { r.meta = meta_of(kSize + 64); }},
  };
  for (const Row& row : rows) {
    RebuildCommand command = recipe();
    row.change(command);
    const RequestId request = ask(command);
    EXPECT_TRUE(take().asks()) << row.what;
    engine_.handle_command({ClientId{1}, request, CancelCommand{whole_}}, now_);
    take();
  }
  EXPECT_EQ(pin_bytes(), kSize / 4096 * 4096 + 4096);
}

TEST_F(Rebuilding, DoesNotBeginWhileTheObjectIsPulled) {
  ask(GetCommand{whole_, true});
  take();
  ask(recipe());
  push(name(10));
  EXPECT_TRUE(take().jobs.empty());
}

TEST_F(Rebuilding, RefusesARecipeThatMakesNoSense) {
  struct Row {
    const char* text;
    std::function<void(RebuildCommand&)> change;
  };
  const std::vector<Row> rows = {
      {"incarnation is 0", [](RebuildCommand& r) { r.incarnation = {}; }},
      {"no size of a block", [](RebuildCommand& r) { r.meta.block_bytes = 0; }},
      {"no delta", [](RebuildCommand& r) { r.deltas.clear(); }},
      {"too many deltas",
       [](RebuildCommand& r) { r.deltas.assign(kRebuildDeltasMax + 1, r.deltas[0]); }},
      {"of itself", [](RebuildCommand& r) { r.deltas[0].object = r.object; }},
      {"don't add up", [](RebuildCommand& r) { r.meta.parts.clear(); }},
  };
  for (const Row& row : rows) {
    RebuildCommand command = recipe();
    row.change(command);
    ask(command);
    const Deeds deeds = take();
    ASSERT_EQ(deeds.replies.size(), 1U) << row.text;
    const auto error = error_of(deeds.replies[0].reply);
    ASSERT_TRUE(error) << row.text;
    EXPECT_EQ(error->code, Code::kInvalidArgument);
    EXPECT_NE(error->text.find(row.text), std::string::npos) << error->text;
  }
}

// The object is fetched whole, whatever fails, and nothing stays pinned for the rebuild.
TEST_F(Rebuilding, FetchesTheWholeWhenItFails) {
  struct Row {
    const char* what;
    std::function<void(const ObjectId& delta)> fail;
  };
  const std::vector<Row> rows = {
      {"a lost delta",
       [this](const ObjectId& delta) {
         hear(kHome, Lost{delta, Code::kObjectLost, "no node has it"});
       }},
      {"a deleted delta", [this](const ObjectId& delta) { ask(DeleteCommand{delta, {}}); }},
      {"another attempt of the delta", [this](const ObjectId& delta) { push(delta, 2); }},
      {"a wrong checksum",
       [this](const ObjectId& delta) {
         push(delta);
         answer(take().jobs.at(0), false, "the base is another one");
       }},
      {"no time", [this](const ObjectId&) { engine_.handle_timeout(now_ + kTombstoneLife); }},
  };
  std::uint8_t next = 20;
  for (const Row& row : rows) {
    RebuildCommand command = recipe();
    command.deltas[0].object = name(next++);
    const RequestId request = ask(command);
    EXPECT_FALSE(take().asks()) << row.what;
    row.fail(command.deltas[0].object);
    engine_.check_invariants();
    EXPECT_TRUE(take().asks()) << row.what;
    EXPECT_EQ(pin_bytes(), kSize / 4096 * 4096 + 4096) << row.what;
    engine_.handle_command({ClientId{1}, request, CancelCommand{whole_}}, now_);
    take();
  }
  EXPECT_EQ(engine_.stats().rebuilds, 0U);
  EXPECT_EQ(engine_.stats().rebuilds_failed, rows.size());
}

TEST_F(Rebuilding, FetchesTheWholeWhenNoRangeComes) {
  put(name(3), kFits - kSize);
  ask(recipe());
  push(name(10));
  EXPECT_TRUE(take().jobs.empty()) << "the puts leave no room";
  engine_.handle_timeout(now_ + kAdmissionGrace);
  engine_.check_invariants();
  EXPECT_TRUE(take().asks());
}

// The helper may read and write amid a step. Its ranges stay until it answers.
TEST_F(Rebuilding, KeepsItsRangesUntilTheStepHasEnded) {
  const RebuildJob job = begin();
  engine_.handle_command({ClientId{1}, {}, ClientLostCommand{}}, now_);
  expect_ranges_until_answer(job);
}

TEST_F(Rebuilding, KeepsThemAlsoWhenItsHomeDropsTheObject) {
  const RebuildJob job = begin();
  hear(kHome, Drop{whole_, Incarnation{1}, true});
  expect_ranges_until_answer(job);
}

TEST_F(Rebuilding, EndsWithTheDeletionOfItsObject) {
  const RebuildJob job = begin();
  ask(DeleteCommand{whole_, {}});
  const Deeds deleted = take();
  ASSERT_EQ(deleted.replies.size(), 2U) << "of the get and of the deletion";
  EXPECT_EQ(error_of(deleted.replies[0].reply).value_or(Error{}).code, Code::kObjectLost);
  answer(job, true);
  const Deeds after = take();
  EXPECT_TRUE(after.claims.empty()) << "it is not claimed";
  EXPECT_TRUE(after.jobs.empty()) << "the helper has ended it";
  EXPECT_LT(engine_.stats().arena_bytes_used, 2 * kSize);
}

// Base and deltas are pinned, so their ranges stay as they are.
TEST_F(Rebuilding, GoesOnWhenItsBaseOrADeltaIsDeleted) {
  const RebuildJob job = begin();
  ask(DeleteCommand{base_, {}});
  ask(DeleteCommand{name(10), {}});
  take();
  answer(job, true);
  EXPECT_EQ(take().fetched(), 1U);
  ask(ReleaseCommand{whole_, Incarnation{1}});
  EXPECT_LT(engine_.stats().arena_bytes_used, 2 * kSize) << "the base and the delta have gone";
}

// A reader that holds an old version makes the newest one of it, although the old one was deleted.
TEST_F(Rebuilding, BeginsOnABaseThatWasDeletedWhileAClientMapsIt) {
  ask(GetCommand{base_, true});
  ask(DeleteCommand{base_, {}});
  take();
  const RebuildJob job = begin();
  EXPECT_EQ(job.base.size_bytes, kSize);
  ask(ReleaseCommand{base_, Incarnation{1}});
  EXPECT_GE(engine_.stats().arena_bytes_used, 2 * kSize) << "the rebuild has a pin of its own";
  answer(job, true);
  EXPECT_EQ(take().fetched(), 1U);
  ask(ReleaseCommand{whole_, Incarnation{1}});
  EXPECT_LT(engine_.stats().arena_bytes_used, 2 * kSize);
}

TEST_F(Rebuilding, DoesNotBeginOnABaseThatWasDeletedAndThatNoClientMaps) {
  ask(DeleteCommand{base_, {}});
  take();
  ask(recipe());
  EXPECT_TRUE(take().asks());
}

TEST_F(Rebuilding, OfADrainingNodeGoesOn) {
  const RebuildJob job = begin();
  ask(DrainCommand{});
  answer(job, true);
  EXPECT_EQ(take().fetched(), 1U);
}

TEST_F(Rebuilding, GoesOnOverANewView) {
  const RebuildJob job = begin();
  engine_.handle_command({{}, {}, SetViewCommand{Epoch{2}, {{NodeId{1}, Incarnation{1}, {}}}}},
                         now_);
  engine_.check_invariants();
  take();
  answer(job, true);
  EXPECT_EQ(take().fetched(), 1U);
  EXPECT_EQ(engine_.stats().rebuilds, 1U);
}

TEST_F(Rebuilding, IgnoresAGrantAndALossFromBefore) {
  const RebuildJob job = begin();
  const StripeLease lease{StripeIndex{0}, kHome, LeaseId{1}};
  hear(kHome, Grant{whole_, Incarnation{1}, {}, meta_of(kSize), 1, {lease}});
  hear(kHome, Lost{whole_, Code::kObjectLost, "no node has it"});
  const Deeds deeds = take();
  EXPECT_TRUE(deeds.replies.empty());
  EXPECT_FALSE(deeds.asks());
  answer(job, true);
  EXPECT_EQ(take().fetched(), 1U);
}

TEST_F(Rebuilding, TakesTheRangeThatFitsBest) {
  put(name(4), kSize);
  put(name(5), 100'000);
  ask(DeleteCommand{name(4), {}});
  take();
  const RebuildJob job = begin();
  EXPECT_LT(job.target.offset, 2 * kSize + 2 * 4096) << "its pages are there already";
}

TEST_F(Rebuilding, IgnoresAnAnswerThatNothingWaitsFor) {
  engine_.handle_io(RebuildDone{RebuildId{7}, true, ""}, now_);
  ask(recipe());
  engine_.handle_io(RebuildDone{RebuildId{1}, true, ""}, now_);  // no step is under way
  engine_.check_invariants();
  EXPECT_EQ(take().fetched(), 0U);
}

}  // namespace
}  // namespace hoplite
