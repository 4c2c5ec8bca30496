// SPDX-License-Identifier: Apache-2.0
#include "node/object_trace.h"

#include <gtest/gtest.h>

#include <string>

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

void one_life(ObjectTrace& trace) {
  trace.hear(Command{ClientId{1}, RequestId{2}, GetCommand{object_id(0xab)}});
  Grant body;
  body.object = object_id(0xab);
  Message grant;
  grant.body = body;
  trace.hear(IoEvent{MessageIn{NodeId{2}, grant, {}}});
  OpenReceive open;
  open.transfer = TransferId{7};
  open.from = NodeId{2};
  open.object = object_id(0xab);
  trace.perform(Action{open});
  trace.hear(IoEvent{BlockLanded{NodeId{2}, TransferId{7}, BlockIndex{0}}});
  trace.hear(IoEvent{BlockLanded{NodeId{3}, TransferId{7}, BlockIndex{0}}});  // nobody's
  trace.perform(Action{CloseReceive{TransferId{7}, NodeId{2}}});
  trace.perform(Action{ReplyToClient{ClientId{1}, RequestId{2}, Done{}}});
  trace.perform(Action{ReplyToClient{ClientId{1}, RequestId{3}, Done{}}});  // to another request
}

TEST(ObjectTrace, TellsTheLifeOfAnObject) {
  ObjectTrace trace(true);
  testing::internal::CaptureStderr();
  one_life(trace);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            line("ab", "GetCommand") + line("ab", "in:Grant") + line("ab", "OpenReceive") +
                line("ab", "BlockLanded") + line("ab", "CloseReceive") +
                line("ab", "ReplyToClient"));
}

TEST(ObjectTrace, IsSilentWhenItIsOff) {
  ObjectTrace trace(false);
  testing::internal::CaptureStderr();
  one_life(trace);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace hoplite
