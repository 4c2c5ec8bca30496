// SPDX-License-Identifier: Apache-2.0
// The members of the current view and its epoch, and the home of each object. Rendezvous hashing: a
// view that changes by one member moves only that member's share of the directory (design decision
// 2). Owned by the engine; single-threaded.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

class Membership {
 public:
  explicit Membership(NodeId self) : self_(self) {}

  // Returns false for a view that is not newer than ours, or that we are not a member of.
  bool handle_view(Epoch epoch, const std::vector<Member>& members);
  // This incarnation of the node is over: is_live() is false although the view still lists it. If
  // that isn't certain, other nodes may still reach it, until a view leaves it out.
  void handle_dead(NodeId node, Incarnation incarnation, bool is_certain);

  // The node leaves on purpose: it is given no more objects and stripes to own.
  void handle_draining(NodeId node, bool draining);

  [[nodiscard]] Epoch epoch() const { return epoch_; }
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] const Member* find(NodeId node) const;
  [[nodiscard]] bool is_live(NodeId node) const;
  // True if other nodes may reach it, even if this node can't.
  [[nodiscard]] bool may_live(NodeId node) const;
  [[nodiscard]] bool is_draining(NodeId node) const { return draining_.contains(node); }
  // Cost: O(members). Without a view this node is every object's home.
  [[nodiscard]] NodeId home_of(const ObjectId& object) const;
  // True if this node is the home. Cost: O(members) if so, a few of them if not.
  [[nodiscard]] bool is_home_of(const ObjectId& object) const;

 private:
  NodeId self_;
  Epoch epoch_;
  std::vector<Member> members_;  // oldest first
  struct Death {
    Incarnation newest;   // life that we have parted from
    Incarnation certain;  // and that is over
  };
  [[nodiscard]] Incarnation life_of(NodeId node) const;  // in the view; 0: not in it

  std::map<NodeId, Death> dead_;
  std::set<NodeId> draining_;
};

// Rendezvous hashing: of several nodes the one with the greatest weight is the object's.
std::uint64_t weight_of(const ObjectId& object, NodeId node);

}  // namespace hoplite
