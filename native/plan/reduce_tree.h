// The home's part of a reduce: who is a member (the first `count` confirmed sources, in order of
// arrival), who owns which stripe, which target epoch it is, when it is committed. A member that
// nobody holds any more is replaced by the next confirmed source under a new epoch; an owner that
// dies costs only its stripes (design decision 5; Hoplite, section 4.3). The shape here is one
// level of striped owners; depth is a parameter of the plan, not another system.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/directory.h"
#include "plan/source_set.h"

namespace hoplite {

class ReduceTree {
 public:
  explicit ReduceTree(const EngineConfig& config) : config_(config) {}

  void handle_want(NodeId from, const ReduceWant& want, const Membership& view);
  void handle_report(NodeId from, const ReduceReport& report, const Membership& view);
  void handle_located(const Located& located, const Membership& view);
  void handle_source_lost(const ObjectId& source, const Membership& view);
  void handle_node_dead(NodeId node, const Membership& view);
  void handle_link_up(NodeId node, const Membership& view);
  void handle_view(const Membership& view);
  void handle_delete(const ObjectId& target);
  // The directory shard has heard from everybody: reduces may be planned again.
  void handle_recovered(const Membership& view);

  [[nodiscard]] std::optional<Parcel> poll_parcel();
  [[nodiscard]] std::optional<ReduceSource> poll_locate();  // a member: what it is, who has it
  [[nodiscard]] std::optional<ReduceState> poll_state();    // for the directory and all it tells
  [[nodiscard]] std::optional<ObjectId> poll_cancelled();   // to be deleted
  [[nodiscard]] std::size_t plan_count() const { return plans_.size(); }
  [[nodiscard]] std::uint64_t committed_count() const { return committed_count_; }
  void check_invariants() const;

 private:
  struct Plan {
    bool wanted = false;  // a caller stands behind it; else only owners of an earlier home reported
    NodeId caller;
    ReduceOp op = ReduceOp::kSum;
    std::uint32_t source_count = 0, count = 0;
    bool everywhere = false, deterministic = false;
    std::vector<ReduceSource> arrivals;
    std::set<std::uint32_t> arrived;
    std::map<std::uint32_t, std::string> lost;  // index -> why
    TargetEpoch target_epoch;
    Share share;
    std::optional<ObjectMeta> source_meta;  // of the first one located: all others have it, too
    std::optional<ObjectMeta> meta;         // of the result
    std::set<ObjectId> locating;            // asked for, and not answered yet
    std::vector<ReduceSource> located;   // members with their holders, in the order of the answers
    SourceSet indices;                   // of `located`, of which there may be thousands
    std::vector<NodeId> owners;          // by stripe; empty: not planned
    std::map<NodeId, std::size_t> told;  // how many of `located` each owner knows, in this epoch
    std::set<StripeIndex> folded;
    ReduceState state;

    [[nodiscard]] bool has_ended() const { return state.phase != ReducePhase::kRunning; }
    [[nodiscard]] NodeId located_at(std::uint32_t index) const;
  };

  void advance(const ObjectId& target, Plan& plan, const Membership& view);
  void choose_owners(const ObjectId& target, Plan& plan, const Membership& view);
  void raise_epoch(const ObjectId& target, Plan& plan);
  void locate_members(Plan& plan, const std::vector<ReduceSource>& members);
  void tell_owners(const ObjectId& target, Plan& plan);
  bool take_in(const ObjectId& target, Plan& plan, const Located& located);
  void fail(const ObjectId& target, Plan& plan, Code code, std::string why);
  void publish(const ObjectId& target, Plan& plan);
  void lose(const ObjectId& target, Plan& plan, std::uint32_t index, std::string why);
  [[nodiscard]] std::vector<NodeId> able_nodes(const Plan& plan, const Membership& view) const;
  [[nodiscard]] std::vector<ReduceSource> members_of(const Plan& plan) const;

  EngineConfig config_;
  bool recovering_ = false;
  std::map<ObjectId, Plan> plans_;
  std::deque<Parcel> parcels_;
  std::deque<ReduceSource> locates_;
  std::deque<ReduceState> states_;
  std::deque<ObjectId> cancelled_;
  std::uint64_t committed_count_ = 0;
};

}  // namespace hoplite
