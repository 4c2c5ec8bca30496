// SPDX-License-Identifier: Apache-2.0
#include "node/object_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace hoplite {
namespace {

ObjectId object_id(std::uint8_t number) {
  ObjectId id;
  id.bytes.fill(number);
  return id;
}

std::string line(const std::string& byte, const std::string& kind) {
  std::string hex;
  for (std::size_t i = 0; i < kObjectIdBytes; ++i) hex += byte;
  return "trace " + hex + " " + kind + "\n";
}

constexpr Instant at(std::int64_t ms) { return Instant{} + Duration{ms * 1'000'000}; }

void one_life(ObjectTrace& trace) {
  trace.record(Command{ClientId{1}, RequestId{2}, GetCommand{object_id(0xab)}}, 77, at(1));
  Grant body;
  body.object = object_id(0xab);
  Message grant;
  grant.body = body;
  trace.record(IoEvent{MessageIn{NodeId{2}, grant, {}}}, at(2));
  OpenReceive open;
  open.transfer = TransferId{7};
  open.from = NodeId{2};
  open.object = object_id(0xab);
  open.meta = {100, 64, {}, {}};
  trace.record(Action{open}, at(3));
  trace.record(IoEvent{BlockLanded{NodeId{2}, TransferId{7}, BlockIndex{0}}}, at(4));
  // no open receive
  trace.record(IoEvent{BlockLanded{NodeId{3}, TransferId{7}, BlockIndex{0}}}, at(4));
  trace.record(IoEvent{BlockLanded{NodeId{2}, TransferId{7}, BlockIndex{1}}}, at(5));
  trace.record(Action{CloseReceive{TransferId{7}, NodeId{2}}}, at(6));
  Fetched fetched;
  fetched.meta = open.meta;
  trace.record(Action{ReplyToClient{ClientId{1}, RequestId{2}, fetched}}, at(7));
  trace.record(Action{ReplyToClient{ClientId{1}, RequestId{3}, Done{}}}, at(8));  // to another one
}

std::vector<Moment> moments(const ObjectTrace& trace, std::uint8_t byte, std::uint8_t digits) {
  auto found = trace.moments_of({object_id(byte), digits}).moments;
  std::stable_sort(found.begin(), found.end(),
                   [](const Moment& a, const Moment& b) { return a.at < b.at; });
  return found;
}

std::vector<MomentKind> kinds(const std::vector<Moment>& moments) {
  std::vector<MomentKind> all;
  for (const Moment& each : moments) all.push_back(each.kind);
  return all;
}

TEST(ObjectTrace, PrintsTheLifeOfAnObject) {
  ObjectTrace trace(0, true);
  testing::internal::CaptureStderr();
  one_life(trace);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            line("ab", "GetCommand") + line("ab", "in:Grant") + line("ab", "OpenReceive") +
                line("ab", "BlockLanded") + line("ab", "BlockLanded") + line("ab", "CloseReceive") +
                line("ab", "ReplyToClient"));
  EXPECT_EQ(moments(trace, 0xab, 56).size(), 0U);
}

TEST(ObjectTrace, RemembersTheLifeOfAnObjectAndPrintsNothing) {
  ObjectTrace trace(16, false);
  testing::internal::CaptureStderr();
  one_life(trace);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  const auto found = moments(trace, 0xab, 3);
  ASSERT_EQ(kinds(found), (std::vector{MomentKind::kReceiving, MomentKind::kFirstBlock,
                                       MomentKind::kReceived, MomentKind::kGot}));
  EXPECT_EQ(found[1].bytes, 64U);
  EXPECT_EQ(found[2].at, at(5));
  EXPECT_EQ(found[2].since, at(4));
  EXPECT_EQ(found[2].bytes, 100U);
  EXPECT_EQ(found[3].since, at(1));
  EXPECT_EQ(found[3].process, 77U);
  EXPECT_EQ(moments(trace, 0xac, 1).size(), 4U);  // its first digit
  EXPECT_EQ(moments(trace, 0xac, 2).size(), 0U);
}

TEST(ObjectTrace, KeepsTheNewestAndSaysSinceWhen) {
  ObjectTrace trace(2, false);
  for (std::uint8_t i = 1; i <= 5; ++i) {
    trace.record(Command{ClientId{1}, RequestId{0}, DeleteCommand{object_id(i), {}}}, 0, at(i));
  }
  EXPECT_EQ(moments(trace, 3, 56).size(), 0U);
  EXPECT_EQ(moments(trace, 4, 56).size(), 1U);
  const auto found = trace.moments_of({object_id(5), 56});
  EXPECT_EQ(found.forgotten, 3U);
  EXPECT_EQ(found.oldest, at(4));
}

TEST(ObjectTrace, TellsWhoWaitsUntilTheClientHasGone) {
  ObjectTrace trace(16, false);
  trace.record(Command{ClientId{1}, RequestId{2}, GetCommand{object_id(1)}}, 77, at(1));
  EXPECT_EQ(kinds(moments(trace, 1, 56)), std::vector{MomentKind::kWaits});
  trace.record(Command{ClientId{1}, RequestId{0}, ClientLostCommand{}}, 0, at(2));
  EXPECT_EQ(moments(trace, 1, 56).size(), 0U);
}

// A cancel has the number of the request that it ends, and no answer of its own.
TEST(ObjectTrace, ACancelledRequestWaitsNoLonger) {
  ObjectTrace trace(16, false);
  const auto ask = [&trace](RequestId request, Instant now, CommandBody body) {
    trace.record(Command{ClientId{1}, request, std::move(body)}, 77, now);
  };
  ask(RequestId{1}, at(1), PutCommand{object_id(1), Incarnation{1}, {5, 5, {}, {}}, {}});
  trace.record(Action{ReplyToClient{ClientId{1}, RequestId{1}, Reserved{}}}, at(2));
  ask(RequestId{1}, at(3), CancelCommand{object_id(1)});
  EXPECT_EQ(kinds(moments(trace, 1, 56)), std::vector{MomentKind::kReserved});

  ask(RequestId{2}, at(4), GetCommand{object_id(2)});
  ask(RequestId{2}, at(9), CancelCommand{object_id(2)});
  EXPECT_EQ(kinds(moments(trace, 2, 56)), std::vector{MomentKind::kWaits});
  const Error cancelled{Code::kCancelled, "cancelled by the caller"};
  trace.record(Action{ReplyToClient{ClientId{1}, RequestId{2}, cancelled}}, at(10));
  const auto found = moments(trace, 2, 56);
  ASSERT_EQ(kinds(found), std::vector{MomentKind::kFailed});
  EXPECT_EQ(found[0].since, at(4));
}

TEST(ObjectTrace, TellsHowFarAStripeIs) {
  ObjectTrace trace(16, false);
  OpenReceive open;
  open.transfer = TransferId{7};
  open.from = NodeId{2};
  open.object = object_id(1);
  open.meta = {100, 64, {}, {}};
  trace.record(Action{open}, at(1));
  trace.record(IoEvent{BlockLanded{NodeId{2}, TransferId{7}, BlockIndex{1}}}, at(3));
  const auto found = moments(trace, 1, 56);
  ASSERT_EQ(kinds(found),
            (std::vector{MomentKind::kReceiving, MomentKind::kFirstBlock, MomentKind::kReceiving}));
  EXPECT_EQ(found[0].bytes, 0U);
  EXPECT_EQ(found[2].bytes, 36U);
}

TEST(ObjectTrace, GetsPushOutNoPuts) {
  ObjectTrace trace(2, false);
  const auto ask = [&trace](RequestId request, CommandBody body) {
    trace.record(Command{ClientId{1}, request, std::move(body)}, 77, at(1));
  };
  ask(RequestId{1}, PutCommand{object_id(1), Incarnation{1}, {5, 5, {}, {}}, {}});
  trace.record(Action{ReplyToClient{ClientId{1}, RequestId{1}, Done{}}}, at(2));
  for (std::uint64_t i = 2; i < 100; ++i) {
    ask(RequestId{i}, GetCommand{object_id(1)});
    trace.record(Action{ReplyToClient{ClientId{1}, RequestId{i}, Fetched{}}}, at(3));
  }
  const auto found = moments(trace, 1, 56);
  ASSERT_GT(found.size(), 1U);
  EXPECT_EQ(found[0].kind, MomentKind::kSealed);
  EXPECT_EQ(found[0].bytes, 5U);
}

// Records a spill of three steps of 4 bytes; the disk answers so many of them.
class SpillsInSteps : public testing::Test {
 protected:
  void step(SpillWay way, std::uint64_t n) {
    trace_.record(Action{SpillJob{SpillId{1}, object_id(1), way, {n * 4, 4}, {n * 4, 4}, 12}},
                  at(static_cast<std::int64_t>(n) + 1));
  }
  void answer(std::int64_t ms, const std::string& error = "") {
    trace_.record(IoEvent{SpillDone{SpillId{1}, error}}, at(ms));
  }
  void free() {  // whole blocks of the file
    trace_.record(Action{SpillJob{SpillId{}, object_id(1), SpillWay::kFree, {}, {0, 16}, 0}},
                  at(20));
  }
  std::vector<std::uint64_t> bytes() {
    std::vector<std::uint64_t> all;
    for (const Moment& each : moments(trace_, 1, 56)) all.push_back(each.bytes);
    return all;
  }
  ObjectTrace trace_{16, false};
};

TEST_F(SpillsInSteps, AreOneBeginAndOneEnd) {
  for (std::uint64_t n = 0; n < 3; ++n) {
    step(SpillWay::kWrite, n);
    answer(10 + static_cast<std::int64_t>(n));
  }
  const auto found = moments(trace_, 1, 56);
  ASSERT_EQ(kinds(found), (std::vector{MomentKind::kSpilling, MomentKind::kSpilled}));
  EXPECT_EQ(bytes(), (std::vector<std::uint64_t>{12, 12}));
  EXPECT_EQ(found[1].since, at(1));
  EXPECT_EQ(found[1].at, at(12));
  EXPECT_EQ(found[1].code, Code::kOk);
}

TEST_F(SpillsInSteps, EndWithTheStepThatTheDiskRefuses) {
  step(SpillWay::kRead, 0);
  answer(10);
  step(SpillWay::kRead, 1);
  answer(11, "reading from /disk: Input/output error (errno 5)");
  const auto found = moments(trace_, 1, 56);
  ASSERT_EQ(kinds(found), (std::vector{MomentKind::kReading, MomentKind::kSpilled}));
  EXPECT_EQ(bytes(), (std::vector<std::uint64_t>{12, 4}));
  EXPECT_EQ(found[1].code, Code::kSystem);
}

// The range of a write is freed after the answer to its step, and that of a read before it.
TEST_F(SpillsInSteps, EndWithTheStepInWhichTheObjectIsDropped) {
  step(SpillWay::kWrite, 0);
  answer(10);
  free();
  EXPECT_EQ(bytes(), (std::vector<std::uint64_t>{12, 4}));
  step(SpillWay::kRead, 0);
  free();
  answer(30);
  EXPECT_EQ(bytes(), (std::vector<std::uint64_t>{12, 12, 4, 4}));
  answer(31);  // of no spill that is known
  free();
  EXPECT_EQ(kinds(moments(trace_, 1, 56)),
            (std::vector{MomentKind::kSpilling, MomentKind::kReading, MomentKind::kSpilled,
                         MomentKind::kSpilled}));
}

TEST(ObjectTrace, TellsOfDeathsWhateverIsAskedFor) {
  ObjectTrace trace(16, false);
  trace.record(IoEvent{PeerDead{NodeId{9}, Incarnation{1}}}, at(1));
  const auto found = moments(trace, 1, 56);
  ASSERT_EQ(kinds(found), std::vector{MomentKind::kDead});
  EXPECT_EQ(found[0].peer, NodeId{9});
}

TEST(ObjectTrace, IsSilentWhenItIsOff) {
  ObjectTrace trace(0, false);
  testing::internal::CaptureStderr();
  one_life(trace);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(trace.moments_of({object_id(0xab), 56}).kept_max, 0U);
}

}  // namespace
}  // namespace hoplite
