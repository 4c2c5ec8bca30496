// SPDX-License-Identifier: Apache-2.0
// Jobs that move bytes between the arena and the file of spilled objects, and their results. One
// thread does the jobs in order, so a range may be given back, and taken anew, while older jobs
// name it. Plain data; reached through messages.h.
#pragma once

#include <string>

#include "plan/messages/types.h"

namespace hoplite {

using SpillId = Id<struct SpillTag, std::uint64_t>;  // one object's way into the file or back

enum class SpillWay : std::uint8_t { kWrite, kRead, kFree };
struct SpillJob {  // an Action; kFree has no answer
  SpillId spill;
  ObjectId object;
  SpillWay way = SpillWay::kWrite;
  Extent arena;  // as long as `file`; kFree: none
  Extent file;
  std::uint64_t whole_bytes = 0;  // of all the spill's steps together; kFree: 0
};
struct SpillDone {  // an IoEvent
  SpillId spill;
  std::string error;  // names the file system and errno; empty: it's done
};

}  // namespace hoplite
