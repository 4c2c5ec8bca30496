// SPDX-License-Identifier: Apache-2.0
// Bytes <-> what a client and its own node say over their Unix socket: Attach, Attached, Command
// and Reply. Same rules as wire/frame.h: pure, total on hostile input (a client is no more trusted
// than a peer), payloads travel beside. A client's id is not on the wire: the connection is the
// client. The first frame is Attach; the answer Attached carries two descriptors as SCM_RIGHTS: the
// arena to write (pwrite) and the arena read-only (private mappings), in this order. Grammar and
// worked examples: docs/internals/wire.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/result.h"
#include "plan/messages.h"

namespace hoplite {

// The numbers are the wire's: never reuse one.
enum class LocalType : std::uint8_t {
  kAttach = 1,
  kAttached = 2,
  kPut = 16,
  kWrote = 17,
  kGet = 18,
  kRelease = 19,
  kDelete = 20,
  kReduce = 21,
  kReduceSource = 22,
  kCancel = 23,
  kOrphan = 24,
  kEcho = 25,
  kTakeTerm = 26,
  kPublish = 27,
  kWatch = 28,
  kListChannels = 29,
  kRebuild = 30,
  kRead = 31,
  kKeep = 32,
  kExcerpt = 33,
  kLastCommand = kExcerpt,  // raise it with each new command
  kReserved = 64,
  kFetched = 65,
  kReduced = 66,
  kDone = 67,
  kError = 68,
  kReduceFailed = 69,
  kTermTaken = 70,
  kVersionSeen = 71,
  kVersionRefused = 72,
  kChannelsListed = 73,
  kLastReply = kChannelsListed,  // raise it with each new reply
};

struct LocalHeader {
  LocalType type = LocalType::kDone;
  RequestId request;                // 0 for Attach and Attached
  std::uint32_t body_bytes = 0;     // follow the header
  std::uint32_t payload_bytes = 0;  // follow the body: a small object's bytes (kPut, kFetched)
  bool operator==(const LocalHeader&) const = default;
};
inline constexpr std::size_t kLocalHeaderBytes = 24;

struct Attach {
  std::uint16_t wire_version = kWireVersion;
  std::uint64_t pid = 0;  // for texts only: the kernel's own word is SO_PEERCRED
  bool operator==(const Attach&) const = default;
};
struct Attached {
  ClientId client;
  NodeId node;
  Incarnation incarnation;
  std::uint64_t arena_bytes = 0;
  bool operator==(const Attached&) const = default;
};
struct LocalReply {
  RequestId request;
  Reply reply;
};

void encode(const Attach& attach, std::vector<std::byte>& out);
void encode(const Attached& attached, std::vector<std::byte>& out);
// Appends header and body. A put's payload is not copied: command's payload.size() bytes (or, for a
// reply, `payload_bytes`) must be sent behind them.
// REQUIRES: no command that clients may not say (wire/local/local_fields.h); strings and
// vectors keep to base/limits.h; payload_bytes <= kInlineBytesMax, and 0 except for Fetched.
void encode(const Command& command, std::vector<std::byte>& out);
void encode(const LocalReply& reply, std::uint64_t payload_bytes, std::vector<std::byte>& out);

// Like decode_header in wire/frame.h. REQUIRES: bytes.size() >= kLocalHeaderBytes.
[[nodiscard]] Result<LocalHeader> decode_local_header(std::span<const std::byte> bytes);

// Command: `client` is left empty and so is a put's payload, which the caller fills in from the
// header.payload_bytes bytes that follow.
using LocalFrame = std::variant<Attach, Attached, Command, LocalReply>;
// REQUIRES: header is decode_local_header's; body.size() == header.body_bytes.
[[nodiscard]] Result<LocalFrame> decode_local_body(const LocalHeader& header,
                                                   std::span<const std::byte> body);

}  // namespace hoplite
