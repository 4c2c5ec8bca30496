// SPDX-License-Identifier: Apache-2.0
// Bounds of links that tests and operators may set. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace hoplite {

struct LivenessLimits {
  // The kernel's limit on unacknowledged bytes; beyond it the network has ended the rail. It is set
  // on liveness connections only, because on others it would end a live peer that reads nothing. It
  // uses the timer of retransmissions, so a value below 250 ms changes little.
  Duration cut = 500_ms;
  Duration suspect = 500_ms;  // without a Pulse
  // Without a Pulse; beyond it the peer is frozen, and this node treats it as dead.
  Duration dead = 3_s;
};

struct LinkLimits {
  LivenessLimits liveness;
  Duration link_down_max = 3_s;  // a link that stays down for longer counts as a death of the peer
  Duration handshake_max = 2_s;  // for one connection, from accept or dial to its last proof
  Duration redial_first = 5_ms;  // a killed process refuses after some milliseconds
  Duration redial_max = 250_ms;
  std::size_t meeting_max = 256;  // accepted connections of peers that have not proven themselves
  // The link ends when its queue is longer and the kernel takes none of it for queue_stalled_max.
  // While the kernel takes some, the number of objects bounds the queue. Beyond payload_queue_bytes
  // the queue grows by about a hundred bytes for each object.
  std::uint64_t queued_bytes_max = 64_MiB;
  Duration queue_stalled_max = 5_s;
  // A longer queue of messages gets no payload. 10 Gbit/s carry this much in 13 ms, and the home
  // repeats a push that finds no room after 20 ms.
  std::uint64_t payload_queue_bytes = 16_MiB;
  // The limit on bytes in flight from several senders of blocks together, towards one rail of this
  // node. A switch's port queues about a MiB, and at 10 Gbit/s this covers round trips of 0.6 ms
  // (design decision 19).
  std::uint64_t arriving_bytes_max = 768_KiB;
  // Threads that move blocks, each for a part of the connections; 0: the reactor moves them
  // (design decision 19e).
  std::size_t io_threads = 0;
};

}  // namespace hoplite
