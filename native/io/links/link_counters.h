// SPDX-License-Identifier: Apache-2.0
// Counters of all links of one node. Plain data.
#pragma once

#include <cstdint>

namespace hoplite {

struct LinkCounters {
  std::uint64_t bytes_sent = 0, bytes_received = 0, bytes_discarded = 0;
  std::uint64_t blocks_sent = 0, blocks_landed = 0, blocks_discarded = 0, blocks_corrupt = 0;
  std::uint64_t frames_sent = 0, frames_received = 0, frames_bad = 0;
  std::uint64_t dials = 0, handshakes = 0, handshakes_refused = 0, versions_refused = 0;
  std::uint64_t connections_refused = 0;  // connections for which there was no room
  std::uint64_t links_up = 0, links_down = 0, rails_lost = 0, peers_dead = 0;
  // The first two are parts of peers_dead. A suspected peer was silent for a while.
  std::uint64_t peers_unreachable = 0, peers_frozen = 0, peers_suspected = 0;
  // Current sizes, summed over the connections. layout_bytes: layouts that both ends remember.
  // bytes_queued: bytes that wait for the kernel, blocks of the arena included.
  std::uint64_t layout_bytes = 0, bytes_queued = 0;

  // Adds what connections of blocks count.
  void add_bulk(const LinkCounters& bulk) {
    bytes_sent += bulk.bytes_sent;
    bytes_received += bulk.bytes_received;
    bytes_discarded += bulk.bytes_discarded;
    blocks_sent += bulk.blocks_sent;
    blocks_landed += bulk.blocks_landed;
    blocks_discarded += bulk.blocks_discarded;
    blocks_corrupt += bulk.blocks_corrupt;
    frames_sent += bulk.frames_sent;
    bytes_queued += bulk.bytes_queued;
  }
};

}  // namespace hoplite
