// Folds of an owner: its reservations, and each block as folds and finishes of its parts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <span>

#include "plan/engine/state.h"

namespace hoplite {
namespace {

// The accumulators of a run of the block's elements in one of its cells. `before`: the runs before
// it in the block.
Extent cell_run(const LocalObject& target, const Folding& folding, BlockIndex block,
                std::uint32_t cell, std::span<const Run> before, const Run& run) {
  const std::uint64_t wide = is_half(run.dtype) ? 2 : 1;
  if (cell == 0 && wide == 1) {
    return {target.extent->offset + run.range.offset, run.range.size_bytes};
  }
  std::uint64_t at = folding.workspace.cell(folding.accumulator.own().meta, block, cell);
  for (const Run& each : before) {
    if (is_half(each.dtype)) at += 2 * each.range.size_bytes;
    if (!is_half(each.dtype) && cell > 0) at += each.range.size_bytes;
  }
  return {at, wide * run.range.size_bytes};
}

}  // namespace

// Reserves result and workspace together or not at all, so that no two folds wait for each other's
// memory. Only stripes that move here later ask for more; their request fails after the grace.
// Returns false if the arena could never hold it.
bool Engine::State::reserve_fold(Folding& folding, const LocalObject& object) {
  const ReduceOwn& own = folding.accumulator.own();
  if (!inventory_.can_hold({own.meta.size_bytes, 0}, Line::kFolds)) return false;
  const FoldPulls pulls = fold_pulls(own, config_, std::numeric_limits<std::uint64_t>::max());
  const std::uint64_t slots = pulls.at_once * pulls.slot_bytes;
  const auto workspace = folding.workspace.ask(own, slots);
  if (!workspace) return true;
  const ObjectId key = object.extent ? workspace_key(own.target) : own.target;
  const Need need = object.extent ? Need{*workspace, 0} : Need{own.meta.size_bytes, *workspace};
  if (!inventory_.can_hold(need, Line::kFolds)) return false;
  if (object.extent) slot_keys_.emplace(key, own.target);
  inventory_.cancel(key, now_);  // a smaller request, or one of a get
  inventory_.request(key, need, Line::kFolds, now_);
  return true;
}

// Places the workspace. The fold may have ended while it waited for the range.
void Engine::State::place_workspace(const ObjectId& target, Extent range) {
  const auto fold = folds_.find(target);
  if (fold == folds_.end()) return inventory_.release(range, now_);
  fold->second.workspace.place(range);
  dirty_folds_.insert(target);
}

// Queues each step as one fold for each part that the block has bytes of. `from`: the position of
// the member's own bytes, if a step needs them.
void Engine::State::fold_steps(const LocalObject& target, const Folding& folding, BlockIndex block,
                               std::span<const FoldStep> steps, std::uint64_t from) {
  const ReduceOwn& own = folding.accumulator.own();
  const Extent range = block_extent(own.meta, block);
  const std::vector<Run> runs = runs_of(own.meta, range);
  for (const FoldStep& step : steps) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Run& run = runs[i];
      const auto before = std::span(runs).first(i);
      const Extent into = cell_run(target, folding, block, step.into, before, run);
      Extent source{from + run.range.offset - range.offset, run.range.size_bytes};
      DType dtype = run.dtype;
      if (step.from) {  // from accumulators
        source = cell_run(target, folding, block, *step.from, before, run);
        if (is_half(dtype)) dtype = DType::kFloat32;
      }
      queue(Fold{into, source, dtype, own.op, step.first});
    }
    if (step.from) fold_bytes_left_ -= std::min(fold_bytes_left_, range.size_bytes);
  }
}

// Queues a fold. Replies and grants wait behind it, so only the folds of a turn or two are queued.
template <typename T>
void EngineTables::queue(const T& fold) {
  fold_bytes_queued_ += fold.from.size_bytes;
  actions_.emplace_back(fold);
}

// Books the block of these members, which lies at `from`.
void Engine::State::fold_block(const LocalObject& target, Folding& folding,
                               std::span<const std::uint32_t> members, BlockIndex block,
                               std::uint64_t from) {
  const auto steps = folding.accumulator.take(members, block);
  if (!steps) return;
  fold_steps(target, folding, block, *steps, from);
  ++stats_.blocks_folded;
  dirty_folds_.insert(folding.accumulator.own().target);
}

// Combines one block of several objects into the block that is sent instead of them.
void Engine::State::combine(const Sender::Next& next) {
  const ObjectMeta& meta = objects_.at(next.combined.front()).meta;
  for (const Run& run : runs_of(meta, next.range)) {
    const std::uint64_t at = next.block.extent.offset + run.range.offset - next.range.offset;
    for (std::size_t i = 0; i < next.combined.size(); ++i) {
      const Extent from = objects_.at(next.combined[i]).in_arena(run.range);
      queue(Fold{{at, run.range.size_bytes}, from, run.dtype, next.op, i == 0});
    }
  }
  const std::uint64_t folded = next.combined.size() * next.range.size_bytes;
  fold_bytes_left_ -= std::min(fold_bytes_left_, folded);
  ++stats_.blocks_combined;
  for (const ObjectId& object : next.combined) note_use(object);
}

// Finishes the block from its accumulators, unless they are the result themselves.
void Engine::State::finish_block(const LocalObject& target, Folding& folding,
                                 const Accumulator::Whole& whole) {
  const ReduceOwn& own = folding.accumulator.own();
  fold_steps(target, folding, whole.block, whole.steps, 0);
  const std::vector<Run> runs = runs_of(own.meta, block_extent(own.meta, whole.block));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    if (!needs_finish(run.dtype, own.op)) continue;
    const Extent into{target.extent->offset + run.range.offset, run.range.size_bytes};
    const Extent from = cell_run(target, folding, whole.block, 0, std::span(runs).first(i), run);
    queue(Finish{into, from, run.dtype, own.op, own.count});
    fold_bytes_left_ -= std::min(fold_bytes_left_, from.size_bytes);
  }
}

}  // namespace hoplite
