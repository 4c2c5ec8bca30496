// SPDX-License-Identifier: Apache-2.0
// The ranges that a fold has beside its result: slots, where remote blocks land, and for each block
// of the stripes that this node owns its cells. Cell 0 is an accumulator of float32 for each 16-bit
// element (all other elements are accumulated in the result itself); a deterministic fold has
// more, of accumulators for all elements. Numbers only; the engine reserves and releases.
// Invariant: cells never overlap each other or the slots.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

class Workspace {
 public:
  // Returns how many bytes to reserve for what `own` needs and lacks; nothing if it lacks nothing,
  // or has asked for the same. A new answer replaces one that is not placed yet.
  // REQUIRES: the same op, meta, deterministic and counts each time. Cost: O(blocks of the
  // stripes), where they have cells.
  std::optional<std::uint64_t> ask(const ReduceOwn& own, std::uint64_t slots_bytes);
  // REQUIRES: `range` is what the last answer of ask() was for.
  void place(Extent range);

  [[nodiscard]] bool is_complete() const { return slots_ && !is_asking_; }
  // REQUIRES: is_complete().
  [[nodiscard]] Extent slots() const { return *slots_; }
  // Where the accumulators of the block's 16-bit elements (cell 0), or of all of its elements, lie,
  // in their order. REQUIRES: it has some, and they were asked for and placed.
  [[nodiscard]] std::uint64_t cell(const ObjectMeta& meta, BlockIndex block,
                                   std::uint32_t cell) const;
  [[nodiscard]] const std::vector<Extent>& ranges() const { return ranges_; }  // to be released

 private:
  std::optional<Extent> slots_;
  std::map<BlockIndex, std::uint64_t> cells_;  // -> where the first one begins
  bool is_asking_ = false;
  std::uint64_t slots_asked_bytes_ = 0;
  std::map<BlockIndex, std::uint64_t> asked_;  // -> bytes
  std::vector<Extent> ranges_;
};

// How an owner fetches its members' blocks.
struct FoldPulls {
  std::size_t at_once = 1;
  std::uint32_t window = 1;  // blocks each may have in flight
  std::uint32_t lead = 1;    // blocks that a pull may be ahead of the others
  std::uint64_t slot_bytes = 0;
};
// `bytes_max`: the bytes reserved for slots, perhaps for the shorter stripes of an earlier home.
// REQUIRES: room for a block.
FoldPulls fold_pulls(const ReduceOwn& own, const EngineConfig& config, std::uint64_t bytes_max);

// Name under which a workspace that is asked for after its result waits in the inventory.
ObjectId workspace_key(const ObjectId& target);

}  // namespace hoplite
