// Depth: sources that are there at the same time become branches of the reduce, if the model says
// that it ends sooner. Whatever a branch loses, it is undone, and what is left of its sources is
// placed anew; so no epoch of one is known to another. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "plan/reduce_shape.h"
#include "plan/reduce_tree.h"

namespace hoplite {
namespace {

// 16-bit floats are rounded once, and a fixed order knows of no branches. A share is small already.
bool may_branch(bool deterministic, const Share& share, const ObjectMeta& meta) {
  return !deterministic && !share.is_share() &&
         std::none_of(meta.parts.begin(), meta.parts.end(),
                      [](const Part& part) { return is_half(part.dtype); });
}

}  // namespace

// Whenever as many members are new as are still being located: not one message for each of many
// that come together, and nobody waits long for one that is slow to be found. A tree of a given
// degree waits for all.
void ReduceTree::place_located(const ObjectId& target, Plan& plan, const Membership& view) {
  const std::size_t unplaced = plan.located.size() - plan.placed.count();
  if (unplaced == 0 || unplaced < plan.locating.size()) return;
  std::vector<ReduceSource> news;
  for (const ReduceSource& source : plan.located) {
    if (!plan.placed.contains(source.index)) news.push_back(source);
  }
  const std::uint32_t degree = degree_for(plan, news.size(), view);
  const bool is_given = degree < plan.count && (plan.degree > 0 || config_.reduce_degree > 0);
  if (is_given && plan.located.size() < plan.count) return;
  for (const ReduceSource& source : news) plan.placed.insert(source.index);
  const std::size_t together = std::max(degree, 2U);
  if (news.size() <= together) {
    plan.width = static_cast<std::uint32_t>(news.size());
    plan.inputs.insert(plan.inputs.end(), news.begin(), news.end());
    return;
  }
  if (!plan.is_branch) stats_.degree = degree;
  const auto sizes = split_sources(static_cast<std::uint32_t>(news.size()), degree);
  plan.width = static_cast<std::uint32_t>(sizes.size());
  auto first = news.begin();
  for (const std::uint32_t size : sizes) {
    const auto last = first + size;
    if (size == 1) {
      plan.inputs.push_back(*first);
    } else {
      add_branch(target, plan, {first, last}, degree, view);
    }
    first = last;
  }
}

std::uint32_t ReduceTree::degree_for(const Plan& plan, std::size_t sources,
                                     const Membership& view) const {
  const auto count = static_cast<std::uint32_t>(sources);
  if (!may_branch(plan.deterministic, plan.share, *plan.meta)) return plan.count;
  if (plan.degree > 0) return plan.degree;
  if (config_.reduce_degree > 0) return config_.reduce_degree;
  // Stripes use every node's links, and each branch would be a copy more of a large object.
  if (plan.meta->size_bytes > config_.inline_bytes_max) return plan.count;
  return choose_degree({.sources = count,
                        .nodes = std::max(static_cast<std::uint32_t>(view.members().size()), 1U),
                        .size_bytes = plan.meta->size_bytes});
}

void ReduceTree::add_branch(const ObjectId& target, Plan& plan, std::vector<ReduceSource> sources,
                            std::uint32_t degree, const Membership& view) {
  const ObjectId id = name_branch(target, view);
  Plan& branch = plans_[id];
  Branch& known = plan.branches[id];
  for (const ReduceSource& source : sources) {
    known.sources.push_back(source.index);
    branch.arrived.insert(source.index);
    branch.indices.insert(source.index);
  }
  branch.is_branch = branch.wanted = true;
  branch.parent = target;
  branch.degree = degree;
  branch.caller = config_.node;
  branch.op = plan.op == ReduceOp::kMean ? ReduceOp::kSum : plan.op;  // divided at the root
  branch.source_count = plan.source_count;
  branch.count = static_cast<std::uint32_t>(sources.size());
  branch.source_meta = branch.meta = plan.meta;
  branch.arrivals = sources;
  branch.located = std::move(sources);
  advance(id, branch, view);
}

// A name of its own for ever, with the same first bytes, which are the messages' trace id, and the
// same home. Cost: O(members of the view x their logarithm).
ObjectId ReduceTree::name_branch(const ObjectId& target, const Membership& view) {
  static_assert(kObjectIdBytes == 28);
  ObjectId id = target;
  std::memcpy(id.bytes.data() + 16, &config_.node.value, 8);
  std::memcpy(id.bytes.data() + 24, &config_.incarnation.value, 4);
  do {
    ++last_branch_;
    std::memcpy(id.bytes.data() + 8, &last_branch_, 8);
  } while (!view.is_home_of(id));
  return id;
}

// On the node of its first source; in a chain on that of the last one, which is added to all
// others.
NodeId ReduceTree::branch_owner(const Plan& plan, const Membership& view) const {
  std::vector<ReduceSource> sources = plan.located;
  if (plan.degree == 1) std::reverse(sources.begin(), sources.end());
  const auto able = std::find_if(sources.begin(), sources.end(), [&](const ReduceSource& source) {
    return source.holder != kNoNode && view.is_live(source.holder) &&
           !view.is_draining(source.holder);
  });
  return able == sources.end() ? plan.caller : able->holder;
}

bool ReduceTree::is_sealed(const Plan& plan) {
  return plan.placed.count() == plan.count &&
         std::all_of(plan.branches.begin(), plan.branches.end(),
                     [](const auto& branch) { return branch.second.committed; });
}

// Its result is a member like any other, and it is known who has it.
void ReduceTree::finish_branch(const ObjectId& branch, const Plan& plan, const Membership& view) {
  const auto parent = plans_.find(plan.parent);
  if (parent == plans_.end()) return;
  const auto known = parent->second.branches.find(branch);
  if (known == parent->second.branches.end()) return;
  known->second.committed = true;
  parent->second.inputs.push_back({.index = known->second.sources.front(),
                                   .object = branch,
                                   .incarnation = Incarnation{1},
                                   .holder = plan.owners.front()});
  advance(parent->first, parent->second, view);
}

// Its sources are placed anew.
void ReduceTree::undo_branch(const ObjectId& target, Plan& plan, const ObjectId& branch) {
  const auto known = plan.branches.find(branch);
  if (known == plan.branches.end()) return;
  for (const std::uint32_t index : known->second.sources) plan.placed.erase(index);
  std::erase_if(plan.inputs, [&](const ReduceSource& input) { return input.object == branch; });
  const bool was_told = known->second.committed;
  if (const auto it = plans_.find(branch); it != plans_.end()) it->second.wanted = false;
  cancelled_.push_back(branch);
  plan.branches.erase(known);
  if (was_told) raise_epoch(target, plan);
}

void ReduceTree::undo_branch_with(const ObjectId& target, Plan& plan, std::uint32_t source) {
  for (const auto& [id, branch] : plan.branches) {
    const auto& sources = branch.sources;
    if (std::find(sources.begin(), sources.end(), source) == sources.end()) continue;
    return undo_branch(target, plan, ObjectId{id});
  }
}

// An owner says that nobody has this member any more: a source, or the result of a branch.
void ReduceTree::lose_member(const ObjectId& target, Plan& plan, std::uint32_t index,
                             const Membership& view) {
  ObjectId branch;
  bool is_source = true;
  for (const auto& [id, known] : plan.branches) {
    if (!known.committed || known.sources.front() != index) continue;
    is_source = false;
    branch = id;
  }
  if (!plan.is_branch) {
    if (is_source) return lose(target, plan, index, "all its holders are gone");
    return undo_branch(target, plan, branch);
  }
  const auto root = root_of(target, &branch);
  if (root == plans_.end()) return;
  if (is_source) lose(root->first, root->second, index, "all its holders are gone");
  undo_branch(root->first, root->second, branch);
  advance(root->first, root->second, view);
}

// What a branch is part of in the end, and by which child of it; nothing if it is being cancelled.
std::map<ObjectId, ReduceTree::Plan>::iterator ReduceTree::root_of(const ObjectId& branch,
                                                                   ObjectId* child) {
  auto it = plans_.find(branch);
  while (it != plans_.end() && it->second.is_branch) {
    if (!it->second.wanted) return plans_.end();
    if (child != nullptr) *child = it->first;
    it = plans_.find(it->second.parent);
  }
  return it;
}

void ReduceTree::cancel_branches(Plan& plan) {
  for (const auto& [id, branch] : plan.branches) {
    if (const auto it = plans_.find(id); it != plans_.end()) it->second.wanted = false;
    cancelled_.push_back(id);
  }
  plan.branches.clear();
}

// Owners of branches forget them under a new view as well, for the home may be the one that died.
void ReduceTree::end_branches_of_older_view(const Membership& view) {
  std::erase_if(plans_, [&](const auto& entry) {
    if (entry.second.is_branch) cancelled_.push_back(entry.first);
    return entry.second.is_branch || view.home_of(entry.first) != config_.node;
  });
  for (auto& [target, plan] : plans_) {
    if (plan.branches.empty()) continue;
    plan.branches.clear();
    plan.inputs.clear();
    plan.placed = SourceSet{};
    if (!plan.owners.empty()) raise_epoch(target, plan);
  }
}

}  // namespace hoplite
