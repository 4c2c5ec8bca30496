// SPDX-License-Identifier: Apache-2.0
// The planner's state of one reduce: its request, its members and where they are, the owners of
// its stripes, its branches. Plain data, which ReduceTree changes.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/messages.h"
#include "plan/reduce/source_set.h"

namespace hoplite {

using ReduceSite = std::vector<ReduceSource>;  // the sources that one node has

struct ReduceBranch {
  std::vector<NodeId> owners;  // by stripe
  ObjectId limb;               // the branch of the root above it, or itself
  ReduceOwn own;               // as sent to its owners, except for the stripe

  [[nodiscard]] bool is_owner(NodeId node) const {
    return std::find(owners.begin(), owners.end(), node) != owners.end();
  }
};

struct ReducePlan {
  // How far the plan is while its phase is kRunning. Transitions:
  //
  //   from       event                                              to
  //   kReported  its caller's ReduceWant comes                      kWanted
  //   kWanted    its members or owners change, so the epoch rises   kRaised
  //   kRaised    the epoch is published                             kWanted
  enum class Stage : std::uint8_t {
    kReported,  // known only by reports to this new home
    kWanted,    // a caller stands behind it
    kRaised,    // so too, and its target epoch is not published yet
  };
  // Inputs that owners may have besides sources. Transitions:
  //
  //   from           event                                          to
  //   kTree          a chain is chosen, with its only owner         kUnary
  //   kTree          two levels are chosen, with all their owners   kWide
  //   kWide          a new view comes                               kTree
  //   any            two nodes of a branch can't reach each other   kNone
  //   kWide          a node dies, or has no room                    kNone
  enum class BranchUse : std::uint8_t {
    kTree,   // branches, as many as the model says
    kUnary,  // one branch, of all other nodes; for a large object
    kWide,   // branches in stripes, which all their nodes own; for a large object
    kNone,   // no branch any more
  };

  Stage stage = Stage::kReported;
  BranchUse branch_use = BranchUse::kTree;
  NodeId caller;
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t source_count = 0, count = 0;
  bool everywhere = false, deterministic = false;
  bool is_callers = false;  // planned by its caller's node, and small
  Share share;
  std::vector<ReduceSource> arrivals;
  std::set<std::uint32_t> arrived;
  std::map<std::uint32_t, std::string> lost;  // index -> why
  std::vector<ReduceSource> members;          // the first `count` arrivals that are not lost
  std::size_t considered = 0;                 // leading arrivals that choose_members has seen
  std::size_t sought = 0;                     // members that are located, or being located
  TargetEpoch target_epoch;
  std::optional<ObjectMeta> source_meta;  // of the first source located, and so of all
  std::optional<ObjectMeta> meta;         // of the result
  std::map<ObjectId, std::vector<ReduceSource>> locating;  // Locate is in flight
  std::vector<ReduceSource> located;  // members with their holders, in the order of the answers
  SourceSet indices;                  // of `located`, of which there may be thousands
  SourceSet placed;                   // of the located, those in an input or a branch
  std::vector<ReduceSource> inputs;   // what owners pull: sources, results of branches
  std::map<ObjectId, ReduceBranch> branches;
  std::map<ObjectId, std::vector<std::uint32_t>> limbs;  // -> the sources in them
  std::vector<NodeId> owners;                            // by stripe; empty: not planned
  std::map<NodeId, std::size_t> told;  // how many of `inputs` each owner knows in this epoch
  std::set<StripeIndex> folded;
  ReduceState state;

  [[nodiscard]] bool is_wanted() const { return stage != Stage::kReported; }
  [[nodiscard]] bool has_ended() const { return state.phase != ReducePhase::kRunning; }
  [[nodiscard]] bool may_branch() const { return branch_use != BranchUse::kNone; }
  [[nodiscard]] bool is_unary() const { return branch_use == BranchUse::kUnary; }
  [[nodiscard]] bool is_wide() const { return branch_use == BranchUse::kWide; }
  [[nodiscard]] NodeId holder_of(std::uint32_t index) const;  // kNoNode: not located yet
};

}  // namespace hoplite
