// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/reduce_tree.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "plan/reduce/reduce_shape.h"

namespace hoplite {
namespace {

// Nodes with late sources own nothing if an allreduce then takes at most an eighth more where the
// sources come at once after all (decision 5e). That is one node of three, and one of five of many.
constexpr std::uint32_t kRegretPart = 8;

// How many copies the owners receive. A node that can combine its sources sends one copy. A source
// that no single node holds whole, or that is not located yet, counts as one copy.
std::size_t copies_of(const std::vector<ReduceSource>& located, std::size_t count, bool combines) {
  std::set<NodeId> nodes;
  std::size_t spread = 0;
  for (const ReduceSource& source : located) {
    if (source.holder == kNoNode) ++spread;
    if (source.holder != kNoNode) nodes.insert(source.holder);
  }
  const std::size_t late = std::max(count, located.size()) - located.size();
  return (combines ? nodes.size() + spread : located.size()) + late;
}

}  // namespace

void ReduceTree::handle_want(NodeId from, const ReduceWant& want, const Membership& view) {
  Plan& plan = plans_[want.target];
  if (plan.is_wanted() && plan.caller != from) return refuse(want.target, plan, from);
  if (!plan.is_wanted()) plan.stage = Stage::kWanted;
  plan.caller = from;
  plan.op = want.op;
  // The count never shrinks: a want that names fewer sources is untrue, because known members may
  // lie beyond it.
  plan.source_count = std::max(plan.source_count, want.source_count);
  if (std::exchange(plan.count, want.count) != want.count) {  // members are chosen anew
    plan.members.clear();
    plan.locating.clear();
    plan.considered = plan.sought = 0;
  }
  plan.everywhere = want.everywhere;
  plan.deterministic = want.deterministic;
  plan.share = want.share;
  if (want.share.is_share()) {
    plan.meta = want.meta;
  } else if (want.meta.block_bytes > 0 && !plan.source_meta) {
    plan.source_meta = want.meta;
  }
  if (want.is_callers) {
    plan.is_callers = true;
    plan.source_meta = plan.meta = want.meta;
    plan.state.target = want.target;
    plan.state.caller = from;
    if (!is_ours(plan) && !plan.has_ended()) states_.push_back(plan.state);  // one is under way
  }
  plan.target_epoch = std::max(plan.target_epoch, want.seen);
  for (const ReduceSource& source : want.confirmed) {
    if (source.index >= want.source_count || !plan.arrived.insert(source.index).second) continue;
    if (source.failed) {
      plan.lost.emplace(source.index, "it failed");
    } else {
      ReduceSource& arrived = plan.arrivals.emplace_back(source);
      arrived.is_branch = false;  // branches are the planner's own
    }
  }
  if (plan.has_ended()) {
    parcels_.push_back({from, plan.state});  // repeats an answer that was lost
    return;
  }
  advance(want.target, plan, view);
}

// Another node reduces into this target. The state that names its caller says so.
void ReduceTree::refuse(const ObjectId& target, const Plan& plan, NodeId second) {
  ReduceState state;
  state.target = target;
  state.caller = plan.caller;
  parcels_.push_back({second, std::move(state)});
}

void ReduceTree::handle_report(NodeId from, const ReduceReport& report, const Membership& view) {
  if (roots_.contains(report.target)) return handle_branch_report(from, report, view);
  const bool is_callers = report.code != Code::kOk && report.caller == from;
  const auto drop = [&] { parcels_.push_back({from, Drop{report.target, Incarnation{1}, false}}); };
  if (!recovering_ && !plans_.contains(report.target) && report.committed.empty() && !is_callers) {
    return drop();  // its caller is gone
  }
  Plan& plan = plans_[report.target];
  if (!report.committed.empty()) {
    if (plan.state.phase == ReducePhase::kCommitted) return;
    if (!plan.is_wanted()) plan.caller = report.caller;
    plan.target_epoch = report.target_epoch;
    plan.state.phase = ReducePhase::kCommitted;
    plan.state.members = report.committed;
    return publish(report.target, plan);
  }
  if (is_callers) {  // it heard of a failure from an earlier home, or planned the reduce
    const bool is_committed = plan.state.phase == ReducePhase::kCommitted;
    if (is_committed || (plan.is_wanted() && plan.caller != from)) return;
    plan.caller = from;
    plan.target_epoch = std::max(plan.target_epoch, report.target_epoch);
    plan.lost.clear();  // the caller's planner knows all of them
    for (const std::uint32_t index : report.lost) {
      if (index < kReduceSourcesMax) plan.lost.emplace(index, "");  // so a frame holds them all
    }
    return end(report.target, plan, report.code, report.text);
  }
  if (plan.state.phase == ReducePhase::kFailed) return drop();  // it missed the failure
  if (plan.is_wanted() && !is_ours(plan)) return;
  if (!plan.is_wanted() ||
      plan.owners.empty()) {  // an owner of an earlier home: a later epoch follows
    plan.target_epoch = std::max(plan.target_epoch, report.target_epoch);
    plan.told.emplace(from, 0);
    return;
  }
  if (plan.has_ended() || plan.owners.empty()) return;
  if (std::ranges::find(plan.owners, from) == plan.owners.end())
    return drop();  // it missed its Drop
  if (report.code == Code::kStoreFull && plan.is_wide()) {
    drop_wide(plan);  // one level needs less room
    return advance(report.target, plan, view);
  }
  // Several owners may lack the room for two levels, and one has said so already.
  const bool is_of_past = report.target_epoch < plan.target_epoch;
  if (report.code == Code::kStoreFull && is_of_past && plan.branch_use == BranchUse::kNone) return;
  if (report.code != Code::kOk) return fail(report.target, plan, report.code, report.text);
  if (report.target_epoch == plan.target_epoch) {  // else its next report is of this epoch
    for (const std::uint32_t index : report.lost) lose_input(report.target, plan, index);
  }
  if (report.target_epoch == plan.target_epoch) {
    for (const StripeIndex stripe : report.folded) {
      if (stripe.value < plan.owners.size() && plan.owners[stripe.value] == from) {
        plan.folded.insert(stripe);
      }
    }
  }
  advance(report.target, plan, view);
}

// An owner whose source is late has two copies to send when it comes: its source to all owners, and
// its own stripe to all readers. Moving only its stripe would give the new owner two stripes to
// send. So all stripes are cut and folded anew under the next target epoch, except for bytes that
// are still at their owner.
void ReduceTree::handle_begun(const ObjectId& target, const Membership& view) {
  const auto it = plans_.find(target);
  if (it == plans_.end() || recovering_) return;
  Plan& plan = it->second;
  if (!plan.everywhere || plan.has_ended() || !plan.locating.empty()) return;
  const std::vector<NodeId> able = able_nodes(plan, view);
  const auto is_late = [&](NodeId owner) {
    const bool is_able = std::find(able.begin(), able.end(), owner) != able.end();
    return !is_able && view.is_live(owner) && !view.is_draining(owner);
  };
  if (std::none_of(plan.owners.begin(), plan.owners.end(), is_late)) return;
  plan.owners.clear();
  advance(target, plan, view);
}

void ReduceTree::handle_node_dead(NodeId node, bool is_certain, const Membership& view) {
  for (auto& [target, plan] : plans_) {
    plan.told.erase(node);
    for (std::size_t i = 0; i < plan.owners.size(); ++i) {
      if (plan.owners[i] == node) plan.folded.erase(StripeIndex{static_cast<std::uint16_t>(i)});
    }
    if (plan.has_ended() || !plan.is_wanted()) continue;
    if (plan.caller == node && is_certain) {
      cancelled_.push_back(target);
      continue;
    }
    undo_limbs_at(target, plan, node);
    advance(target, plan, view);
  }
}

// Messages in flight to `node` may be lost with the old link. The home repeats everything; a
// repetition changes nothing.
void ReduceTree::handle_link_up(NodeId node, const Membership& view) {
  for (auto& [target, plan] : plans_) {
    plan.told.erase(node);
    if (plan.has_ended()) {
      if (plan.is_wanted() && plan.caller == node) parcels_.push_back({node, plan.state});
    } else {
      for (const auto& [id, branch] : plan.branches) tell_branch(branch, node);
      advance(target, plan, view);
    }
  }
}

void ReduceTree::handle_view(const Membership& view) {
  recovering_ = true;
  const auto is_others = [&](const auto& entry) {
    const bool is_callers = entry.second.is_callers && is_ours(entry.second);
    return !is_callers && view.home_of(entry.first) != config_.node;
  };
  for (auto& entry : plans_) {
    if (is_others(entry)) cancel_branches(entry.second);
  }
  std::erase_if(plans_, is_others);
  seeking_.clear();
  for (auto& [target, plan] : plans_) {
    end_branches(target, plan);
    plan.told.clear();
    plan.locating.clear();
    plan.sought = 0;
    if (plan.is_wanted() && !plan.has_ended() && !view.may_live(plan.caller)) {
      cancelled_.push_back(target);
    }
  }
}

void ReduceTree::handle_recovered(const Membership& view) {
  if (!recovering_) return;
  recovering_ = false;
  std::erase_if(plans_, [&](const auto& entry) {
    const auto& [target, plan] = entry;
    const bool orphaned = !plan.is_wanted() && !plan.has_ended();
    if (!orphaned) return false;
    for (const auto& [owner, members] : plan.told) {
      parcels_.push_back({owner, Drop{target, Incarnation{1}, false}});
    }
    return true;
  });
  for (auto& [target, plan] : plans_) advance(target, plan, view);
}

void ReduceTree::forget(const ObjectId& target) {
  const auto it = plans_.find(target);
  if (it == plans_.end() || it->second.caller != config_.node) return;
  cancel_branches(it->second);
  seeking_.erase(target);
  plans_.erase(it);
}

void ReduceTree::handle_delete(const ObjectId& target) {
  const auto it = plans_.find(target);
  if (it == plans_.end()) return;
  Plan& plan = it->second;
  std::set<NodeId> told(plan.owners.begin(), plan.owners.end());
  for (const NodeId node : told) {
    parcels_.push_back({node, Drop{target, Incarnation{1}, true}});
  }
  if (plan.is_wanted() && !plan.has_ended()) {
    plan.state.target = target;
    plan.state.target_epoch = plan.target_epoch;
    plan.state.phase = ReducePhase::kFailed;
    plan.state.code = Code::kCancelled;
    plan.state.text = "reduce of " + short_name(target) + " was cancelled: its target was deleted";
    parcels_.push_back({plan.caller, plan.state});
  }
  cancel_branches(plan);
  seeking_.erase(target);
  plans_.erase(it);
}

// Every transition of a running reduce, in order.
void ReduceTree::advance(const ObjectId& target, Plan& plan, const Membership& view) {
  if (!plan.is_wanted() || plan.has_ended() || recovering_ || !is_ours(plan)) return;
  if (plan.stage == Stage::kRaised) publish(target, plan);
  if (plan.source_count - plan.lost.size() < plan.count) {
    std::string why = "needs " + std::to_string(plan.count) + " of " +
                      std::to_string(plan.source_count) + " sources, and only " +
                      std::to_string(plan.source_count - plan.lost.size()) + " can still come:";
    for (const auto& [index, fate] : plan.lost) {
      why += " source " + std::to_string(index) + ": " + fate + ";";
    }
    return fail(target, plan, Code::kReduceFailed, why);
  }
  choose_members(plan);
  locate_members(target, plan);
  if (!take_in_found(target, plan, view)) return;
  if (plan.located.empty()) return;
  if (plan.owners.empty() && !plan.locating.empty() && !is_carried(plan)) return;
  if (plan.owners.empty() && plan.share.is_share() && plan.located.size() < plan.count &&
      plan.holder_of(plan.share.reader) == kNoNode) {
    return;  // the share is folded where that source is
  }
  choose_owners(target, plan, view);
  if (plan.stage == Stage::kRaised) publish(target, plan);
  place_located(target, plan, view);
  tell_owners(target, plan);
  if (plan.members.size() < plan.count || plan.folded.size() < plan.owners.size()) return;
  plan.state.phase = ReducePhase::kCommitted;
  plan.state.members.clear();
  for (const ReduceSource& member : plan.members) plan.state.members.push_back(member.index);
  publish(target, plan);
  ++stats_.committed;
  if (!plan.branches.empty()) ++stats_.branched;
  cancel_branches(plan);
}

// The nodes that may own a stripe, one stripe each:
// - A share, or a small result, is folded on the node that reads it.
// - If all nodes read the result, all own a stripe. A few nodes whose source has not come yet own
//   none, because sending their source takes all of their time.
// - If one node reads it, every node except the caller's owns a stripe. The nodes of the sources do
//   it alone if no link then carries more than one copy each way, so that other nodes may leave.
//   A single node alone would hold the whole workspace, so it suffices only where it combines its
//   sources.
std::vector<NodeId> ReduceTree::able_nodes(const Plan& plan, const Membership& view) const {
  std::vector<NodeId> able;
  for (const Member& member : view.members()) {
    if (view.is_draining(member.node)) continue;
    const bool meant = plan.everywhere || member.node != plan.caller;
    if (meant && view.is_live(member.node)) able.push_back(member.node);
  }
  if (plan.share.is_share() && !able.empty()) {
    const NodeId reader = plan.holder_of(plan.share.reader);
    return {view.is_live(reader) ? reader : able[plan.share.reader % able.size()]};
  }
  std::vector<NodeId> early;
  std::copy_if(able.begin(), able.end(), std::back_inserter(early), [&](NodeId node) {
    return std::any_of(plan.located.begin(), plan.located.end(),
                       [&](const ReduceSource& source) { return source.holder == node; });
  });
  const auto all = static_cast<std::uint32_t>(able.size());
  const auto late = static_cast<std::uint32_t>(able.size() - early.size());
  const bool is_late =
      plan.everywhere && plan.located.size() < plan.count && can_leave_out(late, all, kRegretPart);
  const bool combines = !plan.deterministic && can_combine_all(plan.meta->parts, plan.op);
  const std::size_t copies = copies_of(plan.located, plan.count, combines);
  const bool is_enough =
      !plan.everywhere && early.size() > (combines ? 0 : 1) && early.size() + 1 >= copies;
  if (is_late || is_enough) able = std::move(early);
  if (able.empty() || plan.meta->size_bytes <= config_.inline_bytes_max) return {plan.caller};
  return able;
}

void ReduceTree::choose_owners(const ObjectId& target, Plan& plan, const Membership& view) {
  if (plan.owners.empty() && place_wide(target, plan, view)) return;
  const NodeId root = plan.owners.empty() ? unary_root(plan, view) : kNoNode;
  if (root != kNoNode) {
    plan.branch_use = BranchUse::kUnary;
    plan.owners = {root};
    return raise_epoch(target, plan);
  }
  const std::vector<NodeId> able = able_nodes(plan, view);
  const auto lives = [&](NodeId owner) { return view.is_live(owner); };
  if (!plan.is_unary() && lives(able.front()) &&
      std::none_of(plan.owners.begin(), plan.owners.end(), lives)) {
    plan.owners.clear();  // no stripe is left, so all are cut anew for the able nodes
  }
  if (plan.owners.empty()) {
    const bool is_one = plan.share.is_share() || plan.meta->size_bytes <= config_.inline_bytes_max;
    std::size_t count = config_.reduce_stripes > 0 ? config_.reduce_stripes : able.size();
    count = std::min<std::size_t>({count, kStripesMax, std::max(plan.meta->block_count(), 1U)});
    if (is_one) count = 1;
    for (std::size_t i = 0; i < count; ++i) plan.owners.push_back(able[i % able.size()]);
    return raise_epoch(target, plan);
  }
  for (std::size_t i = 0; i < plan.owners.size(); ++i) {
    if (view.is_live(plan.owners[i])) continue;
    HOPLITE_CHECK(!plan.is_wide());  // which ends with a death
    plan.owners[i] = able[i % able.size()];
    plan.told.erase(plan.owners[i]);
    plan.folded.erase(StripeIndex{static_cast<std::uint16_t>(i)});
  }
}

// Losing many members at once raises the epoch once. `advance` publishes it.
void ReduceTree::raise_epoch(const ObjectId& target, Plan& plan) {
  if (plan.stage == Stage::kRaised) return;
  for (const auto& [node, members] : plan.told) {  // nodes that no longer own a stripe get a Drop
    const bool stays = std::ranges::find(plan.owners, node) != plan.owners.end();
    if (!stays) parcels_.push_back({node, Drop{target, Incarnation{1}, false}});
  }
  plan.target_epoch = TargetEpoch{plan.target_epoch.value + 1};
  plan.told.clear();
  plan.folded.clear();
  plan.stage = Stage::kRaised;
}

void ReduceTree::tell_owners(const ObjectId& target, Plan& plan) {
  for (const NodeId owner : std::set<NodeId>(plan.owners.begin(), plan.owners.end())) {
    const auto known = plan.told.find(owner);
    const std::size_t first = known == plan.told.end() ? 0 : known->second;
    if (known != plan.told.end() && first == plan.inputs.size()) continue;
    ReduceOwn own{.target = target,
                  .target_epoch = plan.target_epoch,
                  .op = plan.op,
                  .meta = cut_of(plan),
                  .share = share_of(plan),
                  .stripe_count = static_cast<std::uint16_t>(plan.owners.size()),
                  .owned = {},
                  .source_count = plan.source_count,
                  .count = plan.count,
                  .deterministic = plan.deterministic,
                  .everywhere = plan.everywhere,
                  .members = {},
                  .sealed = plan.placed.count() == plan.count,
                  .is_unary = plan.is_unary()};
    for (std::size_t i = 0; i < plan.owners.size(); ++i) {
      if (plan.owners[i] == owner) own.owned.emplace_back(static_cast<std::uint16_t>(i));
    }
    own.members.assign(plan.inputs.begin() + static_cast<std::ptrdiff_t>(first), plan.inputs.end());
    for (ReduceSource& member : own.members) {
      if (!plan.is_wide()) break;
      const std::vector<NodeId>& owners = plan.branches.at(member.object).owners;
      member.holder = owners[own.owned.front().value % owners.size()];
    }
    plan.told[owner] = plan.inputs.size();
    parcels_.push_back({owner, std::move(own)});
  }
}

void ReduceTree::lose(const ObjectId& target, Plan& plan, std::uint32_t index, std::string why) {
  if (!plan.lost.emplace(index, std::move(why)).second) return;
  const auto gone = std::find_if(plan.members.begin(), plan.members.end(),
                                 [&](const ReduceSource& each) { return each.index == index; });
  if (gone != plan.members.end()) {
    if (static_cast<std::size_t>(gone - plan.members.begin()) < plan.sought) --plan.sought;
    plan.members.erase(gone);
  }
  if (!plan.indices.contains(index)) return;
  plan.indices.erase(index);
  const auto is_it = [&](const ReduceSource& member) { return member.index == index; };
  std::erase_if(plan.located, is_it);
  plan.placed.erase(index);
  std::erase_if(plan.inputs, is_it);
  if (!plan.owners.empty()) raise_epoch(target, plan);
}

void ReduceTree::fail(const ObjectId& target, Plan& plan, Code code, std::string why) {
  end(target, plan, code, "reduce of " + short_name(target) + " failed: " + std::move(why));
}

void ReduceTree::end(const ObjectId& target, Plan& plan, Code code, std::string text) {
  cancel_branches(plan);
  plan.state.phase = ReducePhase::kFailed;
  plan.state.code = code;
  plan.state.text = std::move(text);
  std::set<NodeId> told(plan.owners.begin(), plan.owners.end());
  for (const auto& [owner, members] : plan.told) told.insert(owner);  // of an earlier home
  for (const NodeId owner : told) parcels_.push_back({owner, Drop{target, Incarnation{1}, false}});
  publish(target, plan);
}

// Tells the directory, which tells every holder and waiter. The caller and the owners hear of it
// from here.
void ReduceTree::publish(const ObjectId& target, Plan& plan) {
  if (plan.stage == Stage::kRaised) plan.stage = Stage::kWanted;
  plan.state.target = target;
  plan.state.target_epoch = plan.target_epoch;
  plan.state.caller = plan.caller;
  plan.state.lost.clear();
  for (const auto& [index, why] : plan.lost) plan.state.lost.push_back(index);
  states_.push_back(plan.state);
  // A caller's node that plans its own reduce hears of a failure from the home.
  const bool hears_later = plan.is_callers && is_ours(plan) && plan.has_ended() &&
                           plan.state.phase != ReducePhase::kCommitted;
  if (plan.is_wanted() && !hears_later) parcels_.push_back({plan.caller, plan.state});
  if (plan.state.phase != ReducePhase::kCommitted) return;
  for (const NodeId owner : std::set<NodeId>(plan.owners.begin(), plan.owners.end())) {
    if (owner != plan.caller) parcels_.push_back({owner, plan.state});
  }
}

NodeId ReducePlan::holder_of(std::uint32_t index) const {
  const auto source = std::find_if(located.begin(), located.end(),
                                   [&](const ReduceSource& each) { return each.index == index; });
  return source == located.end() ? kNoNode : source->holder;
}

bool ReduceTree::is_ours(const Plan& plan) const {
  return !plan.is_callers || plan.caller == config_.node;
}

std::optional<Parcel> ReduceTree::poll_parcel() {
  if (parcels_.empty()) return std::nullopt;
  Parcel parcel = std::move(parcels_.front());
  parcels_.pop_front();
  return parcel;
}

std::optional<ReduceState> ReduceTree::poll_state() {
  if (states_.empty()) return std::nullopt;
  ReduceState state = std::move(states_.front());
  states_.pop_front();
  return state;
}

std::optional<ObjectId> ReduceTree::poll_cancelled() {
  if (cancelled_.empty()) return std::nullopt;
  const ObjectId target = cancelled_.front();
  cancelled_.pop_front();
  return target;
}

void ReduceTree::check_invariants() const {
  for (const auto& [target, plan] : plans_) {
    if (!plan.is_wanted()) continue;
    for (const auto& [id, branch] : plan.branches) {
      HOPLITE_CHECK(roots_.at(id) == target && plan.limbs.contains(branch.limb));
    }
    HOPLITE_CHECK(plan.placed.count() <= plan.located.size());
    HOPLITE_CHECK(plan.count >= 1);
    HOPLITE_CHECK(plan.count <= plan.source_count);
    HOPLITE_CHECK(plan.folded.size() <= plan.owners.size() || plan.owners.empty());
    HOPLITE_CHECK(plan.members.size() <= plan.count && plan.sought <= plan.members.size());
    for (std::size_t i = 0; i < plan.sought && !plan.has_ended(); ++i) {
      const ReduceSource& member = plan.members[i];
      HOPLITE_CHECK(plan.indices.contains(member.index) || plan.locating.contains(member.object));
    }
    HOPLITE_CHECK(plan.state.phase != ReducePhase::kCommitted || !plan.state.members.empty());
  }
}

}  // namespace hoplite
