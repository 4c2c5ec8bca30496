// Bounds of what an edge keeps and puts on its way. Both ends have the same. Plain data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/units.h"
#include "world/envelope.h"

namespace hoplite::worlds {

struct EdgeLimits {
  // Of each lane: what may come that nobody has asked for. So a sender of ten messages of 400 KB
  // does not wait for a receiver that comes late; it is also the memory that a peer may cost.
  std::uint64_t window_bytes = 4_MiB;
  // Of a frame, while more of its message is to come.
  std::uint64_t payload_bytes_min = 64_KiB;
  std::uint64_t payload_bytes_max = kPayloadBytesMax;
  std::uint64_t message_bytes_max = kMessageBytesMax;
};
// What a message costs its receiver besides its bytes: empty ones count, too.
[[nodiscard]] inline std::uint64_t overhead_bytes(const Content& content) {
  return 512 + content.dtype.size() + content.shape.size() * sizeof(std::uint64_t);
}
inline constexpr std::uint64_t kOverheadBytesMax =
    512 + kDTypeBytesMax + kDimensionsMax * sizeof(std::uint64_t);
static_assert(EdgeLimits{}.payload_bytes_min + kOverheadBytesMax <= EdgeLimits{}.window_bytes / 4,
              "the credit that comes back at once is enough for a frame");

}  // namespace hoplite::worlds
