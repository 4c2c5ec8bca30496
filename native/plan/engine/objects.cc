// The objects of this node: ranges that are requested and granted, copies that are completed,
// dropped or unpinned, and the requests that wait for them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/check.h"
#include "plan/engine/state.h"

namespace hoplite {

// The block size that all nodes use for an object: a power of two near size/1024, within the
// limits.
ObjectMeta EngineTables::cut(ObjectMeta meta) const {
  std::uint64_t bytes = config_.block_bytes_min;
  while (bytes < config_.block_bytes_max && bytes * kBlocksPerObjectAim < meta.size_bytes)
    bytes *= 2;
  if (meta.size_bytes <= config_.inline_bytes_max)
    bytes = std::max<std::uint64_t>(meta.size_bytes, 1);
  meta.block_bytes = static_cast<std::uint32_t>(bytes);
  return meta;
}

// Returns false if the arena could never hold the range.
bool EngineTables::ask_range(const ObjectId& id, std::uint64_t size_bytes, Line line) {
  if (!inventory_.can_hold({size_bytes, 0}, line)) return false;
  if (!inventory_.is_waiting(id)) inventory_.request(id, {size_bytes, 0}, line, now_);
  return true;
}

void Engine::State::on_admitted(const Admitted& admitted) {
  const ObjectId& id = admitted.object;
  const Extent extent = admitted.extent;
  if (const auto slot = slot_keys_.find(id); slot != slot_keys_.end()) {
    place_workspace(slot->second, extent);
    slot_keys_.erase(slot);
    return;
  }
  if (admitted.workspace) place_workspace(id, *admitted.workspace);
  const auto it = objects_.find(id);
  if (it == objects_.end()) return inventory_.release(extent, now_);
  LocalObject& object = it->second;
  object.extent = extent;
  if (object.spilled) {
    stats_.arena_bytes_orphaned += object.orphaned_bytes();
    object.written_bytes = 0;
    begin_spill({id, object.incarnation, SpillWay::kRead, extent, *object.spilled, 0}, object);
  } else if (object.inbound) {
    Bytes payload = std::move(*object.inbound);
    object.inbound.reset();
    if (!payload.empty()) actions_.emplace_back(WriteInline{extent, std::move(payload)});
    LocalStripe whole;
    whole.state = StripeState::kComplete;
    object.stripes.assign(1, whole);
    if (object.put_request) reply(*object.put_request, Done{});
    object.put_request.reset();
    claim(id);
    complete(id, object);
  } else if (object.writing) {
    LocalStripe root;
    root.state = StripeState::kRoot;
    object.stripes.assign(1, root);
    reply(*object.put_request, Reserved{extent});
    claim(id);
  } else if (folds_.contains(id)) {
    dirty_folds_.insert(id);
    claim(id);
  } else if (granting_ != id) {
    claim(id);  // the range has come: the home may grant the object
  }
}

void Engine::State::on_refused(const ObjectId& id, std::uint64_t size_bytes) {
  ObjectId name = id;
  if (const auto slot = slot_keys_.find(id); slot != slot_keys_.end()) {
    name = slot->second;
    slot_keys_.erase(slot);
  }
  give_up(name, full_text(name, size_bytes));
}

// Gives up an object or a fold that gets no room, here or at its sender.
void Engine::State::give_up(const ObjectId& name, const std::string& text) {
  if (folds_.contains(name)) {
    ReduceReport news;
    news.code = Code::kStoreFull;
    news.text = text;
    report(name, std::move(news));
    end_fold(name);
  }
  const auto it = objects_.find(name);
  if (it == objects_.end()) return;
  LocalObject& object = it->second;
  if (object.spilled) {  // it can't be read back: fail all waiters, here and elsewhere
    fail_waiters(object, Code::kStoreFull, text);
    object.whole_wanted = false;
    const auto refused = sender_.drop(name);
    const std::string where = " (on node " + std::to_string(config_.node.value) + ")";
    for (const auto& each : refused) send(each.to, Lost{name, Code::kStoreFull, text + where});
    refuse(refused, name);
    return give_up_folds_of(name, text);
  }
  if (object.put_request) reply(*object.put_request, Error{Code::kStoreFull, text});
  object.put_request.reset();
  object.writing = false;
  object.inbound.reset();
  fail_waiters(object, Code::kStoreFull, text);
  object.whole_wanted = object.adopting = object.pinned = false;
  member_lost(name);
  void_bytes(name, object);
  forget_if_empty(name);
}

// Stores a small object's bytes that came by put or by push. They get a range of their own.
void Engine::State::store_small(const ObjectId& id, LocalObject& object, Bytes payload) {
  object.inbound = std::move(payload);
  const Line line = object.put_request ? Line::kPuts : Line::kCopies;
  if (!ask_range(id, object.meta.size_bytes, line)) return on_refused(id, object.meta.size_bytes);
  admit();
}

// Completes an object whose every byte is here and which may be read.
void Engine::State::complete(const ObjectId& id, LocalObject& object) {
  if (!object.is_complete() || !object.committed) return;
  for (const Waiter& waiter : object.waiters) answer_get(id, object, waiter);
  stats_.waiters -= object.waiters.size();
  object.waiters.clear();
  object.whole_wanted = false;
  if (object.adopting) {
    object.adopting = false;
    object.pinned = object.adopted = !object.orphaned;  // as its claim says already
    if (object.orphaned) claim(id);
  }
  note_use(id);
  note_here(id);
}

void Engine::State::answer_get(const ObjectId& id, LocalObject& object, const Waiter& waiter) {
  const bool mapped = object.meta.size_bytes > config_.inline_bytes_max;
  if (mapped) ++object.pins[waiter.client];
  reply(waiter, Fetched{object.incarnation, object.meta, *object.extent, mapped});
  note_use(id);
}

void Engine::State::fail_waiters(LocalObject& object, Code code, const std::string& text) {
  for (const Waiter& waiter : object.waiters) reply(waiter, Error{code, text});
  stats_.waiters -= object.waiters.size();
  object.waiters.clear();
}

bool EngineTables::is_free_to_go(const ObjectId& id, const LocalObject& object) const {
  return object.is_idle_copy() && !sender_.serves(id);
}

// Notes a use. The latest use decides the order of eviction.
void Engine::State::note_use(const ObjectId& id) {
  const auto it = objects_.find(id);
  if (it == objects_.end()) return;
  const LocalObject& object = it->second;
  if (const auto rank = rank_of(id, object)) {
    inventory_.mark_evictable(id, *object.extent, *rank);
  } else {
    inventory_.mark_needed(id);
  }
}

// Gives the object's range back. A range that is mapped or being sent stays until the last unpin. A
// range that a client still writes stays until that client reports that it is done.
void Engine::State::void_bytes(const ObjectId& id, LocalObject& object) {
  for (LocalStripe& stripe : object.stripes) {
    if (stripe.state == StripeState::kReceiving) end_pull(stripe.transfer, true);
  }
  object.stripes.clear();
  object.written_bytes = 0;
  stats_.arena_bytes_orphaned -= object.orphaned_bytes();
  object.orphaned = object.elsewhere = object.adopted = false;
  object.spilling.reset();
  if (object.spilled) {
    stats_.spill_bytes -= object.spilled->size_bytes;
    free_file_range(id, *object.spilled);
    if (!object.extent) gone_.note(id, object.incarnation, now_);
    object.spilled.reset();
  }
  sole_.erase(id);
  inventory_.cancel(id, now_);
  inventory_.mark_needed(id);
  refuse(sender_.drop(id), id);
  if (!object.extent) return;
  if (object.committed) gone_.note(id, object.incarnation, now_);
  std::optional<Waiter> writer;
  if (object.writing) writer = object.put_request;
  if (object.pins.empty() && !writer) {
    inventory_.release(*object.extent, now_);
  } else {
    retired_.emplace(std::pair(id, object.incarnation),
                     Retired{*object.extent, std::move(object.pins), writer});
  }
  object.extent.reset();
  object.pins.clear();
}

void Engine::State::forget_if_empty(const ObjectId& id) {
  const auto it = objects_.find(id);
  if (it == objects_.end()) return;
  const LocalObject& object = it->second;
  if (object.has_bytes() || object.is_wanted() || inventory_.is_waiting(id) ||
      folds_.contains(id)) {
    return;
  }
  objects_.erase(it);
  forget_outcome(id);
  claim(id);
}

// Drops a part of an object that no request here wants any more. The part would neither grow nor be
// evicted, and its receivers would wait for the rest.
void Engine::State::abandon(const ObjectId& id) {
  const auto it = objects_.find(id);
  if (it == objects_.end()) return;
  LocalObject& object = it->second;
  if (object.is_wanted() || object.is_whole() || object.writing || object.inbound) return;
  if (folds_.contains(id)) {  // its own stripes stay; receivers of others ask the home again
    refuse(sender_.drop(id), id);
    return;
  }
  if (object.pinned || object.is_idle_copy()) return;
  void_bytes(id, object);
  forget_if_empty(id);
}

// Ends a put whose bytes are replaced or dropped. A put that has its range gets the error with its
// next message, and a put that waits for its range gets it at once.
void Engine::State::end_put(const ObjectId& id, LocalObject& object, const char* what_happened) {
  if (object.put_request && !object.extent) {
    reply(*object.put_request,
          Error{Code::kObjectLost,
                "object " + short_name(id) + " was " + what_happened + " while it was being put"});
  }
  void_bytes(id, object);
  object.put_request.reset();
  object.writing = false;
  object.inbound.reset();
}

// Drops bytes because the home says so, or because this node decided it.
void Engine::State::drop_object(const ObjectId& id, Incarnation upto, bool deleted) {
  if (deleted) {
    tombstones_.note(id, upto, now_);
    failed_.erase(id);
    committed_.erase(id);
  }
  const auto it = objects_.find(id);
  if (it == objects_.end()) return;
  LocalObject& object = it->second;
  if (object.incarnation > upto) return;
  const bool was_put = object.writing || object.inbound;
  end_fold(id);
  end_put(id, object, "deleted");
  if (deleted) gone_.forget(id);  // the home ends all of its leases
  object.incarnation = Incarnation{0};
  object.target_epoch = TargetEpoch{0};
  object.meta = ObjectMeta{};
  object.committed = true;
  object.pinned = object.adopting = object.is_branch = false;
  if (deleted) object.whole_wanted = false;
  committed_.erase(id);
  note_here(id);
  if (object.is_wanted()) claim(id);
  if (was_put || !object.is_wanted()) forget_if_empty(id);
}

// Frees retired ranges of a name once none of them is pinned. A release names an object, not a
// range, so no range under a name is freed before the last pin of any of them. Cost: O(ranges of
// the name), because a client may end with pins of thousands of deleted objects.
void Engine::State::free_retired(const ObjectId& id, Incarnation incarnation) {
  const auto live = objects_.find(id);
  const bool is_shared = live != objects_.end() && live->second.incarnation == incarnation &&
                         !live->second.pins.empty();
  const auto [first, last] = retired_.equal_range({id, incarnation});
  const bool is_used = std::any_of(first, last, [](const auto& each) {
    return !each.second.pins.empty() || each.second.writer.has_value();
  });
  if (is_shared || is_used) return;
  for (auto it = first; it != last; ++it) inventory_.release(it->second.extent, now_);
  retired_.erase(first, last);
}

void Engine::State::unpin(const ObjectId& id, Incarnation incarnation, ClientId client, bool all) {
  const auto take = [&](std::map<ClientId, std::uint32_t>& pins) {
    const auto pin = pins.find(client);
    if (pin == pins.end()) return false;
    if (all || --pin->second == 0) pins.erase(pin);
    return true;
  };
  const auto [first, last] = retired_.equal_range({id, incarnation});
  for (auto old = first; old != last; ++old) {
    if (take(old->second.pins)) return free_retired(id, incarnation);
  }
  const auto it = objects_.find(id);
  if (it == objects_.end() || it->second.incarnation != incarnation) return;
  if (!take(it->second.pins)) return;
  note_use(id);
  if (first != last) free_retired(id, incarnation);
}

}  // namespace hoplite
