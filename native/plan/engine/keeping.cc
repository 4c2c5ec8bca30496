// Keeping at one node: orphans, adoptions, and draining (decision 16). The homes decide
// (directory_keeping.cc); here their decisions become pins and claims.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/engine/state.h"

namespace hoplite {

// ---- orphans ----

// The holders may be anywhere, for example a reduce's owners or an adopter. The home therefore
// tells them all.
void Engine::State::handle_orphan(const Waiter& waiter, const OrphanCommand& orphan) {
  const auto it = objects_.find(orphan.object);
  Incarnation upto = orphan.upto;  // 0: the home knows it, unless this node does
  if (upto.value == 0 && it != objects_.end()) upto = it->second.incarnation;
  orphans_.note(orphan.object, upto, now_);
  send(view_.home_of(orphan.object), Orphan{orphan.object, upto});
  reply(waiter, Done{});
}

void Engine::State::handle_orphan_at_home(const Orphan& orphan) {
  directory_.handle_orphan(orphan, now_);
}

// ---- draining ----

void Engine::State::handle_drain() {
  if (draining_) return;
  draining_ = true;
  view_.handle_draining(config_.node, true);
  directory_.handle_draining(config_.node, true, now_);
  for (const auto& [id, object] : objects_) note_sole(id);
  for (const Member& member : view_.members()) {
    if (member.node != config_.node) send(member.node, ResyncDone{true});
  }
}

bool EngineTables::is_sole(const LocalObject& object) const {
  return draining_ && object.is_here() && !object.elsewhere &&
         (object.pinned || object.writing || object.orphaned || object.is_whole());
}

void Engine::State::note_sole(const ObjectId& id) {
  const auto it = objects_.find(id);
  if (it != objects_.end() && is_sole(it->second)) {
    sole_.insert(id);
  } else {
    sole_.erase(id);
  }
}

// Handles the home's word on the copy here. A draining node releases its pin when another node
// keeps the object, and takes the pin again if that node dies.
void Engine::State::handle_standing(NodeId from, const Standing& standing) {
  if (from != view_.home_of(standing.object)) return;
  const auto it = objects_.find(standing.object);
  if (it == objects_.end()) return;
  LocalObject& object = it->second;
  if (object.incarnation != standing.incarnation || !object.is_here() || object.writing ||
      !object.committed) {
    return;
  }
  const bool elsewhere = standing.elsewhere && draining_;
  if (object.orphaned == standing.orphaned && object.elsewhere == elsewhere) return;
  const bool moved = object.elsewhere != elsewhere;
  stats_.arena_bytes_orphaned -= object.orphaned_bytes();
  object.orphaned = standing.orphaned;
  stats_.arena_bytes_orphaned += object.orphaned_bytes();
  if (object.orphaned && !object.extent) spills_.orphans.insert(standing.object);
  object.elsewhere = elsewhere;
  if (moved) object.pinned = !elsewhere;
  if (object.orphaned) object.pinned = false;
  note_use(standing.object);
  claim(standing.object);
}

// ---- adoption ----

// Returns true if the range is here at once. On false, no request is left waiting.
bool Engine::State::reserve_at_once(const ObjectId& id, std::uint64_t size_bytes) {
  if (!ask_range(id, size_bytes, Line::kCopies)) return false;
  granting_ = id;
  admit();
  granting_.reset();
  const auto it = objects_.find(id);
  if (it != objects_.end() && it->second.extent) return true;
  inventory_.cancel(id, now_);
  return false;
}

// Adopts an object, or declines by a claim that wants nothing. The range is reserved before the
// answer, so a node that accepts has room.
void Engine::State::handle_adopt(NodeId from, const Adopt& adopt) {
  const ObjectId& id = adopt.object;
  if (from != view_.home_of(id) || !names_bytes(adopt)) return;
  const auto it = objects_.find(id);
  const bool is_busy =
      it != objects_.end() && (it->second.writing || it->second.inbound || folds_.contains(id) ||
                               inventory_.is_waiting(id) ||
                               std::pair(it->second.incarnation, it->second.target_epoch) >
                                   std::pair(adopt.incarnation, adopt.target_epoch));
  if (draining_ || is_busy || is_deleted(id, adopt.incarnation)) return claim(id);
  LocalObject& object = objects_[id];
  if (object.incarnation != adopt.incarnation || object.target_epoch != adopt.target_epoch) {
    void_bytes(id, object);
    object.incarnation = adopt.incarnation;
    object.target_epoch = adopt.target_epoch;
    object.committed = adopt.target_epoch.value == 0;
    object.meta = adopt.meta;
    object.pinned = false;
  }
  if (object.is_whole() && object.committed) {
    if (!object.pinned && !object.orphaned) {
      object.pinned = object.adopted = true;
      object.owner = adopt.owner;
    }
    note_use(id);
    return claim(id);
  }
  object.adopting = true;
  object.owner = adopt.owner;
  const bool small = adopt.meta.size_bytes <= config_.inline_bytes_max;
  if (!small && !object.extent && !reserve_at_once(id, adopt.meta.size_bytes)) {
    const auto kept = objects_.find(id);  // gone already if nothing waits for room
    if (kept != objects_.end()) kept->second.adopting = false;
    claim(id);
    return forget_if_empty(id);
  }
  note_use(id);
  claim(id);
}

}  // namespace hoplite
