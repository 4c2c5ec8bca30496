// SPDX-License-Identifier: Apache-2.0
// Sources of a reduce: which are members, and where they are. Holds the home's questions and the
// answers to them.
#include <algorithm>
#include <utility>

#include "plan/reduce/reduce_shape.h"
#include "plan/reduce/reduce_tree.h"

namespace hoplite {
namespace {

std::string refusal(const ObjectId& source, DType dtype, ReduceOp op) {
  std::string text = "source " + short_name(source) + " is " +
                     kDTypeNames[static_cast<std::size_t>(dtype)] + ", which has no " +
                     kReduceOpNames[static_cast<std::size_t>(op)] + "; ";
  std::string others;
  for (int other = 0; other < kReduceOpCount; ++other) {
    if (!can_reduce(dtype, static_cast<ReduceOp>(other))) continue;
    others += (others.empty() ? "use op=" : " or op=") + std::string(kReduceOpNames[other]);
  }
  if (others.empty()) return text + "get the values and combine them yourself";
  return text + others + ", or convert it before it is put";
}

bool differs_in_blocks_alone(const ObjectMeta& one, ObjectMeta other) {
  other.block_bytes = one.block_bytes;
  return one == other;
}

std::string mismatch_of_blocks(const ReduceSource& source, const ObjectMeta& is,
                               const ObjectMeta& first) {
  return "source " + std::to_string(source.index) + " (object " + short_name(source.object) +
         ") has blocks of " + std::to_string(is.block_bytes) + " bytes, and the first source of " +
         std::to_string(first.block_bytes) +
         ": their nodes have other options; give link_mbit the same value on each node";
}

std::string mismatch(const ReduceSource& source, const ObjectMeta& is, const std::string& other,
                     std::uint64_t other_bytes) {
  return "source " + std::to_string(source.index) + " (object " + short_name(source.object) + ", " +
         std::to_string(is.size_bytes) + " bytes) differs in shape or dtype from " + other + " (" +
         std::to_string(other_bytes) + " bytes)";
}

}  // namespace

// Takes the next arrivals as members, in place of missing and lost ones.
void ReduceTree::choose_members(Plan& plan) {
  for (; plan.members.size() < plan.count && plan.considered < plan.arrivals.size();
       ++plan.considered) {
    const ReduceSource& source = plan.arrivals[plan.considered];
    if (!plan.lost.contains(source.index)) plan.members.push_back(source);
  }
}

void ReduceTree::locate_members(const ObjectId& target, Plan& plan) {
  for (; plan.sought < plan.members.size(); ++plan.sought) {
    const ReduceSource& member = plan.members[plan.sought];
    if (plan.indices.contains(member.index)) continue;
    auto& same = plan.locating[member.object];
    if (same.empty()) locates_.emplace_back(target, member);
    seeking_.insert(target);
    same.push_back(member);
  }
}

// When the last member has arrived, takes in the sources whose holders the caller knows, without
// asking for them. Until then the questions cost the caller no time, because it waits anyway.
// Returns whether the reduce goes on.
bool ReduceTree::take_in_found(const ObjectId& target, Plan& plan, const Membership& view) {
  const auto is_found = [&](const auto& asked) {
    return plan.source_meta && view.is_live(asked.second.front().holder);
  };
  const bool are_all = plan.members.size() == plan.count &&
                       std::all_of(plan.locating.begin(), plan.locating.end(), is_found);
  if (!are_all) return true;
  for (const auto& [object, members] : std::exchange(plan.locating, {})) {
    const ReduceSource& one = members.front();
    const Located located{object, one.incarnation, *plan.source_meta, one.holder};
    if (!take_in(target, plan, located, members)) return false;
  }
  return true;
}

// Skips sources that have been located meanwhile.
std::optional<Locate> ReduceTree::poll_locate() {
  while (!locates_.empty()) {
    const auto [target, source] = std::move(locates_.front());
    locates_.pop_front();
    const auto it = plans_.find(target);
    if (it == plans_.end() || !it->second.locating.contains(source.object)) continue;
    const Plan& plan = it->second;
    return Locate{source.object, source.incarnation, kNoNode, true,
                  is_carried(plan) ? carried_bytes_max(plan.count, config_) : 0};
  }
  return std::nullopt;
}

// The running reduces that ask for a source. Cost: O(those that ask for any), because the plans
// that have ended stay as long as their targets.
std::vector<ReduceTree::Plans::value_type*> ReduceTree::seekers_of(const ObjectId& source) {
  std::vector<Plans::value_type*> found;
  std::erase_if(seeking_, [&](const ObjectId& target) {
    const auto it = plans_.find(target);
    const bool seeks =
        it != plans_.end() && !it->second.has_ended() && !it->second.locating.empty();
    if (seeks && it->second.locating.contains(source)) found.push_back(&*it);
    return !seeks;
  });
  return found;
}

void ReduceTree::handle_located(const Located& located, const Membership& view) {
  for (auto* seeker : seekers_of(located.object)) {
    auto& [target, plan] = *seeker;
    const auto asked = plan.locating.extract(located.object);
    if (take_in(target, plan, located, asked.mapped())) advance(target, plan, view);
  }
}

// Takes in an answer to Locate. The first source located fixes the result's description. Returns
// whether the reduce goes on.
bool ReduceTree::take_in(const ObjectId& target, Plan& plan, const Located& located,
                         const Site& members) {
  const auto refused =
      std::find_if(located.meta.parts.begin(), located.meta.parts.end(),
                   [op = plan.op](const Part& part) { return !can_reduce(part.dtype, op); });
  if (refused != located.meta.parts.end()) {
    fail(target, plan, Code::kInvalidArgument, refusal(located.object, refused->dtype, plan.op));
    return false;
  }
  if (!plan.source_meta) plan.source_meta = located.meta;
  if (!plan.meta) plan.meta = located.meta;
  for (ReduceSource member : members) {
    if (plan.lost.contains(member.index) || plan.indices.contains(member.index)) continue;
    if (located.meta != *plan.source_meta &&
        differs_in_blocks_alone(located.meta, *plan.source_meta)) {
      fail(target, plan, Code::kLayoutMismatch,
           mismatch_of_blocks(member, located.meta, *plan.source_meta));
      return false;
    }
    if (!plan.share.fits(located.meta, *plan.meta)) {
      const bool is_share = plan.share.is_share();
      fail(target, plan, Code::kLayoutMismatch,
           mismatch(member, located.meta, is_share ? "what is to be shared" : "the first source",
                    is_share ? plan.share.source_bytes : plan.meta->size_bytes));
      return false;
    }
    if (located.meta != *plan.source_meta) {
      fail(target, plan, Code::kLayoutMismatch,
           mismatch(member, located.meta, "the first source", plan.source_meta->size_bytes));
      return false;
    }
    member.incarnation = located.incarnation;
    member.holder = located.sender;
    plan.located.push_back(member);
    plan.indices.insert(member.index);
  }
  return true;
}

void ReduceTree::handle_source_lost(const ObjectId& source, const Membership& view) {
  for (auto* seeker : seekers_of(source)) {
    auto& [target, plan] = *seeker;
    plan.locating.erase(source);
    for (const ReduceSource& arrival : plan.arrivals) {
      if (arrival.object == source) lose(target, plan, arrival.index, "all its holders are gone");
    }
    advance(target, plan, view);
  }
}

}  // namespace hoplite
