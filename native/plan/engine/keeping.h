// SPDX-License-Identifier: Apache-2.0
// Objects that are gone or must stay: deletions, orphans, adoptions, objects that several nodes are
// to keep, and those that only this draining node keeps (design decisions 16, 24 and 50). The homes
// decide; here their decisions become pins, drops and claims.
// Invariants: while this node drains, `sole_` are the objects that no other node keeps. Clients
// await copies only of an object that is here and is to have some.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "plan/messages.h"
#include "plan/objects/asked_deletions.h"
#include "plan/objects/local_object.h"
#include "plan/objects/recent.h"

namespace hoplite {

struct EngineStats;
struct Owners;

class Keeping {
 public:
  explicit Keeping(Owners& engine);

  void handle_delete(const Waiter& waiter, const DeleteCommand& remove);
  void handle_orphan(const Waiter& waiter, const OrphanCommand& orphan);
  void handle_keep(const Waiter& waiter, const KeepCommand& keep);
  // Returns false if the client does not await copies of the object.
  bool cancel(const Waiter& waiter, const ObjectId& id);
  void handle_client_lost(ClientId client);
  // ---- from the home ----
  void handle_drop(NodeId from, const Drop& drop);
  void handle_deleted(NodeId from, const Deleted& deleted);
  void handle_standing(NodeId from, const Standing& standing);
  void handle_adopt(NodeId from, const Adopt& adopt);

  // ---- deletions ----
  void delete_everywhere(const ObjectId& id, Incarnation upto);
  [[nodiscard]] bool is_deleted(const ObjectId& id, Incarnation incarnation) const;
  void note_deleted(const ObjectId& id, Incarnation upto);
  // To their homes in a new view; `gone`: nodes that have left it, or that have restarted.
  void move_deletions(std::span<const NodeId> gone);
  bool ask_held_deletion();
  void repeat_deletions(std::optional<NodeId> only_to);  // and orphans

  // ---- bytes that left ----
  void note_gone(const ObjectId& id, Incarnation incarnation);
  void forget_gone(const ObjectId& id);
  [[nodiscard]] bool may_be_gone(const ObjectId& id, Incarnation incarnation) const;

  // ---- objects that several nodes keep ----
  [[nodiscard]] bool awaits_copies(const ObjectId& id) const { return awaiting_.contains(id); }
  void fail_awaiting(const ObjectId& id);  // because its bytes here are gone

  // ---- objects that only this node keeps ----
  void note_sole(const ObjectId& id);
  void forget_sole(const ObjectId& id);
  [[nodiscard]] bool is_sole(const LocalObject& object) const;
  void report_drained();

  void forget_old();
  [[nodiscard]] std::optional<Instant> next_forgetting() const;
  void add_stats(EngineStats& stats) const;
  void check_invariants() const;

 private:
  void answer_awaiting(const ObjectId& id);

  Owners& engine_;
  RecentObjects tombstones_;
  AskedDeletions deletes_;
  RecentObjects gone_;     // bytes that left, and were not granted again
  RecentObjects orphans_;  // reported to their homes; repeated to new homes
  std::map<ObjectId, std::vector<Waiter>> awaiting_;  // clients, until enough nodes keep it
  std::set<ObjectId> sole_;
  bool drained_ = false;  // True if it has reported that
};

}  // namespace hoplite
