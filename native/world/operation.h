// One send or one receive of a world, as the rules of an edge see it; and how a world ends. Plain
// data: the world's lock guards it. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/ids.h"
#include "world/envelope.h"

namespace hoplite::worlds {

using OperationId = Id<struct OperationTag, std::uint64_t>;  // in this world and process

// Why a world has ended. The numbers are of the wire; Python's Cause has the same.
enum class Cause : std::uint8_t {
  kPeerDied = 1,     // its process has ended without a word
  kUnreachable = 2,  // the network has cut it off
  kFrozen = 3,       // its process says nothing, for longer than the manager allows
  kPeerLeft = 4,     // it has left, and somebody needed it
  kAborted = 5,      // a member has given the world up
  kProtocol = 6,     // a member sent what fits nothing
  kLocal = 7,        // this process could not go on
};
inline constexpr int kCauseCount = 8;  // with 0, which is none

struct End {
  Cause cause = Cause::kLocal;
  Rank rank;         // the member at which it began
  std::string text;  // one sentence for people
};
inline constexpr std::size_t kEndTextBytesMax = 512;

struct Outcome {
  OperationId operation;
  Content content;                    // of a receive: what came
  std::unique_ptr<std::byte[]> data;  // of a notice, and of a receive that brought no buffer
};

// What a receive takes: with a buffer, messages of just its size and dtype; and notices, which
// don't go into it.
struct Wanted {
  MatchKey key;
  std::uint8_t operation = 0;
  std::string dtype;
  std::optional<std::span<std::byte>> into;
};

}  // namespace hoplite::worlds
