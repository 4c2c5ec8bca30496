// Bounds of links that tests and operators may set. Plain data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace hoplite {

struct LivenessLimits {
  // Of the kernel, on connections of liveness alone: on others it would end a live peer that only
  // reads nothing. Its timer is that of retransmission, so less than 250 ms changes little.
  Duration cut = 500_ms;      // bytes unacknowledged for so long: the network has ended the rail
  Duration suspect = 500_ms;  // without a Pulse
  Duration dead = 3_s;        // without a Pulse: frozen, and as good as dead
};

struct LinkLimits {
  LivenessLimits liveness;
  Duration link_down_max = 3_s;  // a link that stays down longer is a death
  Duration handshake_max = 2_s;  // of one connection, from accept or dial to its last proof
  Duration redial_first = 5_ms;  // a killed process refuses after some milliseconds
  Duration redial_max = 250_ms;
  std::size_t meeting_max = 256;  // accepted, of peers who have not proven themselves
  // A longer queue of which the kernel takes nothing for so long ends the link. While it takes
  // some, the queue is bounded by what there is to say: beyond payload_queue_bytes that is a
  // hundred bytes or so of each object.
  std::uint64_t queued_bytes_max = 64_MiB;
  Duration queue_stalled_max = 5_s;
  // A longer queue of messages is given no payload. 10 Gbit/s carry so much in 13 ms, and a push
  // that finds no room is repeated after 20.
  std::uint64_t payload_queue_bytes = 16_MiB;
  // What several senders of blocks together may have on the wire of one of our rails: a switch's
  // port queues about a MiB, and at 10 Gbit/s this covers round trips of 0.6 ms (design decision
  // 19).
  std::uint64_t arriving_bytes_max = 768_KiB;
};

}  // namespace hoplite
