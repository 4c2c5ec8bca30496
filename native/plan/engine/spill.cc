// Spilling: pinned objects leave the arena for a file and come back when a client or a peer reads
// them (decision 6c). Writing makes a copy in the file. An object with such a copy may be evicted
// from the arena, like a copy of another node's object, and keeps its pin. There is no state in
// between: an object that is being written is read from the arena, and an object that is being read
// back is served as far as it has come.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "plan/engine/state.h"

namespace hoplite {
namespace {

// Rounds up to whole blocks of the file, because a file system frees only whole blocks.
std::uint64_t whole_blocks(std::uint64_t bytes) { return (bytes + 4_KiB - 1) / 4_KiB * 4_KiB; }

// The next step is short, so that reads of other objects don't wait for the whole of a large one.
SpillJob next_step(SpillId spill, const Spilling& spilling, std::uint64_t bytes_max) {
  const std::uint64_t left = spilling.file.size_bytes - spilling.done;
  const std::uint64_t bytes = std::min(left, bytes_max);
  return {spill, spilling.object, spilling.way,
          Extent{spilling.arena.offset + spilling.done, bytes},
          Extent{spilling.file.offset + spilling.done, bytes}};
}

}  // namespace

// Small objects don't spill because messages carry them whole. Branches don't because they are read
// once, and targets of folds don't because they change.
bool EngineTables::may_spill(const ObjectId& id, const LocalObject& object) const {
  return config_.when_full == WhenFull::kSpill && object.pinned && !object.spilled &&
         object.is_idle() && object.is_complete() && !object.is_branch &&
         object.meta.size_bytes > config_.inline_bytes_max && !folds_.contains(id) &&
         !sender_.serves(id);
}

std::optional<Rank> EngineTables::rank_of(const ObjectId& id, const LocalObject& object) const {
  if (is_free_to_go(id, object)) return object.orphaned ? Rank::kOrphan : Rank::kCopy;
  if (may_spill(id, object)) return Rank::kPinned;
  return std::nullopt;
}

// Drops orphans that only the file holds, then writes the object to the file.
void Engine::State::spill(const ObjectId& id) {
  for (const ObjectId& orphan : std::exchange(spills_.orphans, {})) {
    const auto it = objects_.find(orphan);
    if (it == objects_.end() || it->second.extent || !it->second.spilled) continue;
    if (!it->second.orphaned || it->second.is_wanted() || sender_.serves(orphan)) continue;
    drop_object(orphan, it->second.incarnation, false);
  }
  LocalObject& object = objects_.at(id);
  const auto at = spills_.ranges.take(whole_blocks(object.meta.size_bytes));
  HOPLITE_CHECK(at);
  begin_spill({id, object.incarnation, SpillWay::kWrite, *object.extent,
               Extent{*at, object.meta.size_bytes}, 0},
              object);
}

// A pin of this node keeps the range in the arena, even if the object is dropped meanwhile.
void Engine::State::begin_spill(const Spilling& spilling, LocalObject& object) {
  const SpillId spill{++spills_.last.value};
  object.spilling = spill;
  ++object.pins[ClientId{0}];
  inventory_.mark_needed(spilling.object);
  spills_.under_way.emplace(spill, spilling);
  actions_.emplace_back(next_step(spill, spilling, config_.spill_step_bytes));
}

// Asks for a range to read a spilled object back into, unless it has one.
void Engine::State::fetch_spilled(const ObjectId& id) {
  const auto it = objects_.find(id);
  if (it == objects_.end() || !it->second.spilled || it->second.extent) return;
  const bool could = ask_range(id, it->second.meta.size_bytes, Line::kCopies);
  HOPLITE_CHECK(could);  // it had one
}

// Gives up the folds that lack some of `source`.
void Engine::State::give_up_folds_of(const ObjectId& source, const std::string& text) {
  std::vector<ObjectId> targets;
  for (const auto& [target, folding] : folds_) {
    const Accumulator& accumulator = folding.accumulator;
    const auto& members = accumulator.members();
    const auto lacks = [&](const auto& each) {
      const auto& owned = accumulator.own().owned;
      return each.second.source.object == source &&
             std::any_of(owned.begin(), owned.end(), [&](StripeIndex stripe) {
               return accumulator.first_lacking(each.first, stripe).has_value();
             });
    };
    if (std::any_of(members.begin(), members.end(), lacks)) targets.push_back(target);
  }
  for (const ObjectId& target : targets) give_up(target, text);
}

// A failed write loses nothing: the object stays in the arena, and an object that needs its memory
// waits as without a file. A failed read loses the copy here. The receivers ask its home, as for
// any lost copy.
void Engine::State::handle_spill_done(const SpillDone& event) {
  const auto at = spills_.under_way.find(event.spill);
  if (at == spills_.under_way.end()) return;
  Spilling& spilling = at->second;
  const auto it = objects_.find(spilling.object);
  const bool is_live = it != objects_.end() && it->second.spilling == event.spill;
  if (!event.error.empty()) ++stats_.spill_errors;
  if (event.error.empty()) {
    const std::uint64_t step =
        std::min(spilling.file.size_bytes - spilling.done, config_.spill_step_bytes);
    spilling.done += step;
    const bool is_write = spilling.way == SpillWay::kWrite;
    (is_write ? stats_.spill_bytes_written : stats_.spill_bytes_read) += step;
    inventory_.note_progress(now_);
    if (is_live && !is_write) it->second.written_bytes = spilling.done;
    if (is_live && !is_write) note_here(spilling.object);
    if (is_live && spilling.done < spilling.file.size_bytes) {
      actions_.emplace_back(next_step(event.spill, spilling, config_.spill_step_bytes));
      return;
    }
  }
  const Spilling ended = spilling;
  spills_.under_way.erase(at);
  if (is_live) it->second.spilling.reset();
  if (ended.way == SpillWay::kWrite) {
    spills_.error = event.error;
    inventory_.handle_spilled(event.error.empty(), now_);
    if (is_live && event.error.empty()) {
      it->second.spilled = ended.file;
      stats_.spill_bytes += ended.file.size_bytes;
    } else {
      free_file_range(ended.object, ended.file);
    }
    return unpin(ended.object, ended.incarnation, ClientId{0}, false);
  }
  spills_.ended.push_back(ended);
  if (is_live && event.error.empty()) {
    complete(ended.object, it->second);
  } else if (is_live) {
    it->second.fault = event.error;
    drop_object(ended.object, ended.incarnation, false);
    member_lost(ended.object);
  }
}

void Engine::State::free_file_range(const ObjectId& id, Extent file) {
  const Extent whole{file.offset, whole_blocks(file.size_bytes)};
  spills_.ranges.give_back(whole.offset, whole.size_bytes);
  actions_.emplace_back(SpillJob{SpillId{}, id, SpillWay::kFree, {}, whole});
}

}  // namespace hoplite
