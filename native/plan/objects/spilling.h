// SPDX-License-Identifier: Apache-2.0
// An object on its way between the arena and the file of spilled objects. Plain data; the engine's
// Spills changes it.
#pragma once

#include "plan/messages.h"

namespace hoplite {

struct Spilling {  // into the file, or back
  ObjectId object;
  Incarnation incarnation;
  SpillWay way = SpillWay::kWrite;
  Extent arena;
  Extent file;
  std::uint64_t done = 0;
};

}  // namespace hoplite
