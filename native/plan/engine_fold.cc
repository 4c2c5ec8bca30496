// What an owner folds with: its reservations, and each block as folds and finishes of its parts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "plan/engine_state.h"

namespace hoplite {
namespace {

// Members' blocks under way to an owner, in windows of one transfer. One, so that all members get
// along evenly and the first blocks go to a waiting reader soon. When all nodes will read, so many
// that no uplink runs dry while its blocks queue at others: with one, an allreduce of 32 MiB over
// 16 nodes takes 2.11 x size / rate in the simulator, with four 1.96, and 1.88 is the bound.
constexpr std::uint64_t kFoldWindowsEverywhere = 4;

}  // namespace

// From how many members at once: all of them, so that a block has them all, and can be passed on,
// while the next ones are on their way; fewer where even two blocks of each would be too much.
FoldPulls Engine::State::fold_pulls(const ReduceOwn& own) const {
  const std::uint64_t block_bytes = own.meta.block_bytes;
  const auto affordable = kFoldSlotsBytesMax / (config_.credit_blocks_min * block_bytes);
  FoldPulls pulls;
  pulls.at_once = std::min<std::size_t>(own.count, std::max<std::uint64_t>(affordable, 2));
  const std::uint64_t windows = own.everywhere ? kFoldWindowsEverywhere : 1;
  const auto share =
      static_cast<std::uint32_t>(windows * config_.credit_bytes / (pulls.at_once * block_bytes));
  pulls.window = std::clamp(share, config_.credit_blocks_min, kFoldWindowMax);
  pulls.window = std::min(pulls.window, std::max(own.meta.block_count(), 1U));
  pulls.slot_bytes = pulls.window * block_bytes;
  return pulls;
}

// Result and workspace come together or not at all, so that no two folds wait for each other's
// memory. Only stripes that move here later ask for more, and fail after the grace.
// Returns false if the arena could never hold it.
bool Engine::State::reserve_fold(Folding& folding, const LocalObject& object) {
  const ReduceOwn& own = folding.accumulator.own();
  if (!inventory_.can_hold({own.meta.size_bytes, 0}, Line::kFolds)) return false;
  const FoldPulls pulls = fold_pulls(own);
  const std::uint64_t slots = pulls.at_once * pulls.slot_bytes;
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

// The accumulators of a run of the block's elements in one of its cells. `before`: the runs before
// it in the block.
Extent Engine::State::cell_run(const LocalObject& target, const Folding& folding, BlockIndex block,
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

// Each step as one fold for each part that the block has bytes of; `from`: where the member's own
// bytes are, if a step needs them.
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
      actions_.emplace_back(Fold{into, source, dtype, own.op, step.first});
    }
    if (step.from) fold_bytes_left_ -= std::min(fold_bytes_left_, range.size_bytes);
  }
}

// Books the member's block, which lies at `from`.
void Engine::State::fold_block(const LocalObject& target, Folding& folding, std::uint32_t member,
                               BlockIndex block, std::uint64_t from) {
  const auto steps = folding.accumulator.take(member, block);
  if (!steps) return;
  fold_steps(target, folding, block, *steps, from);
  ++stats_.blocks_folded;
  dirty_folds_.insert(folding.accumulator.own().target);
}

// From its accumulators, where those are not the result themselves.
void Engine::State::finish_block(const LocalObject& target, Folding& folding,
                                 const Accumulator::Whole& whole) {
  const ReduceOwn& own = folding.accumulator.own();
  fold_steps(target, folding, whole.block, whole.steps, 0);
  const auto sources = static_cast<std::uint32_t>(folding.accumulator.members().size());
  const std::vector<Run> runs = runs_of(own.meta, block_extent(own.meta, whole.block));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    if (!needs_finish(run.dtype, own.op)) continue;
    const Extent into{target.extent->offset + run.range.offset, run.range.size_bytes};
    const Extent from = cell_run(target, folding, whole.block, 0, std::span(runs).first(i), run);
    actions_.emplace_back(Finish{into, from, run.dtype, own.op, sources});
    fold_bytes_left_ -= std::min(fold_bytes_left_, from.size_bytes);
  }
}

}  // namespace hoplite
