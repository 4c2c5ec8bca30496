// How an owner of a reduce comes by its members: who has them, what of them is here, what is to be
// pulled. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/engine_state.h"

namespace hoplite {
namespace {

// The lowest one. Cost: O(pulls), of which there may be thousands.
std::size_t free_slot(const Folding& folding) {
  std::vector<bool> taken(folding.pulls.size() + 1);
  for (const auto& [transfer, slot] : folding.pulls) {
    if (slot < taken.size()) taken[slot] = true;
  }
  return static_cast<std::size_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
}

// The member and those of `beside`, which are pulled from the same node, that this is to combine
// with it in the stripe.
std::vector<std::uint32_t> combined_with(const Folding& folding, std::uint32_t member,
                                         StripeIndex stripe,
                                         std::span<const std::uint32_t> beside) {
  const Accumulator& accumulator = folding.accumulator;
  const NodeId sender = accumulator.members().at(member).sender;
  std::vector<std::uint32_t> members{member};
  if (folding.singly.contains(sender) || !accumulator.can_combine()) return members;
  const std::size_t most = kCombinedBytesMax / accumulator.own().meta.block_bytes;
  for (const std::uint32_t other : beside) {
    if (members.size() >= most) break;
    if (other == member || accumulator.members().at(other).pulled.contains(stripe)) continue;
    if (accumulator.lacks_alike(member, other, stripe)) members.push_back(other);
  }
  std::sort(members.begin(), members.end());  // the same first one for each owner: it takes turns
  return members;
}

}  // namespace

void Engine::State::locate_member(const ObjectId& target, Accumulator::Member& member) {
  if (member.asked) return;
  member.asked = true;
  const ObjectId source = member.source.object;
  Locate& locate = locates_[source];
  locate = Locate{source, member.source.incarnation, member.failed, true};
  send(view_.home_of(source), locate);
  static_cast<void>(target);
}

// Folds what this node itself has of the member. Returns false if it has nothing of it.
bool Engine::State::fold_local(const ObjectId& target, Folding& folding,
                               Accumulator::Member& member) {
  const auto it = objects_.find(member.source.object);
  if (it == objects_.end() && member.whole) objects_[member.source.object].whole_wanted = true;
  if (it == objects_.end()) {
    if (member.whole) claim(member.source.object);
    return member.whole;
  }
  LocalObject& source = it->second;
  const ReduceOwn& own = folding.accumulator.own();
  if (member.whole && member.source.incarnation.value > 0 &&
      source.incarnation > member.source.incarnation) {
    member.whole = member.located = false;  // put again by a later attempt: the home says so
    return false;
  }
  const bool fits =
      source.extent && source.committed && own.share.fits(source.meta, own.meta) &&
      (member.source.incarnation.value == 0 || member.source.incarnation == source.incarnation);
  const bool produced = source.writing || source.is_complete();
  if (member.whole && !source.is_complete() && !source.whole_wanted && !source.writing) {
    source.whole_wanted = true;
    claim(member.source.object);
  }
  if (!fits || (!produced && !member.whole)) return member.whole;
  member.source.incarnation = source.incarnation;
  const LocalObject& into = objects_.at(target);
  for (const StripeIndex stripe : own.owned) {
    const auto total = stripe_blocks(own.meta.block_count(), own.stripe_count, stripe);
    for (std::uint32_t n = 0; n < total; ++n) {
      const BlockIndex block = stripe_block(own.stripe_count, stripe, n);
      if (!folding.accumulator.lacks(member.source.index, block)) continue;
      Extent range = block_extent(own.meta, block);
      range.offset += own.share.offset;
      if (!source.has_range(range)) break;
      if (fold_bytes_left_ == 0) {
        dirty_folds_.insert(target);
        return true;
      }
      fold_block(into, folding, {&member.source.index, 1}, block, source.in_arena(range).offset);
      fold_bytes_left_ -= std::min(fold_bytes_left_, range.size_bytes);
    }
  }
  return true;
}

// Pulls the stripes that lack the member, into slots, as long as there are free ones. `beside`: all
// that are pulled from where it is.
void Engine::State::pull_member(Folding& folding, std::uint32_t index,
                                std::span<const std::uint32_t> beside) {
  auto& members = folding.accumulator.members();
  const Accumulator::Member& member = members.at(index);
  const ReduceOwn& own = folding.accumulator.own();
  const FoldPulls pulls = fold_pulls(own, config_, folding.workspace.slots().size_bytes);
  for (const StripeIndex stripe : own.owned) {
    if (folding.pulls.size() >= pulls.at_once) return;
    if (!member.located) return;  // its sender is dead already
    if (member.pulled.contains(stripe)) continue;
    const auto from = folding.accumulator.first_lacking(index, stripe);
    if (!from) continue;
    const std::vector<std::uint32_t> together = combined_with(folding, index, stripe, beside);
    const ReduceSource& first = members.at(together.front()).source;
    PullGoal goal{first.object, first.incarnation, TargetEpoch{0}, own.meta,  own.stripe_count,
                  stripe,       member.sender,     *from,          own.share, {},
                  own.op};
    for (const std::uint32_t each : std::span(together).subspan(1)) {
      const ReduceSource& other = members.at(each).source;
      goal.beside.push_back({other.object, other.incarnation});
    }
    const TransferId transfer{++last_transfer_};
    Pull pull(std::move(goal), pulls.window);
    const std::size_t slot = free_slot(folding);
    pull.fold = FoldGoal{own.target, together};
    pull.slots = {folding.workspace.slots().offset + slot * pulls.slot_bytes, pulls.slot_bytes};
    folding.pulls.emplace(transfer, slot);
    for (const std::uint32_t each : together) members.at(each).pulled.insert(stripe);
    const OpenReceive receive{transfer,       member.sender, first.object,     first.incarnation,
                              TargetEpoch{0}, own.meta,      own.stripe_count, stripe,
                              pull.slots,     pull.window()};
    open_pull(transfer, std::move(pull), receive);
  }
}

void Engine::State::member_lost(const ObjectId& source) {
  for (auto& [target, folding] : folds_) {
    ReduceReport news;
    for (auto& [index, member] : folding.accumulator.members()) {
      if (member.source.object != source || (!member.asked && !member.whole)) continue;
      member.asked = false;
      news.lost.push_back(index);
    }
    if (!news.lost.empty()) report(target, std::move(news));
  }
}

}  // namespace hoplite
