// How an owner of a reduce obtains its members: finds their holders, folds what is here, pulls the
// rest.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "plan/engine/state.h"

namespace hoplite {
namespace {

// Takes the lowest free slot.
std::size_t take_slot(Folding& folding) {
  if (folding.free_slots.empty()) return folding.slots++;
  return folding.free_slots.extract(folding.free_slots.begin()).value();
}

// Returns the member with which an owner begins: each owner with another one, so that not all pull
// from the same node at once.
std::uint32_t first_in_turn(const Accumulator& accumulator) {
  const std::vector<StripeIndex>& owned = accumulator.own().owned;
  const auto& members = accumulator.members();
  if (owned.empty() || members.empty()) return 0;
  const auto turn = static_cast<std::ptrdiff_t>(owned.front().value % members.size());
  return std::next(members.begin(), turn)->first;
}

// Returns the members that one pull combines in the stripe: `member`, and the waiting members that
// the same node has and that lack the same blocks.
std::vector<std::uint32_t> combined_with(const Folding& folding, std::uint32_t member,
                                         StripeIndex stripe, std::uint64_t bytes_max) {
  const Accumulator& accumulator = folding.accumulator;
  const NodeId sender = accumulator.members().at(member).sender;
  std::vector<std::uint32_t> members{member};
  const auto is_branch = [&](std::uint32_t index) {
    return accumulator.members().at(index).source.is_branch;
  };
  if (folding.singly.contains(sender) || !accumulator.can_combine() || is_branch(member)) {
    return members;
  }
  const std::size_t most = bytes_max / accumulator.own().meta.block_bytes;
  auto beside = folding.waiting_at.lower_bound({sender, 0});
  for (; beside != folding.waiting_at.end() && beside->first == sender; ++beside) {
    const std::uint32_t other = beside->second;
    if (members.size() >= most) break;
    if (other == member || is_branch(other)) continue;
    if (accumulator.members().at(other).pulled.contains(stripe)) continue;
    if (accumulator.lacks_alike(member, other, stripe)) members.push_back(other);
  }
  std::sort(members.begin(),
            members.end());  // all owners name the same first one: the sender takes turns by it
  return members;
}

}  // namespace

void Folding::note_members(const ReduceOwn& own, bool all) {
  const auto& members = accumulator.members();
  if (all) {
    waiting.clear();
    waiting_at.clear();
    news.clear();
    here.clear();
    for (const auto& [index, member] : members) news.insert(index);
  }
  for (const ReduceSource& source : own.members) {
    if (members.contains(source.index)) news.insert(source.index);
  }
}

void Folding::stop_waiting(const Accumulator::Member& member) {
  waiting.erase(member.source.index);
  waiting_at.erase({member.sender, member.source.index});
}

// The bytes of `source` here have changed. Marks the folds into it, the folds that read it here,
// and the folds that ask for its holder. Cost: O(folds + members that are folded from here).
void Engine::State::note_here(const ObjectId& source) {
  for (auto& [target, folding] : folds_) {
    const auto& members = folding.accumulator.members();
    bool is_meant = target == source ||
                    std::any_of(folding.here.begin(), folding.here.end(), [&](std::uint32_t index) {
                      return members.at(index).source.object == source;
                    });
    auto asked = folding.asked.lower_bound({source, 0});
    for (; asked != folding.asked.end() && asked->first == source; ++asked) {
      is_meant = true;
      if (members.contains(asked->second)) folding.news.insert(asked->second);
    }
    if (is_meant) dirty_folds_.insert(target);
  }
}

// Looks first at the members that are partly here, within this turn's fold bytes, and at the
// members with news. Then starts pulls of waiting members, in turn, while there are free slots. At
// the end gives the credit that paces have held back.
void Engine::State::drive_members(const ObjectId& target, Folding& folding) {
  auto& members = folding.accumulator.members();
  const std::set<std::uint32_t> news = std::exchange(folding.news, {});
  for (auto at = folding.here.begin(); at != folding.here.end() && fold_bytes_left_ > 0;) {
    const std::uint32_t index = *at;
    look_at(target, folding, members.at(index));
    at = folding.here.upper_bound(index);
  }
  for (const std::uint32_t index : news) look_at(target, folding, members.at(index));
  const ReduceOwn& own = folding.accumulator.own();
  const FoldPulls pulls = fold_pulls(own, config_, folding.workspace.slots().size_bytes);
  const std::uint32_t first = first_in_turn(folding.accumulator);
  while (!folding.waiting.empty() && folding.pulls.size() < pulls.at_once) {
    auto next = folding.waiting.lower_bound(first);
    if (next == folding.waiting.end()) next = folding.waiting.begin();
    const std::uint32_t index = *next;
    look_at(target, folding, members.at(index));
    if (folding.waiting.contains(index)) pull_member(folding, index, pulls);
  }
  for (auto& [stripe, pace] : folding.paces) {
    while (const auto given = pace.poll_credit()) {
      send(pulls_.at(given->first).goal().sender, Credit{given->second}, given->first);
    }
    if (pace.is_holding() && !paces_due_) paces_due_ = now_ + config_.progress_window;
  }
}

// Folds the member from here, asks for its holder, or lets it wait for its pulls.
void Engine::State::look_at(const ObjectId& target, Folding& folding, Accumulator::Member& member) {
  const std::uint32_t index = member.source.index;
  folding.stop_waiting(member);
  folding.here.erase(index);
  if (fold_carried(target, folding, member)) return;
  const Here here = fold_local(target, folding, member);
  if (here == Here::kSome) folding.here.insert(index);
  if (here != Here::kNothing) return;
  if (member.located && member.sender == config_.node) {
    member.located = false;  // it has gone from here
    member.failed = config_.node;
  }
  if (member.located) {
    folding.waiting.insert(index);
    folding.waiting_at.emplace(member.sender, index);
  } else {
    locate_member(target, folding, member);
  }
}

// Asks the home for the member's holder. A member that is a branch, and a member of a branch, is
// reported to the planner instead, which places it anew in its tree.
void Engine::State::locate_member(const ObjectId& target, Folding& folding,
                                  const Accumulator::Member& member) {
  const ObjectId source = member.source.object;
  const bool is_new = folding.asked.emplace(source, member.source.index).second;
  if (member.source.is_branch || folding.accumulator.own().is_branch) {
    ReduceReport news;
    news.lost.push_back(member.source.index);
    return report(target, std::move(news));
  }
  if (!is_new) return;
  Locate& locate = locates_[source];
  locate = Locate{source, member.source.incarnation, member.failed, true};
  send(view_.home_of(source), locate);
}

// Folds the member's bytes that came with the answer about its location, through a free slot.
// Returns false if they did not come.
bool Engine::State::fold_carried(const ObjectId& target, Folding& folding,
                                 const Accumulator::Member& member) {
  const ReduceOwn& own = folding.accumulator.own();
  const std::uint32_t index = member.source.index;
  const bool is_it = carried_ && carried_->object == member.source.object &&
                     carried_->incarnation == member.source.incarnation && !own.share.is_share() &&
                     carried_->bytes.size() == own.meta.size_bytes && own.meta.block_count() == 1 &&
                     own.owned.size() == 1 && member.pulled.empty() &&
                     folding.accumulator.lacks(index, BlockIndex{0});
  const FoldPulls pulls = fold_pulls(own, config_, folding.workspace.slots().size_bytes);
  if (!is_it || folding.pulls.size() >= pulls.at_once) return false;
  const std::size_t slot = take_slot(folding);
  const Extent at{folding.workspace.slots().offset + slot * pulls.slot_bytes, own.meta.size_bytes};
  actions_.emplace_back(WriteInline{at, carried_->bytes});
  fold_block(objects_.at(target), folding, {&index, 1}, BlockIndex{0}, at.offset);
  folding.free_slots.insert(slot);
  return true;
}

// Folds the bytes of the member that this node has, and returns how much of the member that is.
Here Engine::State::fold_local(const ObjectId& target, Folding& folding,
                               Accumulator::Member& member) {
  ++stats_.members_looked_at;
  const auto it = objects_.find(member.source.object);
  if (it == objects_.end() && member.whole) objects_[member.source.object].whole_wanted = true;
  const bool comes =
      member.whole || (member.source.is_branch && member.located && member.sender == config_.node);
  const Here elsewhere = comes ? Here::kSome : Here::kNothing;
  if (it == objects_.end()) {
    if (member.whole) claim(member.source.object);
    return elsewhere;
  }
  LocalObject& source = it->second;
  const ReduceOwn& own = folding.accumulator.own();
  if (member.whole && member.source.incarnation.value > 0 &&
      source.incarnation > member.source.incarnation) {
    member.whole = member.located = false;  // a later attempt has put it again; the home says so
    return Here::kNothing;
  }
  const bool fits =
      source.is_here() && (source.committed || source.is_branch) &&
      own.share.fits(source.meta, own.meta) &&
      (member.source.incarnation.value == 0 || member.source.incarnation == source.incarnation);
  const bool produced = source.writing || source.is_whole() || source.is_branch;
  if (member.whole && !source.is_whole() && !source.whole_wanted && !source.writing) {
    source.whole_wanted = true;
    claim(member.source.object);
  }
  if (!fits || (!produced && !member.whole)) return elsewhere;
  fetch_spilled(member.source.object);
  if (!source.extent) return Here::kSome;  // the file returns it, or it waits for its range
  member.source.incarnation = source.incarnation;
  const LocalObject& into = objects_.at(target);
  Here here = Here::kAll;
  for (const StripeIndex stripe : own.owned) {
    const auto total = stripe_blocks(own.meta.block_count(), own.stripe_count, stripe);
    for (std::uint32_t n = 0; n < total; ++n) {
      const BlockIndex block = stripe_block(own.stripe_count, stripe, n);
      if (!folding.accumulator.lacks(member.source.index, block)) continue;
      Extent range = block_extent(own.meta, block);
      range.offset += own.share.offset;
      if (!source.has_range(range)) {
        here = Here::kSome;
        break;
      }
      if (fold_bytes_left_ == 0) {
        dirty_folds_.insert(target);
        return Here::kSome;
      }
      fold_block(into, folding, {&member.source.index, 1}, block, source.in_arena(range).offset);
      fold_bytes_left_ -= std::min(fold_bytes_left_, range.size_bytes);
    }
  }
  return here;
}

// Pulls the stripes that lack the member, into slots. The member stops waiting if each stripe got a
// slot.
void Engine::State::pull_member(Folding& folding, std::uint32_t index, const FoldPulls& pulls) {
  auto& members = folding.accumulator.members();
  const Accumulator::Member& member = members.at(index);
  const ReduceOwn& own = folding.accumulator.own();
  for (const StripeIndex stripe : own.owned) {
    if (folding.pulls.size() >= pulls.at_once) return;
    if (!member.located) break;  // its sender is dead already
    if (member.pulled.contains(stripe)) continue;
    const auto from = folding.accumulator.first_lacking(index, stripe);
    if (!from) continue;
    const std::vector<std::uint32_t> together =
        combined_with(folding, index, stripe, config_.combined_bytes_max);
    const ReduceSource& first = members.at(together.front()).source;
    PullGoal goal{first.object, first.incarnation, TargetEpoch{0}, own.meta,  own.stripe_count,
                  stripe,       member.sender,     *from,          own.share, {},
                  own.op,       first.is_branch};
    for (const std::uint32_t each : std::span(together).subspan(1)) {
      const ReduceSource& other = members.at(each).source;
      goal.beside.push_back({other.object, other.incarnation});
    }
    const TransferId transfer{++last_transfer_};
    Pull pull(std::move(goal), pulls.window);
    const std::size_t slot = take_slot(folding);
    pull.fold = FoldGoal{own.target, together};
    pull.slots = {folding.workspace.slots().offset + slot * pulls.slot_bytes, pulls.slot_bytes};
    folding.pulls.emplace(transfer, slot);
    folding.paces.try_emplace(stripe, pulls.lead).first->second.begin(transfer, *from);
    for (const std::uint32_t each : together) {
      members.at(each).pulled.insert(stripe);
      if (own.owned.size() == 1) folding.stop_waiting(members.at(each));
    }
    const OpenReceive receive{transfer,       member.sender, first.object,     first.incarnation,
                              TargetEpoch{0}, own.meta,      own.stripe_count, stripe,
                              pull.slots,     pull.window()};
    open_pull(transfer, std::move(pull), receive);
  }
  folding.stop_waiting(member);
}

void Engine::State::member_lost(const ObjectId& source) {
  for (auto& [target, folding] : folds_) {
    ReduceReport news;
    for (auto& [index, member] : folding.accumulator.members()) {
      if (member.source.object != source) continue;
      if (!folding.asked.contains({source, index}) && !member.whole) continue;
      folding.news.insert(index);  // asked for again if it stays a member
      news.lost.push_back(index);
    }
    folding.asked.erase(folding.asked.lower_bound({source, 0}),
                        folding.asked.lower_bound({source, kReduceSourcesMax}));
    if (!news.lost.empty()) report(target, std::move(news));
  }
}

}  // namespace hoplite
