// What an owner folds with: its reservations, and each block as folds and finishes of its parts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/engine_state.h"

namespace hoplite {

// Result and workspace come together or not at all, so that no two folds wait for each other's
// memory. Only stripes that move here later ask for more, and fail after the grace.
// Returns false if the arena could never hold it.
bool Engine::State::reserve_fold(Folding& folding, const LocalObject& object) {
  const ReduceOwn& own = folding.accumulator.own();
  if (!inventory_.can_hold({own.meta.size_bytes, 0}, Line::kFolds)) return false;
  const std::uint64_t slots =
      std::uint64_t{window_blocks(own.meta, config_)} * own.meta.block_bytes * kFoldPullsMax;
  const auto workspace = folding.workspace.ask(own, slots);
  if (!workspace) return true;
  const ObjectId key = object.extent ? workspace_key(own.target) : own.target;
  const Need need = object.extent ? Need{*workspace, 0} : Need{own.meta.size_bytes, *workspace};
  if (!inventory_.can_hold(need, Line::kFolds)) return false;
  if (object.extent) slot_keys_.emplace(key, own.target);
  inventory_.cancel(key, now_);  // a smaller one, or a getter's
  inventory_.request(key, need, Line::kFolds, now_);
  return true;
}

// Its fold may have ended while the range was waited for.
void Engine::State::place_workspace(const ObjectId& target, Extent range) {
  const auto fold = folds_.find(target);
  if (fold == folds_.end()) return inventory_.release(range, now_);
  fold->second.workspace.place(range);
  dirty_folds_.insert(target);
}

// Books the member's block, which lies at `from`: one fold for each part that it has bytes of.
void Engine::State::fold_block(const LocalObject& target, Folding& folding, std::uint32_t member,
                               BlockIndex block, std::uint64_t from) {
  const auto first = folding.accumulator.take(member, block);
  if (!first) return;
  const ReduceOwn& own = folding.accumulator.own();
  const Extent range = block_extent(own.meta, block);
  std::uint64_t halves = 0;  // bytes of them so far
  for (const Run& run : runs_of(own.meta, range)) {
    const Extent source{from + run.range.offset - range.offset, run.range.size_bytes};
    Extent into{target.extent->offset + run.range.offset, run.range.size_bytes};
    if (is_half(run.dtype)) {
      into = {folding.workspace.accumulators(block) + 2 * halves, 2 * run.range.size_bytes};
      halves += run.range.size_bytes;
    }
    actions_.emplace_back(Fold{into, source, run.dtype, own.op, *first});
  }
  ++stats_.blocks_folded;
  dirty_folds_.insert(own.target);
}

// From its accumulators, where those are not the result themselves.
void Engine::State::finish_block(const LocalObject& target, Folding& folding, BlockIndex block) {
  const ReduceOwn& own = folding.accumulator.own();
  const auto sources = static_cast<std::uint32_t>(folding.accumulator.members().size());
  std::uint64_t halves = 0;
  for (const Run& run : runs_of(own.meta, block_extent(own.meta, block))) {
    if (!needs_finish(run.dtype, own.op)) continue;
    const Extent into{target.extent->offset + run.range.offset, run.range.size_bytes};
    Extent from = into;
    if (is_half(run.dtype)) {
      from = {folding.workspace.accumulators(block) + 2 * halves, 2 * run.range.size_bytes};
      halves += run.range.size_bytes;
    }
    actions_.emplace_back(Finish{into, from, run.dtype, own.op, sources});
    fold_bytes_left_ -= std::min(fold_bytes_left_, from.size_bytes);
  }
}

}  // namespace hoplite
