// SPDX-License-Identifier: Apache-2.0
// How an owner of a reduce obtains its members: finds their holders, folds what is here, pulls the
// rest.
#include <algorithm>
#include <utility>

#include "plan/engine/owners.h"
#include "plan/engine/reduces/folds.h"

namespace hoplite {

// The bytes of `source` here have changed. Marks the folds into it, the folds that read it here,
// and the folds that ask for its holder. Cost: O(folds + members that are folded from here).
void Folds::note_here(const ObjectId& source) {
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

// The members that asked for this source know its holder now.
void Folds::note_located(const Located& located) {
  for (auto& [target, folding] : folds_) {
    auto& members = folding.accumulator.members();
    auto asked = folding.asked.lower_bound({located.object, 0});
    while (asked != folding.asked.end() && asked->first == located.object) {
      const std::uint32_t index = asked->second;
      asked = folding.asked.erase(asked);
      const auto at = members.find(index);
      if (at == members.end() || at->second.source.object != located.object) continue;
      Accumulator::Member& member = at->second;
      folding.stop_waiting(member);
      folding.news.insert(index);
      member.located = true;
      member.sender = located.sender;
      member.source.incarnation = located.incarnation;
      member.whole = located.sender == kNoNode;
      dirty_folds_.insert(target);
      const ReduceOwn& own = folding.accumulator.own();
      if (own.share.fits(located.meta, own.meta)) continue;
      ReduceReport news;
      news.code = Code::kLayoutMismatch;
      news.text =
          "source " + std::to_string(index) + " (object " + short_name(located.object) + ", " +
          std::to_string(located.meta.size_bytes) +
          " bytes) differs in shape or dtype from the first source (" +
          std::to_string(own.share.is_share() ? own.share.source_bytes : own.meta.size_bytes) +
          " bytes)";
      folding.failed = true;
      report(target, std::move(news));
    }
  }
}

void Folds::member_lost(const ObjectId& source) {
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

// Looks first at the members that are partly here, within this turn's fold bytes, and at the
// members with news. Then starts pulls of waiting members, in turn, while there are free slots. At
// the end gives the credit that paces have held back.
void Folds::drive_members(const ObjectId& target, Folding& folding) {
  auto& members = folding.accumulator.members();
  const std::set<std::uint32_t> news = std::exchange(folding.news, {});
  for (auto at = folding.here.begin();
       at != folding.here.end() && engine_.outgoing.fold_bytes_left() > 0;) {
    const std::uint32_t index = *at;
    look_at(target, folding, members.at(index));
    at = folding.here.upper_bound(index);
  }
  for (const std::uint32_t index : news) look_at(target, folding, members.at(index));
  const ReduceOwn& own = folding.accumulator.own();
  const FoldPulls pulls = fold_pulls(own, engine_.config, folding.workspace.slots().size_bytes);
  const std::uint32_t first = folding.first_in_turn();
  while (!folding.waiting.empty() && folding.pulls.size() < pulls.at_once) {
    auto next = folding.waiting.lower_bound(first);
    if (next == folding.waiting.end()) next = folding.waiting.begin();
    const std::uint32_t index = *next;
    look_at(target, folding, members.at(index));
    if (folding.waiting.contains(index)) pull_member(folding, index, pulls);
  }
  for (auto& [stripe, pace] : folding.paces) {
    while (const auto given = pace.poll_credit()) {
      engine_.transfers.give_credit(given->first, given->second);
    }
    if (pace.is_holding() && !paces_due_) paces_due_ = engine_.now + engine_.config.progress_window;
  }
}

// Folds the member from here, asks for its holder, or lets it wait for its pulls.
void Folds::look_at(const ObjectId& target, Folding& folding, Accumulator::Member& member) {
  const std::uint32_t index = member.source.index;
  folding.stop_waiting(member);
  folding.here.erase(index);
  if (fold_carried(target, folding, member)) return;
  const Here here = fold_local(target, folding, member);
  if (here == Here::kSome) folding.here.insert(index);
  if (here != Here::kNothing) return;
  if (member.located && member.sender == engine_.config.node) {
    member.located = false;  // it has gone from here
    member.failed = engine_.config.node;
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
void Folds::locate_member(const ObjectId& target, Folding& folding,
                          const Accumulator::Member& member) {
  const ObjectId source = member.source.object;
  const bool is_new = folding.asked.emplace(source, member.source.index).second;
  if (member.source.is_branch || folding.accumulator.own().is_branch) {
    ReduceReport news;
    news.lost.push_back(member.source.index);
    return report(target, std::move(news));
  }
  if (!is_new) return;
  engine_.calls.ask(Locate{source, member.source.incarnation, member.failed, true});
}

// Folds the member's bytes that came with the answer about its location, through a free slot.
// Returns false if they did not come.
bool Folds::fold_carried(const ObjectId& target, Folding& folding,
                         const Accumulator::Member& member) {
  const ReduceOwn& own = folding.accumulator.own();
  const std::uint32_t index = member.source.index;
  const bool is_it = carried_ && carried_->object == member.source.object &&
                     carried_->incarnation == member.source.incarnation && !own.share.is_share() &&
                     carried_->bytes.size() == own.meta.size_bytes && own.meta.block_count() == 1 &&
                     own.owned.size() == 1 && member.pulled.empty() &&
                     folding.accumulator.lacks(index, BlockIndex{0});
  const FoldPulls pulls = fold_pulls(own, engine_.config, folding.workspace.slots().size_bytes);
  if (!is_it || folding.pulls.size() >= pulls.at_once) return false;
  const std::size_t slot = folding.take_slot();
  const Extent at{folding.workspace.slots().offset + slot * pulls.slot_bytes, own.meta.size_bytes};
  folding.free_slots.insert(slot);
  if (!engine_.loans.is_free({at, 0, 1, {}})) return false;  // then it is pulled
  engine_.outgoing.act(WriteInline{at, carried_->bytes});
  fold_block(engine_.objects.at(target), folding, {&index, 1}, BlockIndex{0}, at.offset);
  return true;
}

// Folds the bytes of the member that this node has, and returns how much of the member that is.
Here Folds::fold_local(const ObjectId& target, Folding& folding, Accumulator::Member& member) {
  ++engine_.counters.members_looked_at;
  LocalObject* const found = engine_.objects.find(member.source.object);
  if (found == nullptr && member.whole)
    engine_.objects.make(member.source.object).wanted_by_fold = true;
  const bool comes = member.whole || (member.source.is_branch && member.located &&
                                      member.sender == engine_.config.node);
  const Here elsewhere = comes ? Here::kSome : Here::kNothing;
  if (found == nullptr) {
    if (member.whole) engine_.objects.claim(member.source.object);
    return elsewhere;
  }
  LocalObject& source = *found;
  const ReduceOwn& own = folding.accumulator.own();
  if (member.whole && member.source.incarnation.value > 0 &&
      source.incarnation > member.source.incarnation) {
    member.whole = member.located = false;  // a later attempt has put it again; the home says so
    stop_wanting(member.source.object);
    return Here::kNothing;
  }
  const bool fits =
      source.is_here() && source.finality != Finality::kTentative &&
      own.share.fits(source.meta, own.meta) &&
      (member.source.incarnation.value == 0 || member.source.incarnation == source.incarnation);
  const bool produced =
      source.is_writing() || source.is_whole() || source.finality == Finality::kBranch;
  if (member.whole && !source.is_whole() && !source.wanted_by_fold && !source.is_writing()) {
    source.wanted_by_fold = true;
    engine_.objects.claim(member.source.object);
  }
  if (!fits || (!produced && !member.whole)) return elsewhere;
  engine_.spills.fetch_spilled(member.source.object);
  if (!source.extent) return Here::kSome;  // the file returns it, or it waits for its range
  member.source.incarnation = source.incarnation;
  const LocalObject& into = engine_.objects.at(target);
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
      if (engine_.outgoing.fold_bytes_left() == 0) {
        dirty_folds_.insert(target);
        return Here::kSome;
      }
      fold_block(into, folding, {&member.source.index, 1}, block, source.in_arena(range).offset);
      engine_.outgoing.spend_fold_bytes(range.size_bytes);
    }
  }
  return here;
}

// Pulls the stripes that lack the member, into slots. The member stops waiting if each stripe got a
// slot.
void Folds::pull_member(Folding& folding, std::uint32_t index, const FoldPulls& pulls) {
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
        folding.combined_with(index, stripe, engine_.config.combined_bytes_max);
    const ReduceSource& first = members.at(together.front()).source;
    PullGoal goal{first.object, first.incarnation, TargetEpoch{0}, own.meta,  own.stripe_count,
                  stripe,       member.sender,     *from,          own.share, {},
                  own.op,       first.is_branch};
    for (const std::uint32_t each : std::span(together).subspan(1)) {
      const ReduceSource& other = members.at(each).source;
      goal.beside.push_back({other.object, other.incarnation});
    }
    const TransferId transfer = engine_.transfers.next_transfer();
    Pull pull(std::move(goal), pulls.window);
    const std::size_t slot = folding.take_slot();
    pull.fold = FoldGoal{own.target, together};
    pull.range = {folding.workspace.slots().offset + slot * pulls.slot_bytes, pulls.slot_bytes};
    folding.pulls.emplace(transfer, slot);
    folding.paces.try_emplace(stripe, pulls.lead).first->second.begin(transfer, *from);
    for (const std::uint32_t each : together) {
      members.at(each).pulled.insert(stripe);
      if (own.owned.size() == 1) folding.stop_waiting(members.at(each));
    }
    engine_.transfers.open_pull(transfer, std::move(pull));
  }
  folding.stop_waiting(member);
}

// Its slot is free again, and its members may have more blocks.
void Folds::note_pull_ended(TransferId transfer, const Pull& pull) {
  const auto fold = folds_.find(pull.fold->target);
  if (fold == folds_.end()) return;
  Folding& folding = fold->second;
  folding.free_slots.insert(folding.pulls.extract(transfer).mapped());
  folding.paces.at(pull.goal().stripe).end(transfer);
  auto& members = folding.accumulator.members();
  for (const std::uint32_t index : pull.fold->members) {
    const auto member = members.find(index);
    if (member == members.end()) continue;
    member->second.pulled.erase(pull.goal().stripe);
    folding.news.insert(index);  // the member may have more blocks
  }
}

// Its members are asked for again, without `sender`.
void Folds::note_pull_failed(const FoldGoal& goal, NodeId sender) {
  const auto fold = folds_.find(goal.target);
  if (fold == folds_.end()) return;
  auto& members = fold->second.accumulator.members();
  for (const std::uint32_t index : goal.members) {
    const auto member = members.find(index);
    if (member == members.end()) continue;
    member->second.located = false;
    member->second.failed = sender;
  }
  dirty_folds_.insert(goal.target);
}

// The sender can't combine the members of this pull, or one of them has gone. The next pulls ask
// for each by itself.
void Folds::ask_singly(const ObjectId& target, NodeId sender) {
  folds_.at(target).singly.insert(sender);
  dirty_folds_.insert(target);
}

}  // namespace hoplite
