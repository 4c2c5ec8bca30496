// SPDX-License-Identifier: Apache-2.0
// Branches of a reduce. A branch node combines its own sources with the results of other nodes, if
// the model says that the reduce then ends sooner. The planner announces all branches of a tree at
// once, and each is pulled block by block while it is still being folded.
// A limb is a branch of the root with all branches below it. When a limb loses anything, the
// planner undoes it and places its remaining sources anew under the root's next target epoch. So a
// branch has one epoch only.
#include <algorithm>
#include <cstring>

#include "plan/reduce/reduce_shape.h"
#include "plan/reduce/reduce_tree.h"

namespace hoplite {
namespace {

// A branch may not have 16-bit floats, because they must be rounded once only; nor a fixed order,
// which knows no branches; nor a share, which is small already.
bool allows_branches(bool deterministic, const Share& share, const ObjectMeta& meta) {
  return !deterministic && !share.is_share() &&
         std::none_of(meta.parts.begin(), meta.parts.end(),
                      [](const Part& part) { return is_half(part.dtype); });
}

}  // namespace

// Places the sources that are located and not placed yet, when they are enough:
// - Tree: every source asked for is located, and the new ones are at least as many as those still
//   to come. Sources that come one by one give trees of one half, one quarter and so on, so the
//   last source waits for no other.
// - Single level: the new ones are at least as many as those still being located. This groups
//   sources of one node into one pull, and no source waits long for a slow answer.
// - Sources whose bytes come with their location: at once.
void ReduceTree::place_located(const ObjectId& target, Plan& plan, const Membership& view) {
  if (plan.placed.count() == plan.located.size()) return;
  std::vector<ReduceSource> news;
  for (const ReduceSource& source : plan.located) {
    if (!plan.placed.contains(source.index)) news.push_back(source);
  }
  const bool grows = is_tree(plan) && plan.may_branch();
  const std::size_t to_come = plan.count - plan.located.size();
  if (grows && (!plan.locating.empty() || news.size() < to_come)) return;
  if (!is_carried(plan) && news.size() < plan.locating.size()) return;
  for (const ReduceSource& source : news) plan.placed.insert(source.index);
  std::vector<Site> sites;
  std::map<NodeId, std::size_t> at;
  for (const ReduceSource& source : news) {
    // Sources at the root, or spread over several nodes, are in no branch.
    const bool is_at_root = plan.owners.size() == 1 && source.holder == plan.owners.front();
    if (!grows || is_at_root || source.holder == kNoNode) {
      plan.inputs.push_back(source);
      continue;
    }
    const auto [site, is_new] = at.emplace(source.holder, sites.size());
    if (is_new) sites.emplace_back();
    sites[site->second].push_back(source);
  }
  const auto callers = std::find_if(sites.begin(), sites.end(), [&](const Site& site) {
    return site.front().holder == plan.caller;
  });
  // The caller's node is the last of a chain, where it only sends, because it will receive the
  // result.
  if (plan.is_unary() && callers != sites.end()) std::rotate(callers, callers + 1, sites.end());
  if (sites.empty()) return;
  const std::uint32_t degree = degree_for(plan, static_cast<std::uint32_t>(sites.size()));
  const auto inputs = pull_from(target, plan, sites, degree, nullptr, view);
  plan.inputs.insert(plan.inputs.end(), inputs.begin(), inputs.end());
}

// Returns from how many of `nodes` nodes one node pulls.
std::uint32_t ReduceTree::degree_for(const Plan& plan, std::uint32_t nodes) const {
  if (!allows_branches(plan.deterministic, plan.share, *plan.meta)) return std::max(nodes, 1U);
  if (plan.is_unary()) return 1;
  if (config_.reduce_degree > 0) return config_.reduce_degree;
  // A tree is only for a reduce that its caller's node plans, except when the sources' bytes come
  // with the answers to Locate.
  const std::uint64_t size = plan.meta->size_bytes;
  const bool comes = size <= carried_bytes_max(plan.count, config_);
  if (!plan.is_callers || comes) return std::max(nodes, 1U);
  return std::max(choose_degree({.nodes = nodes,
                                 .size_bytes = size,
                                 .block_bytes = config_.block_bytes_min,
                                 .link_bytes_per_s = config_.link_bytes_per_s}),
                  1U);
}

// Returns the root of a chain for a large object, or kNoNode if stripes are better (decision 5b). A
// chain goes along the sources' nodes when all sources exist and the chain takes less time than
// stripes. Each node then receives and sends one copy, over two connections. A later source would
// add a chain at the root, so all other cases use stripes. The root is as far from the caller's
// node as any other owner.
NodeId ReduceTree::unary_root(const Plan& plan, const Membership& view) const {
  const bool may_be = !plan.everywhere && !plan.is_callers && plan.may_branch() &&
                      config_.reduce_degree <= 1 && config_.reduce_stripes == 0 &&
                      plan.meta->size_bytes > config_.inline_bytes_max &&
                      allows_branches(plan.deterministic, plan.share, *plan.meta) &&
                      plan.located.size() == plan.count;
  if (!may_be) return kNoNode;
  NodeId root = kNoNode;
  std::set<NodeId> nodes;
  for (const ReduceSource& source : plan.located) {
    if (source.holder == kNoNode) return kNoNode;  // all of it would have to come to the root
    nodes.insert(source.holder);
    const bool is_able = view.is_live(source.holder) && !view.is_draining(source.holder);
    if (is_able && source.holder != plan.caller) root = source.holder;
  }
  if (config_.reduce_degree == 1) return root;
  const bool is_shorter = is_unary_shorter({.nodes = static_cast<std::uint32_t>(nodes.size()),
                                            .size_bytes = plan.meta->size_bytes,
                                            .block_bytes = plan.meta->block_bytes,
                                            .link_bytes_per_s = config_.link_bytes_per_s});
  return is_shorter ? root : kNoNode;
}

// Falls back to stripes, because two nodes of the chain can't reach each other.
void ReduceTree::drop_unary(const ObjectId& target, Plan& plan) {
  for (const NodeId owner : plan.owners) {
    parcels_.push_back({owner, Drop{target, Incarnation{1}, false}});
  }
  cancel_branches(plan);
  plan.branch_use = BranchUse::kNone;
  plan.owners.clear();
  plan.inputs.clear();
  plan.placed = SourceSet{};
}

// Plans two levels for a large object if all its sources are located and the model says so. Returns
// false if not. This node owns no stripe, because it sends and hears hundreds of messages
// meanwhile. The caller's node owns none of the result, and of a branch only where that costs
// nothing, because it will receive the result.
bool ReduceTree::place_wide(const ObjectId& target, Plan& plan, const Membership& view) {
  const bool may_be = !plan.is_callers && plan.may_branch() && config_.reduce_degree == 0 &&
                      config_.reduce_stripes == 0 &&
                      plan.meta->size_bytes > config_.inline_bytes_max &&
                      allows_branches(plan.deterministic, plan.share, *plan.meta) &&
                      plan.located.size() == plan.count && plan.inputs.empty();
  if (!may_be) return false;
  std::map<NodeId, Site> by_node;
  for (const ReduceSource& source : plan.located) by_node[source.holder].push_back(source);
  const ReduceCase sizes{.nodes = static_cast<std::uint32_t>(by_node.size()),
                         .size_bytes = plan.meta->size_bytes,
                         .block_bytes = plan.meta->block_bytes,
                         .link_bytes_per_s = config_.link_bytes_per_s};
  const bool is_caller_able = plan.everywhere || is_telling_longer(sizes);
  std::vector<Site> able, unable;
  for (auto& [node, site] : by_node) {
    if (!view.is_live(node)) return false;
    const bool is_busy = node == config_.node || (node == plan.caller && !is_caller_able);
    const bool owns = !view.is_draining(node) && !is_busy;
    (owns ? able : unable).push_back(std::move(site));
  }
  const auto callers = std::find_if(able.begin(), able.end(), [&](const Site& site) {
    return site.front().holder == plan.caller;
  });
  if (callers != able.end()) std::rotate(callers, callers + 1, able.end());
  const WideShape shape = choose_wide(sizes, static_cast<std::uint32_t>(able.size()));
  if (shape.branches == 0) return false;
  plan.branch_use = BranchUse::kWide;
  const auto share = [&](const std::vector<Site>& sites, std::size_t i) {
    return sites.begin() + static_cast<std::ptrdiff_t>(i * sites.size() / shape.branches);
  };
  for (std::size_t i = 0; i < shape.branches; ++i) {
    std::vector<Site> sites(share(able, i), share(able, i + 1));
    sites.insert(sites.end(), share(unable, i), share(unable, i + 1));
    plan.inputs.push_back(add_wide(target, plan, sites, shape.branch_stripes, view));
  }
  // A stripe at a time, so that the first stripes are complete early.
  for (std::size_t stripe = 0; stripe < shape.branch_stripes; ++stripe) {
    for (const ReduceSource& input : plan.inputs) {
      const ReduceBranch& branch = plan.branches.at(input.object);
      tell_branch(branch, branch.owners[stripe]);
    }
  }
  const std::size_t times = shape.stripes / shape.branch_stripes;
  for (std::size_t i = 0; i < shape.stripes; ++i) {
    const std::size_t at = i / shape.branch_stripes * shape.branches / times;
    const ReduceBranch& branch = plan.branches.at(plan.inputs[at].object);
    plan.owners.push_back(branch.owners[i % shape.branch_stripes]);
  }
  raise_epoch(target, plan);
  return true;
}

// Plans a wide branch over these sites, of which the first ones own a stripe each. Returns what the
// owners of the result pull; tell_owners names the holder.
ReduceSource ReduceTree::add_wide(const ObjectId& target, Plan& plan, std::span<const Site> sites,
                                  std::uint16_t stripes, const Membership& view) {
  const ReduceSource result{.index = sites.front().front().index,
                            .object = name_branch(target, view),
                            .incarnation = Incarnation{1},
                            .holder = kNoNode,
                            .is_branch = true};
  ReduceBranch& branch = plan.branches[result.object];
  branch.limb = result.object;
  for (const Site& site : sites.first(stripes)) branch.owners.push_back(site.front().holder);
  roots_[result.object] = target;
  stats_.degree = sites.size();
  ++stats_.branches;
  std::vector<ReduceSource> inputs;
  for (const Site& site : sites) inputs.insert(inputs.end(), site.begin(), site.end());
  for (const ReduceSource& source : inputs) {
    plan.placed.insert(source.index);
    plan.limbs[result.object].push_back(source.index);
  }
  branch.own = branch_own(plan, result.object, std::move(inputs));
  branch.own.stripe_count = stripes;
  return result;
}

// Falls back to one level, which needs less of each node.
void ReduceTree::drop_wide(Plan& plan) {
  cancel_branches(plan);
  plan.branch_use = BranchUse::kNone;
  plan.owners.clear();  // chosen anew, under the next target epoch
  plan.inputs.clear();
  plan.placed = SourceSet{};
}

// Returns the inputs that the root, or a branch, pulls to have everything at these sites.
std::vector<ReduceSource> ReduceTree::pull_from(const ObjectId& target, Plan& plan,
                                                std::span<Site> sites, std::uint32_t degree,
                                                const ObjectId* limb, const Membership& view) {
  std::vector<ReduceSource> inputs;
  const std::size_t width = std::min<std::size_t>(degree, sites.size());
  for (std::size_t i = 0; i < width; ++i) {
    const std::size_t first = i * sites.size() / width;
    const std::size_t last = (i + 1) * sites.size() / width;
    if (const auto branch =
            add_branch(target, plan, sites.subspan(first, last - first), degree, limb, view)) {
      inputs.push_back(*branch);
      continue;
    }
    for (const Site& site : sites.subspan(first, last - first)) {
      inputs.insert(inputs.end(), site.begin(), site.end());
    }
  }
  return inputs;
}

// Plans a branch on the first of the nodes that is able. Returns nothing for a single node, which
// needs no branch.
std::optional<ReduceSource> ReduceTree::add_branch(const ObjectId& target, Plan& plan,
                                                   std::span<Site> sites, std::uint32_t degree,
                                                   const ObjectId* limb, const Membership& view) {
  const auto able = std::find_if(sites.begin(), sites.end(), [&](const Site& site) {
    const NodeId node = site.front().holder;
    return view.is_live(node) && !view.is_draining(node);
  });
  if (sites.size() < 2 || able == sites.end()) return std::nullopt;
  std::iter_swap(sites.begin(), able);
  const Site& own_site = sites.front();
  const ReduceSource result{.index = own_site.front().index,
                            .object = name_branch(target, view),
                            .incarnation = Incarnation{1},
                            .holder = own_site.front().holder,
                            .is_branch = true};
  ReduceBranch& branch = plan.branches[result.object];
  branch.owners = {result.holder};
  branch.limb = limb == nullptr ? result.object : *limb;
  if (limb == nullptr) {
    auto& sources = plan.limbs[result.object];
    for (const Site& site : sites) {
      for (const ReduceSource& source : site) sources.push_back(source.index);
    }
  }
  roots_[result.object] = target;
  stats_.degree = degree;
  ++stats_.branches;
  std::vector<ReduceSource> inputs = own_site;
  const auto below = pull_from(target, plan, sites.subspan(1), degree, &branch.limb, view);
  inputs.insert(inputs.end(), below.begin(), below.end());
  branch.own = branch_own(plan, result.object, std::move(inputs));
  tell_branch(branch, result.holder);
  return result;
}

// Returns what the owner of a branch with these inputs is told.
ReduceOwn ReduceTree::branch_own(const Plan& plan, const ObjectId& branch,
                                 std::vector<ReduceSource> inputs) const {
  return {.target = branch,
          .target_epoch = TargetEpoch{1},
          .op = plan.op == ReduceOp::kMean ? ReduceOp::kSum : plan.op,  // divided at the root
          .meta = cut_of(plan),
          .share = share_of(plan),
          .stripe_count = 1,
          .owned = {StripeIndex{0}},
          .source_count = plan.source_count,
          .count = static_cast<std::uint32_t>(inputs.size()),
          .deterministic = false,
          .everywhere = false,
          .members = std::move(inputs),
          .sealed = true,
          .is_branch = true};
}

// Tells the node of each stripe of the branch that it owns.
void ReduceTree::tell_branch(const ReduceBranch& branch, NodeId owner) {
  ReduceOwn own = branch.own;
  own.owned.clear();
  for (std::size_t i = 0; i < branch.owners.size(); ++i) {
    if (branch.owners[i] == owner) own.owned.emplace_back(static_cast<std::uint16_t>(i));
  }
  if (!own.owned.empty()) parcels_.push_back({owner, std::move(own)});
}

// True if the reduce is a tree when all its sources are on different nodes.
bool ReduceTree::is_tree(const Plan& plan) const {
  return degree_for(plan, plan.count) < plan.count;
}

// True if the sources' bytes come with the answers to Locate.
bool ReduceTree::is_carried(const Plan& plan) const {
  return plan.is_callers && !is_tree(plan) &&
         plan.meta->size_bytes <= carried_bytes_max(plan.count, config_);
}

// A small object is one block. In a tree it goes up in several blocks, which are ranges of it.
Share ReduceTree::share_of(const Plan& plan) const {
  if (!plan.is_callers || !is_tree(plan)) return plan.share;
  return {.source_bytes = plan.meta->size_bytes, .offset = 0, .reader = 0};
}

ObjectMeta ReduceTree::cut_of(const Plan& plan) const {
  ObjectMeta meta = *plan.meta;
  if (plan.is_callers && is_tree(plan) && config_.block_bytes_min < meta.block_bytes) {
    meta.block_bytes = static_cast<std::uint32_t>(config_.block_bytes_min);
  }
  return meta;
}

// Returns an id that is never used again and whose home is this node. It begins with the target's
// first bytes, which are the messages' trace id. Cost: O(members of the view x their logarithm).
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

// Undoes the limb, and has its sources placed anew.
void ReduceTree::undo_limb(const ObjectId& target, Plan& plan, const ObjectId& limb) {
  const auto known = plan.limbs.find(limb);
  if (known == plan.limbs.end()) return;
  for (const std::uint32_t index : known->second) plan.placed.erase(index);
  plan.limbs.erase(known);
  std::erase_if(plan.inputs, [&](const ReduceSource& input) { return input.object == limb; });
  std::erase_if(plan.branches, [&](const auto& entry) {
    if (entry.second.limb != limb) return false;
    roots_.erase(entry.first);
    cancelled_.push_back(entry.first);
    return true;
  });
  raise_epoch(target, plan);
}

// Undoes the limbs that have a branch on `node`.
void ReduceTree::undo_limbs_at(const ObjectId& target, Plan& plan, NodeId node) {
  const auto is_there = [&](const ReduceSource& source) { return source.holder == node; };
  if (plan.is_wide()) {  // each of its nodes owns a stripe
    if (std::any_of(plan.located.begin(), plan.located.end(), is_there)) drop_wide(plan);
    return;
  }
  std::set<ObjectId> gone;
  for (const auto& [id, branch] : plan.branches) {
    if (branch.is_owner(node)) gone.insert(branch.limb);
  }
  for (const ObjectId& limb : gone) undo_limb(target, plan, limb);
}

// Handles an owner's report that it can't get this one of its inputs.
void ReduceTree::lose_input(const ObjectId& target, Plan& plan, std::uint32_t index) {
  const auto input = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                                  [&](const ReduceSource& each) { return each.index == index; });
  if (input == plan.inputs.end()) return;
  if (input->is_branch) return lose_branch(target, plan, ObjectId{input->object});
  lose(target, plan, index, "all its holders are gone");
}

// Handles a branch that its reader can't get, or that can't get one of its own inputs. The owners
// then pull all sources themselves, because the two nodes may be cut off from each other for long.
void ReduceTree::lose_branch(const ObjectId& target, Plan& plan, const ObjectId& branch) {
  const auto known = plan.branches.find(branch);
  if (known == plan.branches.end()) return;
  if (plan.is_unary()) return drop_unary(target, plan);
  if (plan.is_wide()) return drop_wide(plan);
  plan.branch_use = BranchUse::kNone;
  undo_limb(target, plan, ObjectId{known->second.limb});
}

void ReduceTree::handle_branch_report(NodeId from, const ReduceReport& report,
                                      const Membership& view) {
  const ObjectId target = roots_.at(report.target);
  Plan& plan = plans_.at(target);
  if (plan.has_ended() || !plan.branches.at(report.target).is_owner(from)) return;
  if (plan.is_wide() && report.code == Code::kStoreFull) {
    drop_wide(plan);  // one level needs less room
    return advance(target, plan, view);
  }
  if (report.code != Code::kOk) return fail(target, plan, report.code, report.text);
  if (!report.lost.empty()) lose_branch(target, plan, report.target);
  advance(target, plan, view);
}

void ReduceTree::cancel_branches(Plan& plan) {
  for (const auto& [id, branch] : plan.branches) {
    roots_.erase(id);
    cancelled_.push_back(id);
  }
  plan.branches.clear();
  plan.limbs.clear();
}

// Undoes all limbs under a new view. Owners of branches forget them as well, because the node that
// planned them may have died.
void ReduceTree::end_branches(const ObjectId& target, Plan& plan) {
  if (plan.limbs.empty()) return;
  if (plan.is_wide()) {
    drop_wide(plan);
    plan.branch_use = BranchUse::kTree;
    return;
  }
  cancel_branches(plan);
  plan.inputs.clear();
  plan.placed = SourceSet{};
  if (!plan.owners.empty()) raise_epoch(target, plan);
}

}  // namespace hoplite
