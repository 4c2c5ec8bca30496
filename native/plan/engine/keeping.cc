// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/keeping.h"

#include <algorithm>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {

Keeping::Keeping(Owners& engine)
    : engine_(engine),
      tombstones_(engine.config.tombstone_life, engine.config.recent_objects_max),
      deletes_(engine.config),
      gone_(engine.config.tombstone_life, engine.config.recent_objects_max),
      orphans_(engine.config.tombstone_life, engine.config.recent_objects_max) {}

void Keeping::handle_delete(const Waiter& waiter, const DeleteCommand& remove) {
  const NodeId home = engine_.peers.home_of(remove.object);
  if (!deletes_.has_room(home)) return deletes_.hold(home, {waiter, remove});
  delete_everywhere(remove.object, remove.upto);
  engine_.outgoing.reply(waiter, Done{});
}

// A deletion without an answer counts, however many deletions came after it.
bool Keeping::is_deleted(const ObjectId& id, Incarnation incarnation) const {
  return tombstones_.covers(id, incarnation) || deletes_.covers(id, incarnation);
}

// `upto` 0 means every attempt that exists.
void Keeping::delete_everywhere(const ObjectId& id, Incarnation upto) {
  LocalObject* const found = engine_.objects.find(id);
  Incarnation here = upto;
  if (upto.value == 0) {
    here = Incarnation{1};
    if (found != nullptr) here = std::max(here, found->incarnation);
  }
  const Locate* question = engine_.calls.find_question(id);
  const bool is_later = found != nullptr && found->incarnation > here;
  const bool ends_question =
      question != nullptr && !is_later && (upto.value == 0 || question->incarnation <= upto);
  const Delete request{id, upto};
  deletes_.note(engine_.peers.home_of(id), request, here, engine_.now);
  engine_.outgoing.send(engine_.peers.home_of(id), request);
  if (found != nullptr && found->is_wanted() && found->incarnation <= here) {
    engine_.objects.fail_waiters(id, *found, Code::kObjectLost,
                                 "object " + short_name(id) + " was deleted");
  }
  engine_.objects.drop_object(id, here, Cause::kDeleted);
  engine_.objects.forget_if_empty(id);
  // The home may end the deletion, and forget it, before it hears the question.
  if (ends_question) engine_.calls.note_arrival(id, nullptr);
}

void Keeping::note_deleted(const ObjectId& id, Incarnation upto) {
  tombstones_.note(id, upto, engine_.now);
}

void Keeping::move_deletions(std::span<const NodeId> gone) {
  deletes_.handle_view(engine_.peers.view(), gone);
}

// Asks for one deletion that waited in its home's line. Returns false if there is none.
bool Keeping::ask_held_deletion() {
  const auto held = deletes_.poll_held();
  if (!held) return false;
  delete_everywhere(held->command.object, held->command.upto);
  engine_.outgoing.reply(held->waiter, Done{});
  return true;
}

void Keeping::repeat_deletions(std::optional<NodeId> only_to) {
  deletes_.for_each([&](const Delete& request) {
    if (engine_.peers.is_for(request.object, only_to))
      engine_.outgoing.send(engine_.peers.home_of(request.object), request);
  });
  orphans_.for_each([&](const ObjectId& id, Incarnation upto) {
    if (engine_.peers.is_for(id, only_to))
      engine_.outgoing.send(engine_.peers.home_of(id), Orphan{id, upto});
  });
}

// Only the home may say so. A Drop from another node, where this home knows of no deletion, would
// lead to endless new grants.
void Keeping::handle_drop(NodeId from, const Drop& drop) {
  if (from != engine_.peers.home_of(drop.object)) return;
  LocalObject* const found = engine_.objects.find(drop.object);
  const bool is_later = found != nullptr && found->incarnation > drop.upto;
  const bool is_left = found == nullptr || is_later;
  engine_.objects.drop_object(drop.object, drop.upto,
                              drop.deleted ? Cause::kDeleted : Cause::kLost);
  if (!drop.deleted) return;
  if (!is_later && engine_.calls.find_question(drop.object) != nullptr)
    engine_.calls.note_arrival(drop.object, nullptr);
  // The answer: drop_object() claims only what it drops.
  if (is_left) engine_.objects.claim(drop.object);
}

// Without a view every node considers itself the home.
void Keeping::handle_deleted(NodeId from, const Deleted& deleted) {
  if (from != engine_.peers.home_of(deleted.object) || engine_.peers.view().epoch().value == 0)
    return;
  deletes_.handle_deleted(deleted);
}

void Keeping::note_gone(const ObjectId& id, Incarnation incarnation) {
  gone_.note(id, incarnation, engine_.now);
}

void Keeping::forget_gone(const ObjectId& id) { gone_.forget(id); }

// True if a sender can't exclude that these bytes have left.
bool Keeping::may_be_gone(const ObjectId& id, Incarnation incarnation) const {
  return gone_.covers(id, incarnation) || (gone_.is_short(engine_.now) && !gone_.contains(id));
}

// The holders may be anywhere, for example a reduce's owners or an adopter. The home therefore
// tells them all.
void Keeping::handle_orphan(const Waiter& waiter, const OrphanCommand& orphan) {
  LocalObject* const found = engine_.objects.find(orphan.object);
  Incarnation upto = orphan.upto;  // 0: the home knows it, unless this node does
  if (upto.value == 0 && found != nullptr) upto = found->incarnation;
  orphans_.note(orphan.object, upto, engine_.now);
  engine_.outgoing.send(engine_.peers.home_of(orphan.object), Orphan{orphan.object, upto});
  engine_.outgoing.reply(waiter, Done{});
}

// The object may still be written: its home asks other nodes at once, so that they receive it while
// it is.
void Keeping::handle_keep(const Waiter& waiter, const KeepCommand& keep) {
  const std::string name = "object " + short_name(keep.object);
  if (keep.copies == 0 || keep.copies > kCopiesMax) {
    return engine_.outgoing.reply(
        waiter, Error{Code::kInvalidArgument, std::to_string(keep.copies) + " copies of " + name +
                                                  ": 1 to " + std::to_string(kCopiesMax)});
  }
  LocalObject* const found = engine_.objects.find(keep.object);
  const bool is_it = found != nullptr && found->has_bytes() && found->is_pinned() &&
                     found->incarnation == keep.incarnation;
  if (!is_it) {
    return engine_.outgoing.reply(
        waiter, Error{Code::kObjectLost, name + " was deleted, or it was not put on this node"});
  }
  found->copies = std::max(found->copies, keep.copies);
  awaiting_[keep.object].push_back(waiter);
  engine_.objects.claim(keep.object);
}

bool Keeping::cancel(const Waiter& waiter, const ObjectId& id) {
  const auto found = awaiting_.find(id);
  if (found == awaiting_.end() || std::erase(found->second, waiter) == 0) return false;
  if (found->second.empty()) awaiting_.erase(found);
  engine_.outgoing.reply(waiter, Error{Code::kCancelled, "cancelled by the caller"});
  return true;
}

void Keeping::handle_client_lost(ClientId client) {
  for (auto& [id, waiters] : awaiting_) {
    std::erase_if(waiters, [&](const Waiter& waiter) { return waiter.client == client; });
  }
  std::erase_if(awaiting_, [](const auto& each) { return each.second.empty(); });
}

void Keeping::fail_awaiting(const ObjectId& id) {
  const auto found = awaiting_.find(id);
  if (found == awaiting_.end()) return;
  const std::vector<Waiter> waiters = std::move(found->second);
  awaiting_.erase(found);
  for (const Waiter& waiter : waiters) {
    engine_.outgoing.reply(
        waiter, Error{Code::kObjectLost,
                      "object " + short_name(id) + " was deleted before other nodes kept it"});
  }
}

bool Keeping::is_sole(const LocalObject& object) const {
  return engine_.peers.is_draining() && object.is_here() && !object.elsewhere &&
         (object.is_pinned() || object.is_writing() || object.orphaned || object.is_whole());
}

void Keeping::note_sole(const ObjectId& id) {
  LocalObject* const found = engine_.objects.find(id);
  if (found != nullptr && is_sole(*found)) {
    sole_.insert(id);
  } else {
    sole_.erase(id);
  }
}

void Keeping::forget_sole(const ObjectId& id) { sole_.erase(id); }

// Reports once that no object is kept only here any more; again after later puts.
void Keeping::report_drained() {
  const bool is_empty = engine_.peers.is_draining() && sole_.empty();
  if (is_empty && !drained_) engine_.outgoing.act(ReportDrained{});
  drained_ = is_empty;
}

// Handles the home's word on the copy here. A draining node releases its pin when another node
// keeps the object, and takes the pin again if that node dies.
void Keeping::handle_standing(NodeId from, const Standing& standing) {
  if (from != engine_.peers.home_of(standing.object)) return;
  LocalObject* const found = engine_.objects.find(standing.object);
  if (found == nullptr) return;
  LocalObject& object = *found;
  if (object.incarnation != standing.incarnation || !object.is_here() || object.is_writing() ||
      !object.is_final()) {
    return;
  }
  if (standing.copied) answer_awaiting(standing.object);
  const bool elsewhere = standing.elsewhere && engine_.peers.is_draining();
  if (object.orphaned == standing.orphaned && object.elsewhere == elsewhere) return;
  const bool is_back = object.elsewhere && !elsewhere;  // the other keeper has gone
  engine_.counters.arena_bytes_orphaned -= object.orphaned_bytes();
  object.orphaned = standing.orphaned;
  engine_.counters.arena_bytes_orphaned += object.orphaned_bytes();
  if (object.orphaned && !object.extent) engine_.spills.note_orphan_in_file(standing.object);
  object.elsewhere = elsewhere;
  if (is_back && object.keep == Keep::kCopy) object.keep = Keep::kMade;
  engine_.objects.note_use(standing.object);
  engine_.objects.claim(standing.object);
}

void Keeping::answer_awaiting(const ObjectId& id) {
  const auto found = awaiting_.find(id);
  if (found == awaiting_.end()) return;
  for (const Waiter& waiter : found->second) engine_.outgoing.reply(waiter, Done{});
  awaiting_.erase(found);
}

// Adopts an object, or declines by a claim that wants nothing. The range is reserved before the
// answer, so a node that accepts has room.
void Keeping::handle_adopt(NodeId from, const Adopt& adopt) {
  const ObjectId& id = adopt.object;
  if (from != engine_.peers.home_of(id) || !names_bytes(adopt)) return;
  LocalObject* const found = engine_.objects.find(id);
  const bool is_busy =
      found != nullptr && (found->put_request || found->inbound || engine_.folds.is_folding(id) ||
                           engine_.inventory.is_waiting(id) || engine_.rebuilds.makes(id) ||
                           name_of_bytes(*found) > name_of_bytes(adopt));
  if (engine_.peers.is_draining() || is_busy || is_deleted(id, adopt.incarnation))
    return engine_.objects.claim(id);
  LocalObject& object = engine_.objects.make(id);
  if (name_of_bytes(object) != name_of_bytes(adopt)) {
    engine_.objects.void_bytes(id, object);
    object.begin(name_of_bytes(adopt), adopt.meta, Keep::kCopy,
                 finality_of_copy(adopt.target_epoch));
  }
  if (object.is_whole() && object.is_final()) {
    if (!object.is_pinned() && !object.orphaned) {
      object.keep = Keep::kAdopted;
      object.owner = adopt.owner;
    }
    object.copies = std::max(object.copies, adopt.copies);
    engine_.objects.note_use(id);
    return engine_.objects.claim(id);
  }
  object.adopting = true;
  object.owner = adopt.owner;
  object.copies = std::max(object.copies, adopt.copies);
  const bool small = adopt.meta.size_bytes <= engine_.config.inline_bytes_max;
  if (!small && !object.extent && !engine_.objects.reserve_at_once(id, adopt.meta.size_bytes)) {
    LocalObject* const kept = engine_.objects.find(id);  // gone already if nothing waits for room
    if (kept != nullptr) kept->adopting = false;
    engine_.objects.claim(id);
    return engine_.objects.forget_if_empty(id);
  }
  engine_.objects.note_use(id);
  engine_.objects.claim(id);
}

void Keeping::forget_old() {
  deletes_.handle_timeout(engine_.now);
  for (RecentObjects* recent : {&tombstones_, &gone_, &orphans_})
    recent->handle_timeout(engine_.now);
}

std::optional<Instant> Keeping::next_forgetting() const {
  std::optional<Instant> earliest = deletes_.poll_timeout();
  for (const RecentObjects* recent : {&tombstones_, &gone_, &orphans_}) {
    earliest = earlier(earliest, recent->poll_timeout());
  }
  return earliest;
}

void Keeping::add_stats(EngineStats& stats) const {
  const Deletions& shard = engine_.directory.deletions();
  stats.sole_copies = sole_.size();
  stats.deletions_open = deletes_.size() + shard.under_way_count();
  stats.deletions_remembered = tombstones_.size() + shard.ended_count();
  stats.objects_recent = gone_.size() + orphans_.size();
}

void Keeping::check_invariants() const {
  deletes_.check_invariants();
  for (const auto& [id, object] : engine_.objects.all()) {
    HOPLITE_CHECK(sole_.contains(id) == is_sole(object));
  }
  for (const ObjectId& id : sole_) HOPLITE_CHECK(engine_.objects.contains(id));
  for (const auto& [id, waiters] : awaiting_) {
    const LocalObject* const object = engine_.objects.find(id);
    HOPLITE_CHECK(!waiters.empty() && object != nullptr && object->copies > 0);
  }
}

}  // namespace hoplite
