// SPDX-License-Identifier: Apache-2.0
// Holds the code to docs/internals/wire.md: its worked examples are encoded and decoded, its
// numbers looked up.
#include "wire/wire_doc_test.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "wire/crc32c.h"
#include "wire/frame.h"
#include "wire/local/local_frame.h"

namespace hoplite {
namespace {

ObjectId example_object() {
  ObjectId id;
  for (std::size_t i = 0; i < kObjectIdBytes; ++i) id.bytes[i] = static_cast<std::uint8_t>(i + 1);
  return id;
}
constexpr TraceId kExampleTrace{0x0102030405060708};

TEST(WireDoc, ControlFrameExampleIsWhatTheCodeSpeaks) {
  const auto example = hex_example(wire_doc(), "control");
  const Message message{Epoch{3}, TransferId{7}, kExampleTrace, Credit{2}};
  std::vector<std::byte> encoded;
  encode(message, 0, encoded);
  ASSERT_EQ(encoded, example);
  auto header = decode_header(example);
  ASSERT_TRUE(header);
  auto frame = decode_body(*header, std::span(example).subspan(kFrameHeaderBytes));
  ASSERT_TRUE(frame);
  EXPECT_EQ(std::get<Message>(*frame), message);
}

TEST(WireDoc, BlockExampleIsWhatTheCodeSpeaks) {
  const auto example = hex_example(wire_doc(), "block");
  ASSERT_EQ(example.size(), kBlockFrameBytes + 9);
  const auto payload = std::span(example).subspan(kBlockFrameBytes);
  const BlockHeader block{.view_epoch = Epoch{3},
                          .transfer = TransferId{7},
                          .trace = kExampleTrace,
                          .object = example_object(),
                          .incarnation = Incarnation{5},
                          .target_epoch = {},
                          .offset = 65536,
                          .size_bytes = 9,
                          .crc32c = crc32c(payload)};
  const auto encoded = encode(block);
  EXPECT_TRUE(std::equal(encoded.begin(), encoded.end(), example.begin()));
  auto header = decode_header(example);
  ASSERT_TRUE(header);
  auto decoded =
      decode_block(*header, std::span(example).subspan(kFrameHeaderBytes, kBlockBodyBytes));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, block);
}

TEST(WireDoc, LocalExampleIsWhatTheCodeSpeaks) {
  const auto example = hex_example(wire_doc(), "local");
  std::vector<std::byte> encoded;
  encode(Command{ClientId{4}, RequestId{9}, GetCommand{example_object(), false}}, encoded);
  EXPECT_EQ(encoded, example);
}

TEST(WireDoc, EveryFrameHasItsRow) {
  const std::string doc = wire_doc();
  const std::vector<std::pair<FrameType, std::string>> frames = {
      {FrameType::kHello, "Hello"},
      {FrameType::kWelcome, "Welcome"},
      {FrameType::kProof, "Proof"},
      {FrameType::kCloseRail, "CloseRail"},
      {FrameType::kGoodbye, "Goodbye"},
      {FrameType::kPulse, "Pulse"},
      {FrameType::kBlock, "Block"},
      {FrameType::kClaim, "Claim"},
      {FrameType::kDelete, "Delete"},
      {FrameType::kLocate, "Locate"},
      {FrameType::kReduceWant, "ReduceWant"},
      {FrameType::kReduceReport, "ReduceReport"},
      {FrameType::kResyncDone, "ResyncDone"},
      {FrameType::kResyncWanted, "ResyncWanted"},
      {FrameType::kGrant, "Grant"},
      {FrameType::kLocated, "Located"},
      {FrameType::kPush, "Push"},
      {FrameType::kPushTo, "PushTo"},
      {FrameType::kLost, "Lost"},
      {FrameType::kDrop, "Drop"},
      {FrameType::kDeleted, "Deleted"},
      {FrameType::kReduceOwn, "ReduceOwn"},
      {FrameType::kReduceState, "ReduceState"},
      {FrameType::kPullStart, "PullStart"},
      {FrameType::kCredit, "Credit"},
      {FrameType::kPullStop, "PullStop"},
      {FrameType::kPullRefused, "PullRefused"},
      {FrameType::kOrphan, "Orphan"},
      {FrameType::kAdopt, "Adopt"},
      {FrameType::kStanding, "Standing"},
      {FrameType::kProgress, "Progress"},
      {FrameType::kChannelClaim, "ChannelClaim"},
      {FrameType::kChannelQuestion, "ChannelQuestion"},
      {FrameType::kVersionAck, "VersionAck"},
      {FrameType::kVersionOffer, "VersionOffer"},
      {FrameType::kVersionNews, "VersionNews"},
      {FrameType::kChannelAnswer, "ChannelAnswer"},
      {FrameType::kMakeExcerpt, "MakeExcerpt"}};
  // One more than the variants: Block is a struct of its own.
  EXPECT_EQ(frames.size(), std::variant_size_v<PeerMessage> + std::variant_size_v<LinkFrame> + 1);
  for (const auto& [type, name] : frames) {
    EXPECT_TRUE(has_row(doc, static_cast<int>(type), name)) << name;
  }
}

TEST(WireDoc, EveryLocalFrameHasItsRow) {
  const std::string doc = wire_doc();
  const std::vector<std::pair<LocalType, std::string>> local_frames = {
      {LocalType::kAttach, "Attach"},
      {LocalType::kAttached, "Attached"},
      {LocalType::kPut, "Put"},
      {LocalType::kWrote, "Wrote"},
      {LocalType::kGet, "Get"},
      {LocalType::kRelease, "Release"},
      {LocalType::kDelete, "Delete"},
      {LocalType::kReduce, "Reduce"},
      {LocalType::kCancel, "Cancel"},
      {LocalType::kReduceSource, "ReduceSource"},
      {LocalType::kReserved, "Reserved"},
      {LocalType::kFetched, "Fetched"},
      {LocalType::kReduced, "Reduced"},
      {LocalType::kDone, "Done"},
      {LocalType::kError, "Error"},
      {LocalType::kOrphan, "Orphan"},
      {LocalType::kReduceFailed, "ReduceFailed"},
      {LocalType::kEcho, "Echo"},
      {LocalType::kTakeTerm, "TakeTerm"},
      {LocalType::kPublish, "Publish"},
      {LocalType::kWatch, "Watch"},
      {LocalType::kListChannels, "ListChannels"},
      {LocalType::kTermTaken, "TermTaken"},
      {LocalType::kVersionSeen, "VersionSeen"},
      {LocalType::kVersionRefused, "VersionRefused"},
      {LocalType::kChannelsListed, "ChannelsListed"},
      {LocalType::kRebuild, "Rebuild"},
      {LocalType::kRead, "Read"},
      {LocalType::kKeep, "Keep"},
      {LocalType::kExcerpt, "Excerpt"}};
  // Four commands are no client's; Attach and Attached are neither commands nor replies.
  EXPECT_EQ(local_frames.size(),
            std::variant_size_v<CommandBody> - 4 + std::variant_size_v<Reply> + 2);
  for (const auto& [type, name] : local_frames) {
    EXPECT_TRUE(has_row(doc, static_cast<int>(type), name)) << name;
  }
}

}  // namespace
}  // namespace hoplite
