// Bounds of links that tests and operators may set. Plain data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace hoplite {

struct LinkLimits {
  Duration link_down_max = 3_s;  // a link that stays down longer is a death
  Duration handshake_max = 2_s;  // of one connection, from accept or dial to its last proof
  Duration redial_first = 5_ms;  // a killed process refuses after some milliseconds
  Duration redial_max = 250_ms;
  std::size_t meeting_max = 256;            // connections whose peer has not proven itself yet
  std::uint64_t queued_bytes_max = 64_MiB;  // a peer that reads nothing loses its link
};

}  // namespace hoplite
