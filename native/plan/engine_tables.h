// What one node's engine knows: its machines, and the tables between them. Only Engine::State
// changes them. Invariants: Engine::State::check_invariants. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/asked_deletions.h"
#include "plan/directory.h"
#include "plan/engine.h"
#include "plan/folding.h"
#include "plan/inventory.h"
#include "plan/local_object.h"
#include "plan/parked.h"
#include "plan/pull.h"
#include "plan/rails.h"
#include "plan/recent.h"
#include "plan/reduce_tree.h"
#include "plan/sender.h"
#include "plan/spilling.h"

namespace hoplite {

struct Retired {  // bytes that no name leads to any more, still mapped, being sent or written
  Extent extent;
  std::map<ClientId, std::uint32_t> pins;
  std::optional<Waiter> writer;  // of a put that was dropped: its client does not know yet
};
struct Outcome {  // of a reduce that is committed
  TargetEpoch target_epoch;
  std::vector<std::uint32_t> members;
  NodeId caller;
};
struct Call {  // the caller's side of a reduce
  Waiter waiter;
  ReduceWant want;                                // everything confirmed so far
  std::multimap<ObjectId, ReduceSource> awaited;  // to be confirmed once some node has them
  std::set<ObjectId> unanswered = {};  // of `awaited`, of which not even their homes have spoken
  bool is_planned = false;             // it is known who plans it
  std::deque<ReduceSource> unplanned = {};  // confirmed before; the first one may be asked for
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
  // Of a source that is here; else nullptr.
  [[nodiscard]] const ObjectMeta* meta_here(const ReduceSource& source) const;
  // A reduce of a client here, that this node plans; and who plans any other.
  [[nodiscard]] bool is_planned_here(const ObjectId& target) const;
  [[nodiscard]] NodeId planner_of(const ObjectId& target) const;
  // The result is not here any more. The caller's node remembers that it is committed.
  void forget_outcome(const ObjectId& target);
  [[nodiscard]] ObjectMeta cut(ObjectMeta meta) const;
  [[nodiscard]] bool is_deleted(const ObjectId& id, Incarnation incarnation) const;
  template <typename T>
  void queue(const T& fold);  // engine_fold.cc
  bool ask_range(const ObjectId& id, std::uint64_t size_bytes, Line line);
  // what is here, for people (engine_listing.cc)
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
  // Pulls from nodes that we don't reach, and when they fail: whoever named the sender may know
  // better by then, and names no two of them in turns for ever.
  std::deque<std::pair<Instant, TransferId>> out_of_reach_;
  ObjectId progress_after_;                   // the last one whose turn it was
  std::map<ObjectId, std::uint64_t> landed_;  // bytes that came of each since the last progress
  std::uint64_t landed_all_ = 0;
  std::uint64_t landed_rate_most_ = 0;  // per second, of late
  std::set<ObjectId> unsaid_;           // stripes of them have come since their last claims
  std::map<ObjectId, Folding> folds_;
  std::map<ObjectId, ObjectId> slot_keys_;  // a reservation for a workspace alone -> its target
  std::set<ObjectId> dirty_folds_;
  std::map<ObjectId, Call> calls_;
  std::map<ObjectId, Locate> locates_;
  RecentObjects tombstones_;
  AskedDeletions deletes_;
  RecentObjects gone_;     // bytes that were here, and not granted to us again since
  RecentObjects orphans_;  // said to their homes; repeated to new ones
  mutable std::optional<std::pair<Instant, std::string>> holders_;  // as they were told last
  Spills spills_;
  bool draining_ = false;
  bool drained_ = false;                     // and it was said
  std::set<ObjectId> sole_;                  // while draining: what no other node keeps
  std::map<ObjectId, Outcome> committed_;    // of results here; of our clients' until deleted
  std::map<ObjectId, ReduceReport> failed_;  // reduces that were asked for here; until deleted
  std::map<NodeId, Member> connected_;
  std::set<NodeId> links_;  // peers whose link is up
  std::deque<Message> loop_;
  Parked parked_;
  std::map<NodeId, std::size_t> resyncs_;  // how often each has asked for everything in this view
  std::set<NodeId> asked_again_;  // peers that have not ended their answer to a ResyncWanted
  std::deque<Action> actions_;
  std::optional<Carried> carried_;       // for this turn
  Bytes payload_in_;                     // of the message being received
  std::optional<ObjectId> granting_;     // whose range is asked for while its grant is handled
  std::uint64_t fold_bytes_left_ = 0;    // in this turn
  std::uint64_t fold_bytes_queued_ = 0;  // among `actions_`
  bool more_ = false;                    // a turn's worth was done and there is more
  EngineStats stats_;
};

}  // namespace hoplite
