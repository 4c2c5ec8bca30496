// A reduce seen from its owners and from its caller; the home's part is ReduceTree.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/check.h"
#include "plan/engine_state.h"

namespace hoplite {
namespace {

bool is_other_plan(const ReduceOwn& a, const ReduceOwn& b) {
  return a.op != b.op || a.deterministic != b.deterministic || a.everywhere != b.everywhere ||
         a.source_count != b.source_count || a.count != b.count || a.share != b.share;
}

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

void Engine::State::on(NodeId, const Message&, const ReduceOwn& own) {
  if (own.stripe_count == 0 || own.stripe_count > kStripesMax || own.meta.block_bytes == 0 ||
      own.count == 0 || own.target_epoch.value == 0 || tombstones_.contains(own.target) ||
      !can_reduce_all(own.meta.parts, own.op)) {
    return;
  }
  LocalObject& object = objects_[own.target];
  if (object.target_epoch > own.target_epoch || object.writing || object.inbound ||
      (object.target_epoch.value == 0 && object.extent)) {
    return;
  }
  if (object.target_epoch.value > 0 && object.committed && object.extent) {
    // It may be mapped already: what is committed stays, and the home hears of it.
    return report_committed(own.target);
  }
  if (object.incarnation.value != 0 && object.meta != own.meta) {
    // Another home took another source's shape for the result: what is here has not its size.
    end_fold(own.target);
    void_bytes(own.target, object);
  }
  if (const auto known = folds_.find(own.target);
      known != folds_.end() && is_other_plan(own, known->second.accumulator.own())) {
    end_fold(own.target);  // of a reduce that was deleted, and we have not heard of it
  }
  const auto [fold, is_new] =
      folds_.try_emplace(own.target, Folding{Accumulator(own), {}, {}, {}, 0, false});
  Folding& folding = fold->second;
  const bool raised = object.target_epoch < own.target_epoch;
  if (!is_new && !folding.accumulator.handle_own(own)) return;
  dirty_folds_.insert(own.target);
  folding.reported.clear();  // a new home has not heard of it
  if (raised) {
    // Blocks that still hold only members stay in the accumulator; nothing is final in this epoch.
    std::vector<TransferId> under_way;
    under_way.reserve(folding.pulls.size());
    for (const auto& [transfer, half] : folding.pulls) under_way.push_back(transfer);
    for (const TransferId transfer : under_way) end_pull(transfer, true);
    folding.singly.clear();
    for (LocalStripe& stripe : object.stripes) {
      if (stripe.state == StripeState::kReceiving) end_pull(stripe.transfer, true);
    }
    refuse(sender_.drop(own.target), own.target);
    object.stripes.assign(own.stripe_count, LocalStripe{});
    folding.reported.clear();
  }
  object.incarnation = Incarnation{1};
  object.target_epoch = own.target_epoch;
  object.meta = own.meta;
  object.committed = false;
  object.pinned = true;
  object.is_branch = own.is_branch;
  if (object.stripes.size() != own.stripe_count) {  // received under another cut: void here
    for (LocalStripe& stripe : object.stripes) {
      if (stripe.state == StripeState::kReceiving) end_pull(stripe.transfer, true);
    }
    object.stripes.assign(own.stripe_count, LocalStripe{});
  }
  for (const StripeIndex index : own.owned) {
    if (index.value >= own.stripe_count) continue;
    LocalStripe& stripe = object.stripes[index.value];
    if (stripe.state == StripeState::kReceiving) end_pull(stripe.transfer, true);
    if (stripe.state != StripeState::kRoot) {
      folding.accumulator.accept_final(index, stripe.ready);
    }
    stripe.state = StripeState::kRoot;
    stripe.beyond.clear();
  }
  if (!reserve_fold(folding, object)) return on_refused(own.target, own.meta.size_bytes);
  if (object.extent) claim(own.target);
}

// All that this owner can do for a reduce now: find members, fold what is here, pull what is not.
void Engine::State::drive_fold(const ObjectId& target) {
  const auto it = folds_.find(target);
  if (it == folds_.end() || it->second.failed) return;
  Folding& folding = it->second;
  if (!objects_.at(target).extent || !folding.workspace.is_complete()) return;
  // Each owner starts at another member, so that not all of them pull from the same node at once.
  auto& members = folding.accumulator.members();
  std::vector<std::uint32_t> order;
  order.reserve(members.size());
  for (const auto& [index, member] : members) order.push_back(index);
  if (!order.empty() && !folding.accumulator.own().owned.empty()) {
    const auto turn = folding.accumulator.own().owned.front().value % order.size();
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(turn), order.end());
  }
  std::vector<std::uint32_t> remote;  // in the same order
  std::map<NodeId, std::vector<std::uint32_t>> remote_at;
  for (const std::uint32_t index : order) {
    Accumulator::Member& member = members.at(index);
    if (fold_local(target, folding, member)) continue;
    if (!member.located) {
      locate_member(target, member);
    } else if (member.sender == config_.node) {
      member.located = false;  // it was here and is not any more
      member.failed = config_.node;
      locate_member(target, member);
    } else if (!member.whole) {
      remote.push_back(index);
      remote_at[member.sender].push_back(index);
    }
  }
  for (const std::uint32_t index : remote) {
    pull_member(folding, index, remote_at.at(members.at(index).sender));
  }
  publish_folded(target, folding);
  // The home owns a stripe like all others, and sees from it how a fold gets on: once for each
  // member that came.
  const std::size_t known = members.size();
  if (view_.home_of(target) != config_.node || folding.accumulator.own().sealed ||
      known == folding.members_begun || !folding.accumulator.has_begun()) {
    return;
  }
  folding.members_begun = known;
  reduces_.handle_begun(target, view_);
}

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

// Blocks that hold every sealed member can be read on; stripes that have them all are reported.
void Engine::State::publish_folded(const ObjectId& target, Folding& folding) {
  LocalObject& object = objects_.at(target);
  ReduceReport news;
  for (const StripeIndex stripe : folding.accumulator.own().owned) {
    while (fold_bytes_left_ > 0) {
      const auto whole = folding.accumulator.poll_whole(stripe);
      if (!whole) break;
      finish_block(object, folding, *whole);
    }
    if (fold_bytes_left_ == 0) dirty_folds_.insert(target);
    object.stripes[stripe.value].ready = folding.accumulator.final_blocks(stripe);
    if (!folding.accumulator.is_folded(stripe) || folding.reported.contains(stripe)) continue;
    folding.reported.insert(stripe);
    news.folded.push_back(stripe);
  }
  if (!news.folded.empty()) report(target, std::move(news));
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

void Engine::State::report(const ObjectId& target, ReduceReport report) {
  const auto it = objects_.find(target);
  if (it == objects_.end()) return;
  report.target = target;
  report.target_epoch = it->second.target_epoch;
  report.meta = it->second.meta;
  send(view_.home_of(target), std::move(report));
}

void Engine::State::report_committed(const ObjectId& target) {
  ReduceReport news;
  news.committed = committed_[target].members;
  news.caller = committed_[target].caller;
  report(target, std::move(news));
}

void Engine::State::on(NodeId, const Message&, const ReduceState& state) {
  if (const auto call = calls_.find(state.target); call != calls_.end()) {
    call->second.want.seen = std::max(call->second.want.seen, state.target_epoch);
    if (state.phase == ReducePhase::kCommitted) {
      reply(call->second.waiter, Reduced{state.members});
      end_call(state.target);
    } else if (state.phase == ReducePhase::kFailed) {
      reply(call->second.waiter, Error{state.code, state.text});
      end_call(state.target);
    }
  }
  auto it = objects_.find(state.target);
  if (it == objects_.end()) return;
  if (state.phase == ReducePhase::kFailed) {
    fail_waiters(it->second, state.code, state.text);
    it->second.whole_wanted = false;
    return drop_object(state.target, Incarnation{1}, false);
  }
  if (state.target_epoch > it->second.target_epoch) {
    raise_target(state, it->second);
    it = objects_.find(state.target);  // nobody may have wanted it
    if (it == objects_.end()) return;
  }
  if (state.phase == ReducePhase::kCommitted && state.target_epoch == it->second.target_epoch &&
      !it->second.committed) {
    commit_target(state, it->second);
  }
}

// A newer target epoch: blocks received under the older one are void. An owner keeps its
// accumulator: the ReduceOwn that follows says which of its blocks are.
void Engine::State::raise_target(const ReduceState& state, LocalObject& object) {
  const bool knows = object.incarnation.value != 0;
  if (!knows || (folds_.contains(state.target) && state.phase == ReducePhase::kRunning)) return;
  end_fold(state.target);  // committed without us
  void_bytes(state.target, object);
  object.target_epoch = state.target_epoch;
  object.committed = object.pinned = false;
  claim(state.target);
  forget_if_empty(state.target);
}

void Engine::State::commit_target(const ReduceState& state, LocalObject& object) {
  object.committed = true;
  if (const auto fold = folds_.find(state.target); fold != folds_.end()) {
    for (const StripeIndex index : fold->second.accumulator.own().owned) {
      LocalStripe& stripe = object.stripes[index.value];
      stripe.state =
          fold->second.accumulator.is_folded(index) ? StripeState::kComplete : StripeState::kIdle;
    }
    end_fold(state.target);
  }
  committed_[state.target] = {state.members, state.caller};
  claim(state.target);
  complete(state.target, object);
}

// Who planned them begins anew under a new view, and may be nobody that we could ask.
void Engine::State::drop_branches() {
  std::vector<ObjectId> branches;
  for (const auto& [id, object] : objects_) {
    if (object.is_branch) branches.push_back(id);
  }
  for (const ObjectId& id : branches) drop_object(id, Incarnation{1}, false);
}

// ---- the caller's side ----

// The source has arrived, or never will: it is the next in the order of arrival.
void Engine::State::confirm(const ObjectId& target, const ReduceSource& source) {
  ReduceWant& whole = calls_.at(target).want;
  if (whole.confirmed.size() >= whole.source_count) return;
  ReduceWant news = whole;
  news.first = static_cast<std::uint32_t>(whole.confirmed.size());
  news.confirmed = {source};
  whole.confirmed.push_back(source);
  send(view_.home_of(target), std::move(news));
}

// A source that a caller waits for has been found (or lost: no incarnation).
void Engine::State::note_arrival(const ObjectId& source, std::optional<Incarnation> incarnation) {
  for (auto& [target, call] : calls_) {
    std::vector<ReduceSource> arrived;
    std::erase_if(call.awaited, [&](const ReduceSource& awaited) {
      if (awaited.object == source) arrived.push_back(awaited);
      return awaited.object == source;
    });
    for (ReduceSource& each : arrived) {
      each.failed = !incarnation;
      each.incarnation = incarnation.value_or(Incarnation{});
      confirm(target, each);
    }
  }
}

// Questions about sources that nobody waits for any more are taken back.
void Engine::State::end_call(const ObjectId& target) {
  const std::vector<ReduceSource> awaited = std::move(calls_.at(target).awaited);
  calls_.erase(target);
  for (const ReduceSource& source : awaited) {
    const auto question = locates_.find(source.object);
    if (question == locates_.end() || question->second.exists) continue;
    const bool shared = std::any_of(calls_.begin(), calls_.end(), [&](const auto& call) {
      return std::any_of(call.second.awaited.begin(), call.second.awaited.end(),
                         [&](const ReduceSource& s) { return s.object == source.object; });
    });
    if (shared) continue;
    locates_.erase(question);
    claim(source.object);
  }
}

void Engine::State::end_fold(const ObjectId& target) {
  const auto it = folds_.find(target);
  if (it == folds_.end()) return;
  std::vector<TransferId> under_way;
  under_way.reserve(it->second.pulls.size());
  for (const auto& [transfer, half] : it->second.pulls) under_way.push_back(transfer);
  for (const TransferId transfer : under_way) end_pull(transfer, true);
  for (const Extent& range : it->second.workspace.ranges()) inventory_.release(range, now_);
  for (const auto& [index, member] : it->second.accumulator.members()) {
    const auto source = objects_.find(member.source.object);
    if (!member.whole || source == objects_.end()) continue;
    source->second.whole_wanted = false;
    note_use(source->first);
    abandon(member.source.object);
  }
  for (const auto& [other, folding] : folds_) dirty_folds_.insert(other);  // may want it too
  const ObjectId key = workspace_key(target);
  if (slot_keys_.erase(key) > 0) inventory_.cancel(key, now_);
  folds_.erase(it);
  dirty_folds_.erase(target);
}

}  // namespace hoplite
