// What the links of one node count. Plain data. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hoplite {

struct LinkCounters {
  std::uint64_t bytes_sent = 0, bytes_received = 0, bytes_discarded = 0;
  std::uint64_t blocks_sent = 0, blocks_landed = 0, blocks_discarded = 0, blocks_corrupt = 0;
  std::uint64_t frames_sent = 0, frames_received = 0, frames_bad = 0;
  std::uint64_t dials = 0, handshakes = 0, handshakes_refused = 0, versions_refused = 0;
  std::uint64_t connections_refused = 0;  // there was no room for them
  std::uint64_t links_up = 0, links_down = 0, rails_lost = 0, peers_dead = 0;
  // Of peers_dead; and those that were heard again.
  std::uint64_t peers_unreachable = 0, peers_frozen = 0, peers_suspected = 0;
  // Sizes of now, summed over the connections: layouts that both ends remember; what waits for the
  // kernel, blocks of the arena included.
  std::uint64_t layout_bytes = 0, bytes_queued = 0;
};

}  // namespace hoplite
