// SPDX-License-Identifier: Apache-2.0
// One send or one receive of a world, as the rules of an edge see it, and how a world ends. Plain
// data that the world's lock guards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/ids.h"
#include "world/edges/envelope.h"

namespace hoplite::worlds {

using OperationId = Id<struct OperationTag, std::uint64_t>;  // unique in this world and process

// Why a world has ended. The numbers are part of the wire format and equal those of Python's Cause.
enum class Cause : std::uint8_t {
  kPeerDied = 1,     // a member's process has ended without leaving
  kUnreachable = 2,  // the network has cut a member off
  kFrozen = 3,       // a member's process has sent nothing for longer than the manager allows
  kPeerLeft = 4,     // a member has left while an operation needed it
  kAborted = 5,      // a member has aborted the world
  kProtocol = 6,     // a member has broken the protocol
  kLocal = 7,        // this process could not go on
};
inline constexpr int kCauseCount = 8;  // includes 0, which is no cause

struct End {
  Cause cause = Cause::kLocal;
  Rank rank;         // the member at which it began
  std::string text;  // one sentence for people
};
inline constexpr std::size_t kEndTextBytesMax = 512;

struct Outcome {
  OperationId operation;
  Content content;                    // of a receive: the message's description
  std::unique_ptr<std::byte[]> data;  // of a notice, or of a receive without a buffer
};

// The messages that a receive accepts. With a buffer it accepts a message of exactly that size and
// dtype, or a notice, which does not go into the buffer.
struct Wanted {
  MatchKey key;
  std::uint8_t operation = 0;
  std::string dtype;
  std::optional<std::span<std::byte>> into;
};

}  // namespace hoplite::worlds
