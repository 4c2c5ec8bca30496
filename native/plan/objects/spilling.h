// An engine's state of its file of spilled objects. Plain data; spill.cc changes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "plan/messages.h"
#include "plan/objects/free_ranges.h"

namespace hoplite {

struct Spilling {  // an object on its way into the file, or back
  ObjectId object;
  Incarnation incarnation;
  SpillWay way = SpillWay::kWrite;
  Extent arena;
  Extent file;
  std::uint64_t done = 0;
};
struct Spills {
  FreeRanges ranges{0, kSpillFileBytesMax};
  std::map<SpillId, Spilling> under_way;
  // Read back and still pinned, so that folds have their turn before the range is given away.
  std::vector<Spilling> ended;
  std::set<ObjectId> orphans;  // orphaned while only the file had them
  std::string error;           // of the last write; empty: it went well
  SpillId last;
};

}  // namespace hoplite
