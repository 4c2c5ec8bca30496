// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/objects.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {

// Accepted from the home of an object or of a failed reduce, and from the sender of a pull with
// kStoreFull only: that sender can't read the object back from its file. Ignored from a sender that
// this node no longer pulls from.
void Objects::handle_lost(NodeId from, const Lost& lost) {
  if (engine_.excerpts.handle_lost(from, lost)) return;
  const bool is_pulled = engine_.transfers.pulls_from(from, lost.object);
  const bool is_homes = from == engine_.peers.home_of(lost.object);
  const bool is_senders = is_pulled && lost.code == Code::kStoreFull;
  if (!is_homes && !is_senders) return;
  if (is_senders) {
    engine_.folds.fail_folds_of(lost.object, lost.text);
  } else {
    engine_.excerpts.handle_source_lost(lost.object, lost.text);
    engine_.calls.note_arrival(lost.object, nullptr);
  }
  LocalObject* const found = find(lost.object);
  if (found == nullptr) return;
  LocalObject& object = *found;
  if (lost.code == Code::kDuplicateObject) {
    fail_waiters(lost.object, object, lost.code, lost.text);
    return drop_object(lost.object, object.incarnation, Cause::kLost);
  }
  if (object.is_late_copy()) return;  // a claim that wants it would get the same answer
  if (object.is_whole() || object.put_request || object.inbound ||
      engine_.rebuilds.makes(lost.object)) {
    return claim(lost.object);
  }
  const std::string why = object.fault.empty() ? "" : "; it was here, but: " + object.fault;
  object.end_wishes();
  fail_waiters(lost.object, object, lost.code, lost.text + why);
  object.exists = false;
  if (!object.is_pinned() && !engine_.folds.is_folding(lost.object))
    void_bytes(lost.object, object);
  forget_if_empty(lost.object);
}

LocalObject* Objects::find(const ObjectId& id) {
  const auto it = objects_.find(id);
  return it == objects_.end() ? nullptr : &it->second;
}

// Tells the object's home all that this node has and wants of it.
void Objects::claim(const ObjectId& id) {
  engine_.keeping.note_sole(id);
  const NodeId home = engine_.peers.home_of(id);
  LocalObject* const found = find(id);
  if (found != nullptr && eviction_rank(id, *found) != engine_.inventory.rank(id)) note_use(id);
  Claim said;
  said.object = id;
  std::optional<Extent> payload;
  const bool has_result = found != nullptr && found->is_whole() && !engine_.folds.is_folding(id);
  if (found != nullptr && engine_.calls.is_planned_here(id) && !has_result) {
    // No node has a result yet while it is folded, and a put waits for nothing.
    const bool is_put = found->is_whole() || found->put_request || found->inbound;
    said.wants = found->is_wanted() && !is_put;
    said.exists = found->exists;
  } else if (found != nullptr) {
    const LocalObject& object = *found;
    const bool waits = engine_.inventory.is_waiting(id) || engine_.rebuilds.makes(id);
    said = make_claim(id, object, waits);
    said.awaits_copies = engine_.keeping.awaits_copies(id);
    const bool is_small = object.meta.size_bytes <= engine_.config.inline_bytes_max;
    // Only its parent reads a branch of a reduce, and the parent knows the holder.
    const bool is_whole = object.is_pinned() && object.is_complete() && object.is_final();
    if (is_small && is_whole) {
      payload = object.extent;
    }
  }
  const bool says_nothing = said.stripes.empty() && !said.wants;
  engine_.outgoing.send(home, std::move(said), {}, payload);
  // A claim of nothing also takes back this node's question, so ask it again.
  const Locate* question = engine_.calls.find_question(id);
  if (says_nothing && question != nullptr) engine_.outgoing.send(home, *question);
}

void Objects::repeat_claims(std::optional<NodeId> only_to) {
  for (const auto& [id, object] : objects_) {
    if (engine_.peers.is_for(id, only_to)) claim(id);
  }
}

// Decides the block size that all nodes use for an object.
ObjectMeta Objects::cut(ObjectMeta meta) const {
  const bool is_small = meta.size_bytes <= engine_.config.inline_bytes_max;
  meta.block_bytes = is_small
                         ? static_cast<std::uint32_t>(std::max<std::uint64_t>(meta.size_bytes, 1))
                         : choose_block_bytes(meta.size_bytes, engine_.config);
  return meta;
}

// Returns false if the arena could never hold the range.
bool Objects::ask_range(const ObjectId& id, std::uint64_t size_bytes, Line line) {
  if (!engine_.inventory.can_hold({size_bytes, 0}, line)) return false;
  if (!engine_.inventory.is_waiting(id))
    engine_.inventory.request(id, {size_bytes, 0}, line, engine_.now);
  return true;
}

// Returns true if the range is here at once. On false, no request is left waiting.
bool Objects::reserve_at_once(const ObjectId& id, std::uint64_t size_bytes) {
  if (!ask_range(id, size_bytes, Line::kCopies)) return false;
  admit_for(id);
  LocalObject* const found = find(id);
  if (found != nullptr && found->extent) return true;
  engine_.inventory.cancel(id, engine_.now);
  return false;
}

// Admits requests range by range, in the order of asking.
void Objects::admit() {
  while (const auto next = engine_.inventory.poll_admission(engine_.now)) {
    if (const auto* admitted = std::get_if<Admitted>(&*next)) {
      take_range(*admitted);
    } else if (const auto* refused = std::get_if<Refused>(&*next)) {
      refuse_range(refused->object, refused->size_bytes);
    } else if (const auto* spilled = std::get_if<Spill>(&*next)) {
      engine_.spills.spill(spilled->object);
    } else {
      evict(std::get<Evict>(*next).object);
    }
  }
}

void Objects::evict(const ObjectId& id) {
  ++engine_.counters.evictions;
  LocalObject& object = at(id);
  if (object.is_pinned()) {  // the file has it
    object.sums.clear();
    release_range(*object.extent);
    object.extent.reset();
    return;
  }
  void_bytes(id, object);
  objects_.erase(id);
  engine_.folds.forget_outcome(id);
  claim(id);
}

// Admits what waits, for a grant or an adoption of `id`, whose claim its caller says.
void Objects::admit_for(const ObjectId& id) {
  granting_ = id;
  admit();
  granting_.reset();
}

void Objects::take_range(const Admitted& admitted) {
  const ObjectId& id = admitted.object;
  const Extent extent = admitted.extent;
  if (const auto target = engine_.folds.take_slot_key(id))
    return engine_.folds.place_workspace(*target, extent);
  if (admitted.workspace) engine_.folds.place_workspace(id, *admitted.workspace);
  LocalObject* const found = find(id);
  if (found == nullptr) return engine_.inventory.release(extent, engine_.now);
  LocalObject& object = *found;
  object.extent = extent;
  if (object.spilled) {
    engine_.counters.arena_bytes_orphaned += object.orphaned_bytes();
    object.written_bytes = 0;
    object.sums.clear();  // of what was written to the file, and not of what it returns
    engine_.spills.begin_spill(
        {id, object.incarnation, SpillWay::kRead, extent, *object.spilled, 0}, object);
  } else if (object.inbound) {
    Bytes payload = std::move(*object.inbound);
    object.inbound.reset();
    if (!payload.empty()) engine_.outgoing.act(WriteInline{extent, std::move(payload)});
    LocalStripe whole;
    whole.state = StripeState::kComplete;
    object.stripes.assign(1, whole);
    if (object.put_request) engine_.outgoing.reply(*object.put_request, Done{});
    object.put_request.reset();
    claim(id);
    complete(id, object);
  } else if (object.is_writing()) {
    LocalStripe root;
    root.state = StripeState::kRoot;
    object.stripes.assign(1, root);
    engine_.outgoing.reply(*object.put_request, Reserved{extent, object.meta.block_bytes});
    claim(id);
  } else if (engine_.folds.is_folding(id)) {
    engine_.folds.mark_dirty(id);
    claim(id);
  } else if (engine_.rebuilds.makes(id)) {
    engine_.rebuilds.begin_steps(id);
  } else if (granting_ != id) {
    claim(id);  // the range has come: the home may grant the object
  }
}

void Objects::refuse_range(const ObjectId& id, std::uint64_t size_bytes) {
  const ObjectId name = engine_.folds.take_slot_key(id).value_or(id);
  if (engine_.rebuilds.makes(name)) {
    return engine_.rebuilds.fall_back(name, Code::kStoreFull,
                                      engine_.overview.full_text(name, size_bytes));
  }
  fail_without_room(name, engine_.overview.full_text(name, size_bytes));
}

void Objects::release_range(Extent range) {
  if (!engine_.loans.keep(range)) engine_.inventory.release(range, engine_.now);
}

// Gives up an object or a fold that gets no room, here or at its sender.
void Objects::fail_without_room(const ObjectId& name, const std::string& text) {
  engine_.folds.fail_fold(name, text);
  LocalObject* const found = find(name);
  if (found == nullptr) return;
  LocalObject& object = *found;
  if (object.spilled) {  // it can't be read back: fail all waiters, here and elsewhere
    object.wanted_by_fold = object.wanted_by_all = false;
    fail_waiters(name, object, Code::kStoreFull, text);
    engine_.transfers.fail_readers(name, text);
    return engine_.folds.fail_folds_of(name, text);
  }
  if (object.put_request)
    engine_.outgoing.reply(*object.put_request, Error{Code::kStoreFull, text});
  object.put_request.reset();
  object.inbound.reset();
  object.end_wishes();
  fail_waiters(name, object, Code::kStoreFull, text);
  engine_.folds.member_lost(name);
  void_bytes(name, object);
  forget_if_empty(name);
}

// A writer whose source changes under the copy makes wrong checksums, and each of them ends a link.
// So the blocks that come again get new ones, and its next ones do not count.
void Objects::forget_sums() {
  for (auto& [id, object] : objects_) {
    object.sums.clear();
    object.takes_sums = false;
  }
}

// Stores a small object's bytes that came by put or by push. They get a range of their own.
void Objects::store_small(const ObjectId& id, LocalObject& object, Bytes payload) {
  object.inbound = std::move(payload);
  const Line line = object.put_request ? Line::kPuts : Line::kCopies;
  if (!ask_range(id, object.meta.size_bytes, line)) return refuse_range(id, object.meta.size_bytes);
  admit();
}

// Completes an object whose every byte is here and which may be read.
void Objects::complete(const ObjectId& id, LocalObject& object) {
  if (!object.is_complete() || !object.is_final()) return;
  for (const Waiter& waiter : object.waiters) answer_get(id, object, waiter);
  engine_.counters.waiters -= object.waiters.size();
  object.waiters.clear();
  object.next_upto_bytes = kAllBytes;
  object.wanted_by_fold = object.wanted_by_all = false;
  if (object.is_excerpt) engine_.excerpts.note_here(id);
  if (std::exchange(object.adopting, false)) {
    if (!object.orphaned) object.keep = Keep::kAdopted;  // as its claim says already
    if (!object.is_pinned()) claim(id);
  }
  note_use(id);
  engine_.folds.note_here(id);
}

void Objects::answer_get(const ObjectId& id, LocalObject& object, const Waiter& waiter) {
  const bool mapped =
      object.meta.size_bytes > engine_.config.inline_bytes_max || waiter.client == kThisNode;
  if (mapped) ++object.pins[waiter.client];
  const std::uint64_t ready = early_bytes(object).value_or(object.meta.size_bytes);
  engine_.outgoing.reply(waiter,
                         Fetched{object.incarnation, object.meta, *object.extent, mapped, ready});
  note_use(id);
}

// Returns how many leading bytes a client may read before all are here; nothing if it may read
// none. A small object is copied whole. The sources of a reduce may change until it is committed.
std::optional<std::uint64_t> Objects::early_bytes(const LocalObject& object) const {
  const bool is_large = object.meta.size_bytes > engine_.config.inline_bytes_max;
  const bool is_of_a_put = object.is_final() && object.target_epoch.value == 0;
  if (!is_large || !is_of_a_put || !object.extent || object.stripes.empty()) return std::nullopt;
  return object.ready_bytes();
}

void Objects::answer_early(const ObjectId& id, LocalObject& object) {
  const auto ready = early_bytes(object);
  if (!ready || *ready < object.next_upto_bytes) return;
  object.next_upto_bytes = kAllBytes;
  engine_.counters.waiters -= std::erase_if(object.waiters, [&](const Waiter& waiter) {
    if (waiter.upto_bytes > *ready) {
      object.next_upto_bytes = std::min(object.next_upto_bytes, waiter.upto_bytes);
      return false;
    }
    answer_get(id, object, waiter);
    return true;
  });
}

// Wishes that end with the gets end first, because the rank follows from all of them.
void Objects::fail_waiters(const ObjectId& id, LocalObject& object, Code code,
                           const std::string& text) {
  for (const Waiter& waiter : object.waiters) engine_.outgoing.reply(waiter, Error{code, text});
  engine_.counters.waiters -= object.waiters.size();
  object.waiters.clear();
  object.next_upto_bytes = kAllBytes;
  note_use(id);
}

bool Objects::is_evictable(const ObjectId& id, const LocalObject& object) const {
  return object.may_leave() && !engine_.transfers.serves(id);
}

std::optional<Rank> Objects::eviction_rank(const ObjectId& id, const LocalObject& object) const {
  if (is_evictable(id, object)) return object.orphaned ? Rank::kOrphan : Rank::kCopy;
  if (engine_.spills.may_spill(id, object)) return Rank::kPinned;
  return std::nullopt;
}

// Notes a use. The latest use decides the order of eviction.
void Objects::note_use(const ObjectId& id) {
  LocalObject* const found = find(id);
  if (found == nullptr) return;
  const LocalObject& object = *found;
  if (const auto rank = eviction_rank(id, object)) {
    engine_.inventory.mark_evictable(id, *object.extent, *rank);
  } else {
    engine_.inventory.mark_needed(id);
  }
}

// Gives the object's range back. A range that is mapped or being sent stays until the last unpin. A
// range that a client still writes stays until that client reports that it is done.
void Objects::void_bytes(const ObjectId& id, LocalObject& object) {
  engine_.rebuilds.end(id);
  for (LocalStripe& stripe : object.stripes) {
    if (stripe.state == StripeState::kReceiving)
      engine_.transfers.end_pull(stripe.transfer, Notice::kTellSender);
  }
  object.stripes.clear();
  object.sums.clear();
  object.written_bytes = 0;
  engine_.counters.arena_bytes_orphaned -= object.orphaned_bytes();
  object.orphaned = object.elsewhere = false;
  object.keep = Keep::kCopy;
  object.copies = 0;
  engine_.keeping.fail_awaiting(id);
  object.spilling.reset();
  if (object.spilled) {
    engine_.spills.forget_file_copy(id, *object.spilled);
    if (!object.extent) engine_.keeping.note_gone(id, object.incarnation);
    object.spilled.reset();
  }
  engine_.keeping.forget_sole(id);
  engine_.inventory.cancel(id, engine_.now);
  engine_.inventory.mark_needed(id);
  engine_.transfers.stop_serving(id);
  if (!object.extent) return;
  if (object.is_final()) engine_.keeping.note_gone(id, object.incarnation);
  std::optional<Waiter> writer;
  if (object.is_writing()) writer = object.put_request;
  if (object.pins.empty() && !writer) {
    release_range(*object.extent);
  } else {
    retired_.emplace(std::pair(id, object.incarnation),
                     Retired{*object.extent, std::move(object.pins), writer});
  }
  object.extent.reset();
  object.pins.clear();
}

void Objects::forget_if_empty(const ObjectId& id) {
  LocalObject* const found = find(id);
  if (found == nullptr) return;
  const LocalObject& object = *found;
  if (object.has_bytes() || object.is_wanted() || engine_.inventory.is_waiting(id) ||
      engine_.folds.is_folding(id) || engine_.rebuilds.makes(id)) {
    return;
  }
  objects_.erase(id);
  engine_.folds.forget_outcome(id);
  claim(id);
}

// Drops a part of an object that no request here wants any more. The part would neither grow nor be
// evicted, and its receivers would wait for the rest.
void Objects::drop_unwanted(const ObjectId& id) {
  LocalObject* const found = find(id);
  if (found == nullptr) return;
  LocalObject& object = *found;
  if (object.is_wanted() || object.is_whole() || object.put_request || object.inbound) return;
  if (object.is_excerpt && engine_.rebuilds.makes(id)) return;  // another node may wait for it
  // The stripes of a fold stay; receivers of other stripes ask the home again.
  if (engine_.folds.is_folding(id)) return engine_.transfers.stop_serving(id);
  if (object.is_pinned() || object.may_leave()) return;
  void_bytes(id, object);
  forget_if_empty(id);
}

// Ends a put whose bytes are replaced or dropped. A put that has its range gets the error with its
// next message, and a put that waits for its range gets it at once.
void Objects::end_put(const ObjectId& id, LocalObject& object, const char* what_happened) {
  if (object.put_request && !object.extent) {
    engine_.outgoing.reply(*object.put_request,
                           Error{Code::kObjectLost, "object " + short_name(id) + " was " +
                                                        what_happened + " while it was being put"});
  }
  void_bytes(id, object);
  object.put_request.reset();
  object.inbound.reset();
}

// Drops bytes because the home says so, or because this node decided it.
void Objects::drop_object(const ObjectId& id, Incarnation upto, Cause cause) {
  if (cause == Cause::kDeleted) {
    engine_.keeping.note_deleted(id, upto);
    engine_.calls.handle_target_deleted(id);
    engine_.folds.erase_outcome(id);
  }
  LocalObject* const found = find(id);
  if (found == nullptr) return;
  LocalObject& object = *found;
  if (object.incarnation > upto) return;
  const bool was_put = object.put_request || object.inbound;
  engine_.folds.end_fold(id);
  end_put(id, object, "deleted");
  if (cause == Cause::kDeleted) engine_.keeping.forget_gone(id);  // the home ends all of its leases
  object.begin({}, {}, Keep::kCopy, Finality::kFinal);
  object.adopting = false;
  if (cause == Cause::kDeleted) object.end_wishes();
  engine_.folds.erase_outcome(id);
  engine_.folds.note_here(id);
  if (object.is_wanted()) claim(id);
  if (was_put || !object.is_wanted()) forget_if_empty(id);
}

// Frees retired ranges of a name once none of them is pinned. A release names an object, not a
// range, so no range under a name is freed before the last pin of any of them. Cost: O(ranges of
// the name), because a client may end with pins of thousands of deleted objects.
void Objects::free_retired(const ObjectId& id, Incarnation incarnation) {
  LocalObject* const live = find(id);
  const bool is_shared = live != nullptr && live->incarnation == incarnation && !live->pins.empty();
  const auto [first, last] = retired_.equal_range({id, incarnation});
  const bool is_used = std::any_of(first, last, [](const auto& each) {
    return !each.second.pins.empty() || each.second.writer.has_value();
  });
  if (is_shared || is_used) return;
  for (auto it = first; it != last; ++it) release_range(it->second.extent);
  retired_.erase(first, last);
}

std::optional<Extent> Objects::pin_whole(const Attempt& attempt, std::uint64_t size_bytes) {
  LocalObject* const found = find(attempt.object);
  if (found != nullptr && found->is_complete() && found->is_final() &&
      found->incarnation == attempt.incarnation && found->meta.size_bytes == size_bytes) {
    ++found->pins[kThisNode];
    note_use(attempt.object);
    return found->extent;
  }
  const auto [first, last] = retired_.equal_range({attempt.object, attempt.incarnation});
  const auto mapped = std::find_if(first, last, [&](const auto& each) {
    const Retired& range = each.second;
    const auto is_client = [](const auto& pin) { return pin.first != kThisNode; };
    // Only a whole object is mapped, except by its writer.
    return range.extent.size_bytes == size_bytes && !range.writer &&
           std::ranges::any_of(range.pins, is_client);
  });
  if (mapped == last) return std::nullopt;
  ++mapped->second.pins[kThisNode];
  return mapped->second.extent;
}

void Objects::unpin(const ObjectId& id, Incarnation incarnation, ClientId client, Pins which) {
  const auto take = [&](std::map<ClientId, std::uint32_t>& pins) {
    const auto pin = pins.find(client);
    if (pin == pins.end()) return false;
    if (which == Pins::kAll || --pin->second == 0) pins.erase(pin);
    return true;
  };
  const auto [first, last] = retired_.equal_range({id, incarnation});
  for (auto old = first; old != last; ++old) {
    if (take(old->second.pins)) return free_retired(id, incarnation);
  }
  LocalObject* const found = find(id);
  if (found == nullptr || found->incarnation != incarnation) return;
  if (!take(found->pins)) return;
  note_use(id);
  if (first != last) free_retired(id, incarnation);
}

// Returns the shape of a source that is here; else nullptr.
const ObjectMeta* Objects::meta_here(const ReduceSource& source) const {
  const LocalObject* const found = find(source.object);
  if (found == nullptr || !found->is_here() || !found->is_final()) return nullptr;
  const bool is_it = source.incarnation.value == 0 || source.incarnation == found->incarnation;
  return is_it ? &found->meta : nullptr;
}

const LocalObject* Objects::find(const ObjectId& id) const {
  const auto it = objects_.find(id);
  return it == objects_.end() ? nullptr : &it->second;
}

void Objects::check_invariants() const {
  std::map<std::uint64_t, std::uint64_t> ranges;
  const auto add = [&](const Extent& extent) {
    HOPLITE_CHECK(ranges.emplace(extent.offset, extent.size_bytes).second);
  };
  std::uint64_t waiters = 0;
  std::uint64_t orphaned_bytes = 0;
  for (const auto& [id, object] : objects_) {
    if (object.extent) add(*object.extent);
    HOPLITE_CHECK(!(object.extent && engine_.inventory.is_waiting(id)));
    HOPLITE_CHECK(engine_.inventory.rank(id) == eviction_rank(id, object));
    waiters += object.waiters.size();
    orphaned_bytes += object.orphaned_bytes();
  }
  HOPLITE_CHECK(waiters == engine_.counters.waiters);
  HOPLITE_CHECK(orphaned_bytes == engine_.counters.arena_bytes_orphaned);
  for (const auto& [name, retired] : retired_) add(retired.extent);
  for (const auto& [target, folding] : engine_.folds.folds()) {
    for (const Extent& range : folding.workspace.ranges()) add(range);
  }
  for (const auto& [offset, range] : engine_.loans.ranges()) add(range);
  for (const auto& [transfer, place] : engine_.loans.places()) {
    const auto in = ranges.upper_bound(place.range.offset);
    HOPLITE_CHECK(in != ranges.begin());
    HOPLITE_CHECK(place.range.offset + place.range.size_bytes <=
                  std::prev(in)->first + std::prev(in)->second);
  }
  std::uint64_t end = 0;
  for (const auto& [offset, bytes] : ranges) {
    HOPLITE_CHECK(offset >= end);
    end = offset + bytes;
  }
  HOPLITE_CHECK(end <= engine_.inventory.capacity_bytes());
}

}  // namespace hoplite
