// SPDX-License-Identifier: Apache-2.0
// The reduces that this node owns stripes of: their members, which are folded from here or pulled,
// their memory, and how they ended. The planner's part is ReduceTree, the caller's is Calls.
// Invariants: the result of a fold is here under the fold's target epoch; a member that lacks
// blocks is pulled, is awaited, or has news.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "plan/broadcast/pull.h"
#include "plan/broadcast/sender.h"
#include "plan/messages.h"
#include "plan/objects/local_object.h"
#include "plan/reduce/folding.h"

namespace hoplite {

struct Owners;

struct Outcome {  // of a reduce that is committed
  TargetEpoch target_epoch;
  std::vector<std::uint32_t> members;
  NodeId caller;
};
struct Carried {  // a source that came with its location
  ObjectId object;
  Incarnation incarnation;
  Bytes bytes;
};

class Folds {
 public:
  explicit Folds(Owners& engine) : engine_(engine) {}

  void handle_reduce_own(NodeId from, const ReduceOwn& own);
  void handle_reduce_state(NodeId from, const ReduceState& state);

  // ---- a fold ----
  [[nodiscard]] bool is_folding(const ObjectId& target) const { return folds_.contains(target); }
  [[nodiscard]] bool is_idle() const { return dirty_folds_.empty(); }
  void mark_dirty(const ObjectId& target) { dirty_folds_.insert(target); }
  bool drive_next();
  void retry_held_back();  // a closed receive writes no more
  void end_turn() { carried_.reset(); }
  void end_fold(const ObjectId& target);
  void fail_fold(const ObjectId& target, const std::string& text);
  void fail_folds_of(const ObjectId& source, const std::string& text);
  void drop_branches();
  void open_paces();
  [[nodiscard]] std::optional<Instant> next_deadline() const { return paces_due_; }
  void repeat_reports(std::optional<NodeId> only_to);

  // ---- its memory ----
  std::optional<ObjectId> take_slot_key(const ObjectId& key);
  void place_workspace(const ObjectId& target, Extent range);

  // ---- its members ----
  void note_here(const ObjectId& source);
  void note_located(const Located& located);
  void carry(Carried carried) { carried_ = std::move(carried); }
  void member_lost(const ObjectId& source);

  // ---- its pulls, and blocks that it combines for others ----
  void land_in_fold(TransferId transfer, const Pull& pull, const Pull::Landed& landed);
  void note_pull_ended(TransferId transfer, const Pull& pull);
  void note_pull_failed(const FoldGoal& goal, NodeId sender);
  void ask_singly(const ObjectId& target, NodeId sender);
  void combine(const Sender::Next& next);

  // ---- how reduces ended ----
  void note_committed(const ReduceState& state);
  void forget_outcome(const ObjectId& target);
  void erase_outcome(const ObjectId& target) { committed_.erase(target); }

  [[nodiscard]] const std::map<ObjectId, Folding>& folds() const { return folds_; }
  [[nodiscard]] std::size_t outcome_count() const { return committed_.size(); }
  void check_invariants() const;

 private:
  // the owner's side (folds.cc)
  void own_stripes(const ReduceOwn& own, Folding& folding, LocalObject& object);
  bool reserve_fold(Folding& folding, const LocalObject& object);
  [[nodiscard]] bool may_write(const Folding& folding, const LocalObject& object) const;
  void drive_fold(const ObjectId& target);
  void publish_folded(const ObjectId& target, Folding& folding);
  void commit_target(const ReduceState& state, LocalObject& object);
  void raise_target(const ReduceState& state, LocalObject& object);
  void stop_wanting(const ObjectId& source);
  void report(const ObjectId& target, ReduceReport report);
  void report_committed(const ObjectId& target);
  // blocks (fold_blocks.cc)
  void fold_block(const LocalObject& target, Folding& folding,
                  std::span<const std::uint32_t> members, BlockIndex block, std::uint64_t from);
  void finish_block(const LocalObject& target, Folding& folding, const Accumulator::Whole& whole);
  void fold_steps(const LocalObject& target, const Folding& folding, BlockIndex block,
                  std::span<const FoldStep> steps, std::uint64_t from);
  // members (fold_members.cc)
  void drive_members(const ObjectId& target, Folding& folding);
  void look_at(const ObjectId& target, Folding& folding, Accumulator::Member& member);
  void locate_member(const ObjectId& target, Folding& folding, const Accumulator::Member& member);
  bool fold_carried(const ObjectId& target, Folding& folding, const Accumulator::Member& member);
  Here fold_local(const ObjectId& target, Folding& folding, Accumulator::Member& member);
  void pull_member(Folding& folding, std::uint32_t index, const FoldPulls& pulls);

  Owners& engine_;
  std::map<ObjectId, Folding> folds_;
  std::map<ObjectId, ObjectId> slot_keys_;  // a reservation for a workspace alone -> its target
  std::set<ObjectId> dirty_folds_;
  std::set<ObjectId> held_back_;           // folds whose stripes a closed receive may still write
  std::map<ObjectId, Outcome> committed_;  // of results here; those of clients here until deleted
  std::optional<Instant> paces_due_;       // while a fold holds credit back
  std::optional<Carried> carried_;         // for this turn
};

}  // namespace hoplite
