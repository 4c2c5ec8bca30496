// The ranges that a fold has beside its result: slots, where remote blocks land, and an accumulator
// of float32 for every 16-bit element of the stripes that this node owns. Numbers only; the engine
// reserves and releases. Invariant: accumulators never overlap each other or the slots.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

class Workspace {
 public:
  // How many bytes to reserve for all that `own` needs and isn't here; nothing when all of it is,
  // or was asked for and comes. A new answer replaces the one that was not placed yet.
  // Cost: O(blocks of the stripes), where there are 16-bit parts.
  std::optional<std::uint64_t> ask(const ReduceOwn& own, std::uint64_t slots_bytes);
  // REQUIRES: `range` is what the last answer of ask() was for.
  void place(Extent range);

  [[nodiscard]] bool is_complete() const { return slots_ && !is_asking_; }
  [[nodiscard]] bool is_asking() const { return is_asking_; }
  // REQUIRES: is_complete().
  [[nodiscard]] Extent slots() const { return *slots_; }
  // Where those of the block's 16-bit elements lie, in their order. REQUIRES: it has some, and they
  // were asked for and placed.
  [[nodiscard]] std::uint64_t accumulators(BlockIndex block) const {
    return accumulators_.at(block);
  }
  [[nodiscard]] const std::vector<Extent>& ranges() const { return ranges_; }  // to be released

 private:
  std::optional<Extent> slots_;
  std::map<BlockIndex, std::uint64_t> accumulators_;
  bool is_asking_ = false;
  std::uint64_t slots_asked_bytes_ = 0;
  std::map<BlockIndex, std::uint64_t> asked_;  // -> bytes
  std::vector<Extent> ranges_;
};

// A workspace that comes after its result waits in the inventory under a name of its own.
ObjectId workspace_key(const ObjectId& target);

}  // namespace hoplite
