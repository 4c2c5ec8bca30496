// The state of one node's engine: its machines, and the tables between them. Only Engine::State
// changes them. Invariants: Engine::State::check_invariants.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/broadcast/pull.h"
#include "plan/broadcast/sender.h"
#include "plan/directory/directory.h"
#include "plan/engine/engine.h"
#include "plan/links/parked.h"
#include "plan/links/rails.h"
#include "plan/objects/asked_deletions.h"
#include "plan/objects/inventory.h"
#include "plan/objects/local_object.h"
#include "plan/objects/recent.h"
#include "plan/objects/spilling.h"
#include "plan/reduce/folding.h"
#include "plan/reduce/reduce_tree.h"

namespace hoplite {

struct Retired {  // bytes without a name that are still mapped, sent or written
  Extent extent;
  std::map<ClientId, std::uint32_t> pins;
  std::optional<Waiter> writer;  // of a dropped put whose client does not know yet
};
struct Outcome {  // of a reduce that is committed
  TargetEpoch target_epoch;
  std::vector<std::uint32_t> members;
  NodeId caller;
};
struct Call {  // the caller's side of a reduce
  Waiter waiter;
  ReduceWant want;                                // everything confirmed so far
  std::multimap<ObjectId, ReduceSource> awaited;  // confirmed once some node has them
  std::set<ObjectId> unanswered = {};       // those in `awaited` whose homes have not answered
  bool is_planned = false;                  // True if its planner is known
  std::deque<ReduceSource> unplanned = {};  // confirmed earlier; the first may be in question
};
struct Carried {  // a source that came with its location
  ObjectId object;
  Incarnation incarnation;
  Bytes bytes;
};
struct EngineTables {
  EngineTables(const EngineConfig& config, std::uint64_t seed);

  [[nodiscard]] bool is_free_to_go(const ObjectId& id, const LocalObject& object) const;
  [[nodiscard]] bool may_spill(const ObjectId& id, const LocalObject& object) const;
  [[nodiscard]] std::optional<Rank> rank_of(const ObjectId& id, const LocalObject& object) const;
  [[nodiscard]] bool is_sole(const LocalObject& object) const;
  // Returns the shape of a source that is here; else nullptr.
  [[nodiscard]] const ObjectMeta* meta_here(const ReduceSource& source) const;
  // True if this node plans the reduce, for a client here; and the planner of any reduce.
  [[nodiscard]] bool is_planned_here(const ObjectId& target) const;
  [[nodiscard]] NodeId planner_of(const ObjectId& target) const;
  // Forgets how a reduce ended whose result has gone from here. The caller's node remembers it.
  void forget_outcome(const ObjectId& target);
  [[nodiscard]] ObjectMeta cut(ObjectMeta meta) const;
  [[nodiscard]] bool is_deleted(const ObjectId& id, Incarnation incarnation) const;
  template <typename T>
  void queue(const T& fold);  // fold.cc
  bool ask_range(const ObjectId& id, std::uint64_t size_bytes, Line line);
  // what is here, for people (listing.cc)
  [[nodiscard]] std::string full_text(const ObjectId& id, std::uint64_t size_bytes) const;
  [[nodiscard]] const std::string& holders_text() const;
  [[nodiscard]] std::string reason(const ObjectId& id, const LocalObject& object) const;
  [[nodiscard]] ObjectRow row(const ObjectId& id, const LocalObject& object) const;
  [[nodiscard]] std::vector<ObjectRow> largest_objects(std::uint64_t rows_max) const;
  [[nodiscard]] std::vector<TransferRow> largest_transfers(std::uint64_t rows_max) const;

  EngineConfig config_;
  Instant now_;
  Membership view_;
  Directory directory_;
  ReduceTree reduces_;
  Inventory inventory_;
  Rails rails_;
  Sender sender_;
  LocalObjects objects_;
  std::multimap<std::pair<ObjectId, Incarnation>, Retired> retired_;
  std::map<TransferId, Pull> pulls_;
  std::uint64_t last_transfer_;
  std::optional<Instant> progress_due_;  // while stripes come in
  std::optional<Instant> paces_due_;     // while a fold holds credit back
  std::optional<Instant> answers_due_;   // while a reduce waits to hear which sources are there
  // Pulls from nodes that this node does not reach, and when they fail. Until then the node that
  // named the sender may learn better, and it does not name two such senders in endless turns.
  std::deque<std::pair<Instant, TransferId>> out_of_reach_;
  ObjectId progress_after_;                   // the object reported last
  std::map<ObjectId, std::uint64_t> landed_;  // bytes that landed since the last report
  std::uint64_t landed_all_ = 0;
  std::uint64_t landed_rate_most_ = 0;  // recent peak, per second
  std::set<ObjectId> unsaid_;           // objects with stripes newer than their claims
  std::map<ObjectId, Folding> folds_;
  std::map<ObjectId, ObjectId> slot_keys_;  // a reservation for a workspace alone -> its target
  std::set<ObjectId> dirty_folds_;
  std::map<ObjectId, Call> calls_;
  std::map<ObjectId, Locate> locates_;
  RecentObjects tombstones_;
  AskedDeletions deletes_;
  RecentObjects gone_;     // bytes that left, and were not granted again
  RecentObjects orphans_;  // reported to their homes; repeated to new homes
  mutable std::optional<std::pair<Instant, std::string>> holders_;  // the last text
  Spills spills_;
  bool draining_ = false;
  bool drained_ = false;                     // True if it has reported that
  std::set<ObjectId> sole_;                  // while draining: objects that only this node keeps
  std::map<ObjectId, Outcome> committed_;    // of results here; those of clients here until deleted
  std::map<ObjectId, ReduceReport> failed_;  // reduces called here; until deleted
  std::map<NodeId, Member> connected_;
  std::set<NodeId> links_;  // peers whose link is up
  std::deque<Message> loop_;
  Parked parked_;
  std::map<NodeId, std::size_t> resyncs_;  // requests of each to repeat everything, in this view
  std::set<NodeId> asked_again_;  // peers that have not ended their answer to a ResyncWanted
  std::deque<Action> actions_;
  std::optional<Carried> carried_;       // for this turn
  std::optional<ObjectId> granting_;     // object whose range is requested for its grant
  std::uint64_t fold_bytes_left_ = 0;    // in this turn
  std::uint64_t fold_bytes_queued_ = 0;  // among `actions_`
  bool more_ = false;                    // True if a turn was full and there is more
  EngineStats stats_;
};

}  // namespace hoplite
