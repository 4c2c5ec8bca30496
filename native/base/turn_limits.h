// SPDX-License-Identifier: Apache-2.0
// Limits on one turn of the reactor, until it looks at the sockets again. Plain data; node/ keeps
// to them, and the simulator draws them small.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/limits.h"

namespace hoplite {

struct TurnLimits {
  std::size_t commands_max = kCommandsPerTurnMax;  // of each source of commands
  std::size_t actions_max = kActionsPerTurnMax;
  std::uint64_t bytes_max = kBytesPerTurnMax;  // half comes in, is folded, goes out
};

}  // namespace hoplite
