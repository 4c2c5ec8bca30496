// The home's part of a reduce: who is a member (the first `count` confirmed sources, in order of
// arrival), who owns which stripe, which target epoch it is, when it is committed. A member that
// nobody holds any more is replaced by the next confirmed source under a new epoch; an owner that
// dies costs only its stripes (design decision 5; Hoplite, section 4.3). Members are sources or
// branches: reduces of some of the sources, planned here as any other, each of which has its own
// target, whose home this is as well, and one owner (reduce_branches.cc). A branch lives in one
// view, and no longer than what it is a branch of. SPDX-License-Identifier: Apache-2.0
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

struct ReduceStats {
  std::uint64_t committed = 0;  // without branches
  std::uint64_t branched = 0;   // of them, those that had branches
  std::uint64_t branches = 0;   // committed ones
  std::uint64_t degree = 0;     // of the last reduce that has or had branches
};

class ReduceTree {
 public:
  explicit ReduceTree(const EngineConfig& config) : config_(config) {}

  void handle_want(NodeId from, const ReduceWant& want, const Membership& view);
  void handle_report(NodeId from, const ReduceReport& report, const Membership& view);
  void handle_located(const Located& located, const Membership& view);
  // An owner has folded a sixteenth of all members that are located. Owners whose source still
  // isn't there give their stripes up, if they are few.
  void handle_begun(const ObjectId& target, const Membership& view);
  void handle_source_lost(const ObjectId& source, const Membership& view);
  void handle_node_dead(NodeId node, bool is_certain, const Membership& view);
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
  [[nodiscard]] const ReduceStats& stats() const { return stats_; }
  void check_invariants() const;

 private:
  struct Branch {
    std::vector<std::uint32_t> sources;  // it is a member by the index of the first of them
    bool committed = false;
  };
  struct Plan {
    bool wanted = false;  // a caller stands behind it; else only owners of an earlier home reported
    NodeId caller;
    ReduceOp op = ReduceOp::kSum;
    std::uint32_t source_count = 0, count = 0;
    bool everywhere = false, deterministic = false;
    std::vector<ReduceSource> arrivals;
    std::vector<ReduceSource> members;  // the first `count` of them that are not lost
    std::size_t considered = 0;         // arrivals that are members, or were, or are lost
    std::size_t sought = 0;             // members that are located, or being located
    std::set<std::uint32_t> arrived;
    std::map<std::uint32_t, std::string> lost;  // index -> why
    TargetEpoch target_epoch;
    Share share;
    std::optional<ObjectMeta> source_meta;  // of the first one located: all others have it, too
    std::optional<ObjectMeta> meta;         // of the result
    std::map<ObjectId, std::vector<ReduceSource>> locating;  // asked for, and not answered yet
    std::vector<ReduceSource> located;  // members with their holders, in the order of the answers
    SourceSet indices;                  // of `located`, of which there may be thousands
    SourceSet placed;                   // of them, those that are inputs or in a branch
    std::vector<ReduceSource> inputs;   // what owners pull: sources, results of branches
    std::map<ObjectId, Branch> branches;
    bool is_branch = false;
    ObjectId parent;                     // of a branch
    std::uint32_t degree = 0;            // members per node of the tree; 0: by the model
    std::uint32_t width = 0;             // inputs at most
    std::vector<NodeId> owners;          // by stripe; empty: not planned
    std::map<NodeId, std::size_t> told;  // how many of `inputs` each owner knows, in this epoch
    std::set<StripeIndex> folded;
    ReduceState state;

    [[nodiscard]] bool has_ended() const { return state.phase != ReducePhase::kRunning; }
    [[nodiscard]] NodeId located_at(std::uint32_t index) const;
  };

  void advance(const ObjectId& target, Plan& plan, const Membership& view);
  void choose_owners(const ObjectId& target, Plan& plan, const Membership& view);
  void raise_epoch(const ObjectId& target, Plan& plan);
  static void choose_members(Plan& plan);
  void locate_members(Plan& plan);
  void tell_owners(const ObjectId& target, Plan& plan);
  bool take_in(const ObjectId& target, Plan& plan, const Located& located,
               const std::vector<ReduceSource>& members);
  void fail(const ObjectId& target, Plan& plan, Code code, std::string why);
  void publish(const ObjectId& target, Plan& plan);
  void lose(const ObjectId& target, Plan& plan, std::uint32_t index, std::string why);
  // branches (reduce_branches.cc)
  void place_located(const ObjectId& target, Plan& plan, const Membership& view);
  void add_branch(const ObjectId& target, Plan& plan, std::vector<ReduceSource> sources,
                  std::uint32_t degree, const Membership& view);
  void finish_branch(const ObjectId& branch, const Plan& plan, const Membership& view);
  void undo_branch(const ObjectId& target, Plan& plan, const ObjectId& branch);
  void undo_branch_with(const ObjectId& target, Plan& plan, std::uint32_t source);
  void lose_member(const ObjectId& target, Plan& plan, std::uint32_t index, const Membership& view);
  void cancel_branches(Plan& plan);
  void end_branches_of_older_view(const Membership& view);
  [[nodiscard]] ObjectId name_branch(const ObjectId& target, const Membership& view);
  [[nodiscard]] std::map<ObjectId, Plan>::iterator root_of(const ObjectId& branch, ObjectId* child);
  [[nodiscard]] NodeId branch_owner(const Plan& plan, const Membership& view) const;
  [[nodiscard]] std::uint32_t degree_for(const Plan& plan, std::size_t sources,
                                         const Membership& view) const;
  [[nodiscard]] static bool is_sealed(const Plan& plan);
  [[nodiscard]] std::vector<NodeId> able_nodes(const Plan& plan, const Membership& view) const;

  EngineConfig config_;
  bool recovering_ = false;
  std::map<ObjectId, Plan> plans_;
  std::deque<Parcel> parcels_;
  std::deque<ReduceSource> locates_;
  std::deque<ReduceState> states_;
  std::deque<ObjectId> cancelled_;
  std::uint64_t last_branch_ = 0;
  ReduceStats stats_;
};

}  // namespace hoplite
