// SPDX-License-Identifier: Apache-2.0
// The header of every frame between two members of a world: 32 bytes, then the content's dtype and
// shape, if it has them. Decoding is total on hostile input. docs/internals/wire.md, "Worlds".
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

using Rank = Id<struct RankTag, std::uint32_t>;  // number of a member in its world
using MatchKey =
    Id<struct MatchTag, std::uint64_t>;  // 0: point to point; else a collective's round

// Describes a message. `operation` is the number of the verb that the users of both ends called.
// The members must agree on it, so that a barrier is never taken for a broadcast.
struct Content {
  MatchKey key;
  std::uint8_t operation = 0;
  bool is_notice = false;  // True if it only names the place of the array; no buffer receives it
  std::uint64_t size_bytes = 0;
  std::string dtype;
  std::vector<std::uint64_t> shape;
};

// Messages of one lane follow one another. Frames of the other lane may come in between.
inline constexpr std::size_t kLanes = 2;
[[nodiscard]] constexpr std::size_t lane_of(MatchKey key) { return key.value == 0 ? 0 : 1; }

enum class Verb : std::uint8_t {
  kMessage = 1,  // a message begins: its description and its first bytes
  kData = 2,     // the next bytes of the unfinished message of the lane of `key`
  kCredit = 3,   // the receiver has taken `size_bytes` out of the lane of `key`
  kGoodbye = 4,  // the member has left; nothing follows
  kEnding = 5,   // the world has ended; nothing follows. operation: cause, key: rank, dtype: why
};

struct Envelope {
  Verb verb = Verb::kGoodbye;
  std::uint32_t payload_bytes = 0;  // after the tail
  Content content;
};

inline constexpr std::size_t kEnvelopeBytes = 32;  // before dtype and shape
inline constexpr std::size_t kDTypeBytesMax = 1024;
inline constexpr std::size_t kDimensionsMax = 64;  // numpy's limit
inline constexpr std::uint64_t kMessageBytesMax = 1024_GiB;
// The most payload of a frame. A longer message takes several, because a frame delays the other
// lane's next message. Larger frames are no faster. Design decision 22g.
inline constexpr std::uint32_t kPayloadBytesMax = 256 * 1024;

// Returns how many bytes lie between the first 32 and the payload, or an error for no envelope.
// REQUIRES: head.size() == kEnvelopeBytes.
[[nodiscard]] Result<std::size_t> tail_bytes(std::span<const std::byte> head);
// REQUIRES: `bytes` are kEnvelopeBytes and the tail that belongs to them.
[[nodiscard]] Envelope decode_envelope(std::span<const std::byte> bytes);
// Appends. REQUIRES: dtype, shape and payload are within the limits above.
void encode_envelope(const Envelope& envelope, std::vector<std::byte>& bytes);

// Returns the name for error texts: "float32[2, 3] (24 B)".
[[nodiscard]] std::string content_text(const Content& content);

}  // namespace hoplite::worlds
