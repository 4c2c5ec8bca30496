// SPDX-License-Identifier: Apache-2.0
// The arithmetic of an owner: each block as folds and finishes of its parts.
#include <algorithm>
#include <span>

#include "plan/engine/owners.h"
#include "plan/engine/reduces/folds.h"

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

// Folds a block from its slot into the accumulator before the credit that frees the slot goes out.
void Folds::land_in_fold(TransferId transfer, const Pull& pull, const Pull::Landed& landed) {
  Folding& folding = folds_.at(pull.fold->target);
  const LocalObject& target = engine_.objects.at(pull.fold->target);
  const BlockIndex block = stripe_block(pull.goal().stripe_count, pull.goal().stripe, landed.n);
  const std::uint64_t slot = landed.n % pull.window();
  fold_block(target, folding, pull.fold->members, block,
             pull.range.offset + slot * pull.goal().meta.block_bytes);
  dirty_folds_.insert(pull.fold->target);
  if (pull.is_done()) return engine_.transfers.end_pull(transfer, Notice::kSilent);
  folding.paces.at(pull.goal().stripe).advance(transfer, pull.ready(), landed.credits);
}

// Books the block of these members, which lies at `from`.
void Folds::fold_block(const LocalObject& target, Folding& folding,
                       std::span<const std::uint32_t> members, BlockIndex block,
                       std::uint64_t from) {
  const auto steps = folding.accumulator.take(members, block);
  if (!steps) return;
  fold_steps(target, folding, block, *steps, from);
  ++engine_.counters.blocks_folded;
  dirty_folds_.insert(folding.accumulator.own().target);
}

// Queues each step as one fold for each part that the block has bytes of. `from`: the position of
// the member's own bytes, if a step needs them.
void Folds::fold_steps(const LocalObject& target, const Folding& folding, BlockIndex block,
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
      engine_.outgoing.queue_fold(Fold{into, source, dtype, own.op, step.first});
    }
    if (step.from) engine_.outgoing.spend_fold_bytes(range.size_bytes);
  }
}

// Finishes the block from its accumulators, unless they are the result themselves.
void Folds::finish_block(const LocalObject& target, Folding& folding,
                         const Accumulator::Whole& whole) {
  const ReduceOwn& own = folding.accumulator.own();
  fold_steps(target, folding, whole.block, whole.steps, 0);
  const std::vector<Run> runs = runs_of(own.meta, block_extent(own.meta, whole.block));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    if (!needs_finish(run.dtype, own.op)) continue;
    const Extent into{target.extent->offset + run.range.offset, run.range.size_bytes};
    const Extent from = cell_run(target, folding, whole.block, 0, std::span(runs).first(i), run);
    engine_.outgoing.queue_fold(Finish{into, from, run.dtype, own.op, own.count});
    engine_.outgoing.spend_fold_bytes(from.size_bytes);
  }
}

// Combines one block of several objects into the block that is sent instead of them.
void Folds::combine(const Sender::Next& next) {
  const ObjectMeta& meta = engine_.objects.at(next.combined.front()).meta;
  for (const Run& run : runs_of(meta, next.range)) {
    const std::uint64_t at = next.block.extent.offset + run.range.offset - next.range.offset;
    for (std::size_t i = 0; i < next.combined.size(); ++i) {
      const Extent from = engine_.objects.at(next.combined[i]).in_arena(run.range);
      engine_.outgoing.queue_fold(
          Fold{{at, run.range.size_bytes}, from, run.dtype, next.op, i == 0});
    }
  }
  const std::uint64_t folded = next.combined.size() * next.range.size_bytes;
  engine_.outgoing.spend_fold_bytes(folded);
  ++engine_.counters.blocks_combined;
  for (const ObjectId& object : next.combined) engine_.objects.note_use(object);
}

}  // namespace hoplite
