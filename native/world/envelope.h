// What goes ahead of every frame between two members of a world: 32 bytes, then the content's dtype
// and shape, if it has one. Total on hostile input. docs/internals/wire.md, "Worlds".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"

namespace hoplite::worlds {

using Rank = Id<struct RankTag, std::uint32_t>;  // of a member, in its world
using MatchKey =
    Id<struct MatchTag, std::uint64_t>;  // 0: point to point; else a collective's round

// What a message is. `operation` numbers what the users of both ends called; a world's members must
// agree on it, so that a barrier is never taken for a broadcast.
struct Content {
  MatchKey key;
  std::uint8_t operation = 0;
  bool is_notice = false;  // it says where what is sent lies, and lands in nobody's buffer
  std::uint64_t size_bytes = 0;
  std::string dtype;
  std::vector<std::uint64_t> shape;
};

// Messages of a lane follow one another; those of the other lane may come in between.
inline constexpr std::size_t kLanes = 2;
[[nodiscard]] constexpr std::size_t lane_of(MatchKey key) { return key.value == 0 ? 0 : 1; }

enum class Verb : std::uint8_t {
  kMessage = 1,  // a message begins: what it is, and its first bytes
  kData = 2,     // the next bytes of the message that the lane of `key` is at
  kCredit = 3,   // `size_bytes` of the lane of `key` were taken out
  kGoodbye = 4,  // the member has left; nothing follows
  kEnding = 5,   // the world has ended; nothing follows. operation: cause, key: rank, dtype: why
};

struct Envelope {
  Verb verb = Verb::kGoodbye;
  std::uint32_t payload_bytes = 0;  // that follow
  Content content;
};

inline constexpr std::size_t kEnvelopeBytes = 32;  // before dtype and shape
inline constexpr std::size_t kDTypeBytesMax = 1024;
inline constexpr std::size_t kDimensionsMax = 64;  // numpy's limit
inline constexpr std::uint64_t kMessageBytesMax = 1024_GiB;
// What a frame may put between two messages: larger ones were no faster (research: 256 to 512 KiB).
inline constexpr std::uint32_t kPayloadBytesMax = 256 * 1024;

// How many bytes follow the first 32 before the payload; an error for what is no envelope.
// REQUIRES: head.size() == kEnvelopeBytes.
[[nodiscard]] Result<std::size_t> tail_bytes(std::span<const std::byte> head);
// REQUIRES: `bytes` are kEnvelopeBytes and the tail that belongs to them.
[[nodiscard]] Envelope decode_envelope(std::span<const std::byte> bytes);
// Appends. REQUIRES: dtype, shape and payload are within the limits above.
void encode_envelope(const Envelope& envelope, std::vector<std::byte>& bytes);

// As error texts name it: "float32[2, 3] (24 B)".
[[nodiscard]] std::string content_text(const Content& content);

}  // namespace hoplite::worlds
