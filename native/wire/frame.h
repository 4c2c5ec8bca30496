// SPDX-License-Identifier: Apache-2.0
// Bytes <-> the frames that nodes exchange: Message (control connections), BlockHeader (bulk) and
// LinkFrame (the first frames of both). Pure functions, total on hostile input: nothing throws, no
// length is believed before it is checked against base/limits.h and against the bytes that are
// there. A payload is never touched here: it is sent beside header and body by scatter/gather.
// Grammar and worked examples: docs/internals/wire.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/result.h"
#include "plan/messages.h"
#include "wire/layouts.h"

namespace hoplite {

// The numbers are the wire's: never reuse one.
enum class FrameType : std::uint8_t {
  kHello = 1,
  kWelcome = 2,
  kProof = 3,
  kCloseRail = 4,
  kGoodbye = 5,
  kPulse = 6,
  kBlock = 16,
  kClaim = 32,
  kDelete = 33,
  kLocate = 34,
  kReduceWant = 35,
  kReduceReport = 36,
  kResyncDone = 37,
  kGrant = 38,
  kLocated = 39,
  kPush = 40,
  kPushTo = 41,
  kLost = 42,
  kDrop = 43,
  kReduceOwn = 44,
  kReduceState = 45,
  kPullStart = 46,
  kCredit = 47,
  kPullStop = 48,
  kPullRefused = 49,
  kOrphan = 50,
  kAdopt = 51,
  kStanding = 52,
  kProgress = 53,
  kResyncWanted = 54,
  kDeleted = 55,
  kChannelClaim = 56,
  kChannelQuestion = 57,
  kVersionAck = 58,
  kVersionOffer = 59,
  kVersionNews = 60,
  kChannelAnswer = 61,
  kMakeExcerpt = 62,
  kLastMessage = kMakeExcerpt,  // raise it with each new message
};

// The header of every frame.
struct FrameHeader {
  FrameType type = FrameType::kGoodbye;
  std::uint32_t body_bytes = 0;     // follow the header
  std::uint32_t payload_bytes = 0;  // follow the body: a block's bytes, or a small object's
  Epoch view_epoch;
  TransferId transfer;
  TraceId trace;
  bool operator==(const FrameHeader&) const = default;
};
inline constexpr std::size_t kFrameHeaderBytes = 40;
inline constexpr std::size_t kBlockBodyBytes = 48;
inline constexpr std::size_t kBlockFrameBytes = kFrameHeaderBytes + kBlockBodyBytes;

// Appends header and body. `payload_bytes` bytes must be sent behind them.
// REQUIRES: the vectors and strings of the message keep to base/limits.h (error texts are cut short
// to kErrorTextBytesMax here); payload_bytes <= kInlineBytesMax, and 0 except for Claim, Push
// and Located.
// `layouts`: those that the reader of this connection knows; each frame must then be sent, in this
// order.
void encode(const Message& message, std::uint64_t payload_bytes, std::vector<std::byte>& out,
            wire::Layouts* layouts = nullptr);
void encode(const LinkFrame& frame, std::vector<std::byte>& out);
// Header and body of a block; header.size_bytes payload bytes must be sent behind them. No
// allocation.
[[nodiscard]] std::array<std::byte, kBlockFrameBytes> encode(const BlockHeader& header);

// Returns the header when magic, version and type are right and both lengths are possible for the
// type: body_bytes + payload_bytes may then be allocated. Else kBadFrame or kWrongVersion: close.
// REQUIRES: bytes.size() >= kFrameHeaderBytes (what follows is not looked at).
[[nodiscard]] Result<FrameHeader> decode_header(std::span<const std::byte> bytes);

using Frame = std::variant<Message, BlockHeader, LinkFrame>;
// Returns the frame when `body` is exactly one of its type, every field in range and no byte left
// over; else kBadFrame: close.  REQUIRES: header is decode_header's; body.size() ==
// header.body_bytes. `layouts`: those that the frames before it have brought on this connection.
[[nodiscard]] Result<Frame> decode_body(const FrameHeader& header, std::span<const std::byte> body,
                                        wire::Layouts* layouts = nullptr);
// Like decode_body for kBlock alone, without the variant. Allocates nothing except an error's text.
[[nodiscard]] Result<BlockHeader> decode_block(const FrameHeader& header,
                                               std::span<const std::byte> body);

inline constexpr std::size_t kErrorTextBytesMax =
    4_KiB;  // of Lost, ReduceReport, ReduceState, Error, ReduceFailed, VersionRefused

}  // namespace hoplite
