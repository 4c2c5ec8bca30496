// SPDX-License-Identifier: Apache-2.0
// The home's part of a reduce: its members (the first `count` confirmed sources, in order of
// arrival), the owner of each stripe, the target epoch, the commit. If no node holds a member any
// more, the next confirmed source replaces it under a new epoch. A dead owner costs only its
// stripes (design decision 5; Hoplite, section 4.3). Owners pull sources or branches: sources
// combined on one node, in one view (reduce_branches.cc). A small reduce is planned by its caller's
// node instead.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "plan/directory/directory.h"
#include "plan/reduce/reduce_plan.h"

namespace hoplite {

struct ReduceStats {
  std::uint64_t committed = 0;
  std::uint64_t branched = 0;  // of the committed ones, those that had branches
  std::uint64_t branches = 0;  // planned ones
  std::uint64_t degree = 0;    // of the last reduce that has or had branches
};

class ReduceTree {
 public:
  explicit ReduceTree(const EngineConfig& config) : config_(config) {}

  void handle_want(NodeId from, const ReduceWant& want, const Membership& view);
  void handle_report(NodeId from, const ReduceReport& report, const Membership& view);
  void handle_located(const Located& located, const Membership& view);
  // A sixteenth of the located members is folded. A few owners without a source give up stripes.
  void handle_begun(const ObjectId& target, const Membership& view);
  void handle_source_lost(const ObjectId& source, const Membership& view);
  void handle_node_dead(NodeId node, bool is_certain, const Membership& view);
  void handle_link_up(NodeId node, const Membership& view);
  void handle_view(const Membership& view);
  void handle_delete(const ObjectId& target);
  void forget(const ObjectId& target);            // the caller, which planned it, has its answer
  void handle_recovered(const Membership& view);  // the shard has heard from all nodes

  [[nodiscard]] std::optional<Parcel> poll_parcel();
  [[nodiscard]] std::optional<Locate> poll_locate();       // members to locate
  [[nodiscard]] std::optional<ReduceState> poll_state();   // for the directory, holders, waiters
  [[nodiscard]] std::optional<ObjectId> poll_cancelled();  // to be deleted
  [[nodiscard]] std::size_t plan_count() const { return plans_.size(); }
  [[nodiscard]] std::size_t seeking_count() const { return seeking_.size(); }
  [[nodiscard]] const ReduceStats& stats() const { return stats_; }
  void check_invariants() const;

 private:
  using Plan = ReducePlan;
  using Site = ReduceSite;
  using Stage = Plan::Stage;
  using BranchUse = Plan::BranchUse;
  using Plans = std::map<ObjectId, Plan>;
  void refuse(const ObjectId& target, const Plan& plan, NodeId second);
  void advance(const ObjectId& target, Plan& plan, const Membership& view);
  std::vector<Plans::value_type*> seekers_of(const ObjectId& source);
  void choose_owners(const ObjectId& target, Plan& plan, const Membership& view);
  void raise_epoch(const ObjectId& target, Plan& plan);
  static void choose_members(Plan& plan);
  void locate_members(const ObjectId& target, Plan& plan);
  bool take_in_found(const ObjectId& target, Plan& plan, const Membership& view);
  void tell_owners(const ObjectId& target, Plan& plan);
  bool take_in(const ObjectId& target, Plan& plan, const Located& located, const Site& members);
  void fail(const ObjectId& target, Plan& plan, Code code, std::string why);
  void end(const ObjectId& target, Plan& plan, Code code, std::string text);
  void publish(const ObjectId& target, Plan& plan);
  void lose(const ObjectId& target, Plan& plan, std::uint32_t index, std::string why);
  // branches (reduce_branches.cc)
  void place_located(const ObjectId& target, Plan& plan, const Membership& view);
  std::vector<ReduceSource> pull_from(const ObjectId& target, Plan& plan, std::span<Site> sites,
                                      std::uint32_t degree, const ObjectId* limb,
                                      const Membership& view);
  std::optional<ReduceSource> add_branch(const ObjectId& target, Plan& plan, std::span<Site> sites,
                                         std::uint32_t degree, const ObjectId* limb,
                                         const Membership& view);
  void undo_limb(const ObjectId& target, Plan& plan, const ObjectId& limb);
  void undo_limbs_at(const ObjectId& target, Plan& plan, NodeId node);
  bool place_wide(const ObjectId& target, Plan& plan, const Membership& view);
  ReduceSource add_wide(const ObjectId& target, Plan& plan, std::span<const Site> sites,
                        std::uint16_t stripes, const Membership& view);
  void drop_wide(Plan& plan);
  [[nodiscard]] ReduceOwn branch_own(const Plan& plan, const ObjectId& branch,
                                     std::vector<ReduceSource> inputs) const;
  void tell_branch(const ReduceBranch& branch, NodeId owner);
  [[nodiscard]] NodeId unary_root(const Plan& plan, const Membership& view) const;
  void drop_unary(const ObjectId& target, Plan& plan);
  void lose_input(const ObjectId& target, Plan& plan, std::uint32_t index);
  void lose_branch(const ObjectId& target, Plan& plan, const ObjectId& branch);
  void handle_branch_report(NodeId from, const ReduceReport& report, const Membership& view);
  void cancel_branches(Plan& plan);
  void end_branches(const ObjectId& target, Plan& plan);
  [[nodiscard]] ObjectId name_branch(const ObjectId& target, const Membership& view);
  [[nodiscard]] std::uint32_t degree_for(const Plan& plan, std::uint32_t nodes) const;
  [[nodiscard]] bool is_tree(const Plan& plan) const;
  [[nodiscard]] bool is_carried(const Plan& plan) const;
  [[nodiscard]] Share share_of(const Plan& plan) const;
  [[nodiscard]] ObjectMeta cut_of(const Plan& plan) const;
  [[nodiscard]] bool is_ours(const Plan& plan) const;  // planned here, not by another caller's node
  [[nodiscard]] std::vector<NodeId> able_nodes(const Plan& plan, const Membership& view) const;

  EngineConfig config_;
  bool recovering_ = false;
  Plans plans_;
  std::set<ObjectId> seeking_;  // plans that may wait for a Located
  std::deque<Parcel> parcels_;
  std::deque<std::pair<ObjectId, ReduceSource>> locates_;  // by target
  std::deque<ReduceState> states_;
  std::deque<ObjectId> cancelled_;
  std::map<ObjectId, ObjectId> roots_;  // branch -> target
  std::uint64_t last_branch_ = 0;
  ReduceStats stats_;
};

}  // namespace hoplite
