// SPDX-License-Identifier: Apache-2.0
// Limits on what an edge keeps and sends. Both ends use the same values. Plain data.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "world/edges/envelope.h"

namespace hoplite::worlds {

struct EdgeLimits {
  // Bytes of messages without a receive that a lane keeps at the receiver. Beyond it a message
  // waits at its sender. It is also the memory that a peer can cost in each lane. Ten messages of
  // 400 KB fit. Design decision 22a.
  std::uint64_t window_bytes = 4_MiB;
  // The least payload of a frame that does not end its message. A sender with less credit waits.
  std::uint64_t payload_bytes_min = 64_KiB;
  std::uint64_t payload_bytes_max = kPayloadBytesMax;
  std::uint64_t message_bytes_max = kMessageBytesMax;
};
// Returns the credit that a message takes besides its bytes. An empty message takes it as well,
// so that a peer cannot fill the receiver's memory with empty messages.
[[nodiscard]] inline std::uint64_t overhead_bytes(const Content& content) {
  return 512 + content.dtype.size() + content.shape.size() * sizeof(std::uint64_t);
}
inline constexpr std::uint64_t kOverheadBytesMax =
    512 + kDTypeBytesMax + kDimensionsMax * sizeof(std::uint64_t);
static_assert(EdgeLimits{}.payload_bytes_min + kOverheadBytesMax <= EdgeLimits{}.window_bytes / 4,
              "the credit that comes back at once is enough for a frame");

}  // namespace hoplite::worlds
