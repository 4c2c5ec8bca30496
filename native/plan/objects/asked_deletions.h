// SPDX-License-Identifier: Apache-2.0
// The deletions that this node's clients ask for (decision 24). A new home hears each again, for a
// life from its request, because the old home may have answered without the newest members; of the
// answered ones, the newest `deletes_max`. At most `deletes_max` are in flight to one home, and
// eight times as many to all homes; those that a new home hears again may be more. Further ones
// wait in their home's line, so seven silent homes hold up no deletion at another home. Memory:
// about 200 bytes for each.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "plan/links/membership.h"
#include "plan/messages/engine_config.h"
#include "plan/objects/local_object.h"

namespace hoplite {

class AskedDeletions {
 public:
  struct Held {
    Waiter waiter;
    DeleteCommand command;
  };

  explicit AskedDeletions(const EngineConfig& config)
      : life_(config.tombstone_life), each_max_(config.deletes_max) {}

  [[nodiscard]] bool has_room(NodeId home) const;
  void hold(NodeId home, Held held);
  // Returns the next one whose home has room. Cost: O(homes that have a line).
  [[nodiscard]] std::optional<Held> poll_held();

  // `home` is asked. `here`: up to which attempt, as far as is known here.
  void note(NodeId home, const Delete& request, Incarnation here, Instant now);
  void handle_deleted(const Deleted& deleted);
  // `gone`: nodes that have left the view, or that have restarted.
  void handle_view(const Membership& view, std::span<const NodeId> gone);
  void handle_timeout(Instant now);

  [[nodiscard]] bool covers(const ObjectId& object, Incarnation incarnation) const;
  // All that are under way, or held.
  [[nodiscard]] std::size_t size() const { return noted_.size() + held_; }
  [[nodiscard]] std::optional<Instant> poll_timeout() const;
  // Calls visit(request) for each that is under way: first those up to an attempt.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [key, note] : noted_) {
      visit(Delete{key.second, key.first == Kind::kDated ? note.upto : Incarnation{0}});
    }
  }
  void check_invariants() const;

 private:
  enum class Kind : bool { kDated, kUndated };  // kUndated: of all attempts, whatever there is
  using Key = std::pair<Kind, ObjectId>;
  struct Note {
    Incarnation upto;
    NodeId home;
    Instant until;
  };
  using Notes = std::map<Key, Note>;

  void forget(Notes::iterator it);
  void remember(const ObjectId& object, const Note& answered);
  void forget_answered(std::map<ObjectId, Note>::iterator it);

  Duration life_;
  std::size_t each_max_;
  Notes noted_;
  std::set<std::pair<Instant, Key>> order_;  // the oldest first
  std::map<NodeId, std::size_t> counts_;     // of noted_, by home
  std::map<ObjectId, Note> answered_;
  std::set<std::pair<Instant, ObjectId>> answered_order_;  // the oldest first
  std::map<NodeId, std::deque<Held>> lines_;
  std::size_t held_ = 0;  // in all lines
};

}  // namespace hoplite
