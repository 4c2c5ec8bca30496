// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/jobs/spills.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {
namespace {

// Rounds up to whole blocks of the file, because a file system frees only whole blocks.
std::uint64_t whole_blocks(std::uint64_t bytes) { return (bytes + 4_KiB - 1) / 4_KiB * 4_KiB; }

// The next step is short, so that reads of other objects don't wait for the whole of a large one.
SpillJob next_step(SpillId spill, const Spilling& spilling, std::uint64_t bytes_max) {
  const std::uint64_t left = spilling.file.size_bytes - spilling.done;
  const std::uint64_t bytes = std::min(left, bytes_max);
  return {spill,
          spilling.object,
          spilling.way,
          Extent{spilling.arena.offset + spilling.done, bytes},
          Extent{spilling.file.offset + spilling.done, bytes},
          spilling.file.size_bytes};
}

}  // namespace

// Small objects don't spill because messages carry them whole. Branches don't because they are read
// once, and targets of folds don't because they change.
bool Spills::may_spill(const ObjectId& id, const LocalObject& object) const {
  return engine_.config.when_full == WhenFull::kSpill && object.is_pinned() && !object.spilled &&
         object.is_idle() && object.is_complete() &&
         object.meta.size_bytes > engine_.config.inline_bytes_max &&
         !engine_.folds.is_folding(id) && !engine_.transfers.serves(id);
}

// Drops orphans that only the file holds, then writes the object to the file.
void Spills::spill(const ObjectId& id) {
  for (const ObjectId& orphan : std::exchange(orphans_, {})) {
    LocalObject* const found = engine_.objects.find(orphan);
    if (found == nullptr || found->extent || !found->spilled) continue;
    if (!found->orphaned || found->is_wanted() || engine_.transfers.serves(orphan)) continue;
    engine_.objects.drop_object(orphan, found->incarnation, Cause::kLost);
  }
  LocalObject& object = engine_.objects.at(id);
  const auto at = ranges_.take(whole_blocks(object.meta.size_bytes));
  HOPLITE_CHECK(at);
  begin_spill({id, object.incarnation, SpillWay::kWrite, *object.extent,
               Extent{*at, object.meta.size_bytes}, 0},
              object);
}

// A pin of this node keeps the range in the arena, even if the object is dropped meanwhile.
void Spills::begin_spill(const Spilling& spilling, LocalObject& object) {
  const SpillId spill{++last_.value};
  object.spilling = spill;
  ++object.pins[kThisNode];
  engine_.inventory.mark_needed(spilling.object);
  under_way_.emplace(spill, spilling);
  engine_.outgoing.act(next_step(spill, spilling, engine_.config.spill_step_bytes));
}

// Asks for a range to read a spilled object back into, unless it has one.
void Spills::fetch_spilled(const ObjectId& id) {
  LocalObject* const found = engine_.objects.find(id);
  if (found == nullptr || !found->spilled || found->extent) return;
  const bool could = engine_.objects.ask_range(id, found->meta.size_bytes, Line::kCopies);
  HOPLITE_CHECK(could);  // it had one
}

// A failed write loses nothing: the object stays in the arena, and an object that needs its memory
// waits as without a file. A failed read loses the copy here. The receivers ask its home, as for
// any lost copy.
void Spills::handle_spill_done(const SpillDone& event) {
  const auto at = under_way_.find(event.spill);
  if (at == under_way_.end()) return;
  LocalObject* live = engine_.objects.find(at->second.object);  // nullptr: dropped meanwhile
  if (live != nullptr && live->spilling != event.spill) live = nullptr;
  if (!event.error.empty()) ++engine_.counters.spill_errors;
  if (event.error.empty()) {
    note_step(at->second, live);
    if (live != nullptr && at->second.done < at->second.file.size_bytes) {
      engine_.outgoing.act(next_step(event.spill, at->second, engine_.config.spill_step_bytes));
      return;
    }
  }
  const Spilling ended = at->second;
  under_way_.erase(at);
  if (live != nullptr) live->spilling.reset();
  if (ended.way == SpillWay::kWrite) {
    end_write(ended, live, event.error);
  } else {
    end_read(ended, live, event.error);
  }
}

void Spills::note_step(Spilling& spilling, LocalObject* live) {
  const std::uint64_t step =
      std::min(spilling.file.size_bytes - spilling.done, engine_.config.spill_step_bytes);
  spilling.done += step;
  engine_.inventory.note_progress(engine_.now);
  if (spilling.way == SpillWay::kWrite) {
    engine_.counters.spill_bytes_written += step;
    return;
  }
  engine_.counters.spill_bytes_read += step;
  if (live == nullptr) return;
  live->written_bytes = spilling.done;
  engine_.objects.grow(spilling.object, *live);
  engine_.folds.note_here(spilling.object);
}

void Spills::end_write(const Spilling& ended, LocalObject* live, const std::string& error) {
  error_ = error;
  engine_.inventory.handle_spilled(error.empty(), engine_.now);
  if (live != nullptr && error.empty()) {
    live->spilled = ended.file;
    engine_.counters.spill_bytes += ended.file.size_bytes;
  } else {
    free_file_range(ended.object, ended.file);
  }
  engine_.objects.unpin(ended.object, ended.incarnation, kThisNode, Pins::kOne);
}

void Spills::end_read(const Spilling& ended, LocalObject* live, const std::string& error) {
  ended_.push_back(ended);
  if (live == nullptr) return;
  if (error.empty()) return engine_.objects.complete(ended.object, *live);
  live->fault = error;
  engine_.objects.drop_object(ended.object, ended.incarnation, Cause::kLost);
  engine_.folds.member_lost(ended.object);
}

// The object's copy in the file goes with its bytes.
void Spills::forget_file_copy(const ObjectId& id, Extent file) {
  engine_.counters.spill_bytes -= file.size_bytes;
  free_file_range(id, file);
}

void Spills::note_orphan_in_file(const ObjectId& id) { orphans_.insert(id); }

// Unpins an object that has been read back, once the folds have had their turn. Returns false if
// there is none.
bool Spills::unpin_read_back() {
  if (ended_.empty() || !engine_.folds.is_idle()) return false;
  const Spilling ended = ended_.back();
  ended_.pop_back();
  engine_.objects.unpin(ended.object, ended.incarnation, kThisNode, Pins::kOne);
  return true;
}

void Spills::free_file_range(const ObjectId& id, Extent file) {
  const Extent whole{file.offset, whole_blocks(file.size_bytes)};
  ranges_.release(whole.offset, whole.size_bytes);
  engine_.outgoing.act(SpillJob{SpillId{}, id, SpillWay::kFree, {}, whole});
}

void Spills::check_invariants() const {
  ranges_.check_invariants();
  std::uint64_t file_bytes = 0;
  for (const auto& [id, object] : engine_.objects.all()) {
    HOPLITE_CHECK(!object.spilled || (object.is_final() && !object.is_writing()));
    HOPLITE_CHECK(!object.spilling || (object.extent && under_way_.contains(*object.spilling)));
    if (object.spilled) file_bytes += object.spilled->size_bytes;
  }
  HOPLITE_CHECK(file_bytes == engine_.counters.spill_bytes);
}

}  // namespace hoplite
