// A reduce at its owners and at its caller. The home's part is ReduceTree; members.cc finds
// an owner's members.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/engine/state.h"
#include "plan/reduce/reduce_shape.h"

namespace hoplite {
namespace {

bool is_other_plan(const ReduceOwn& a, const ReduceOwn& b) {
  return a.op != b.op || a.deterministic != b.deterministic || a.everywhere != b.everywhere ||
         a.source_count != b.source_count || a.count != b.count || a.share != b.share ||
         a.is_unary != b.is_unary;  // the slots are sized by it
}

// True if a member may be lacking now although it has been folded wherever it had to be.
bool asks_for_more(const ReduceOwn& a, const ReduceOwn& b) {
  return a.target_epoch != b.target_epoch || a.stripe_count != b.stripe_count || a.owned != b.owned;
}

// The caller's report of a failure. A receiver of the result hears it from the target's home, and
// the home may change at any time.
ReduceReport failure_of(const ReduceState& state, NodeId caller) {
  ReduceReport failure;
  failure.target = state.target;
  failure.target_epoch = state.target_epoch;
  failure.caller = caller;
  failure.code = state.code;
  failure.text = state.text;
  return failure;
}

// The owner's refusal of a deleted target. The planner may have forgotten the deletion.
ReduceReport refusal_of(const ReduceOwn& own) {
  ReduceReport refusal;
  refusal.target = own.target;
  refusal.target_epoch = own.target_epoch;
  refusal.code = Code::kCancelled;
  refusal.text = "reduce of " + short_name(own.target) + " was cancelled: its target was deleted";
  return refusal;
}

}  // namespace

// Comes from the planner: the target's home, for a branch as well, or this node for a client here.
void Engine::State::handle_reduce_own(NodeId from, const ReduceOwn& own) {
  if (from != view_.home_of(own.target) && from != config_.node) return;
  if (own.stripe_count == 0 || own.stripe_count > kStripesMax || own.meta.block_bytes == 0 ||
      own.count == 0 || own.target_epoch.value == 0 || !can_reduce_all(own.meta.parts, own.op)) {
    return;
  }
  if (is_deleted(own.target, Incarnation{1})) return send(from, refusal_of(own));
  LocalObject& object = objects_[own.target];
  if (object.target_epoch > own.target_epoch || object.writing || object.inbound ||
      (object.target_epoch.value == 0 && object.is_here())) {
    return;
  }
  if (object.target_epoch.value > 0 && object.committed && object.is_here()) {
    // The result may be mapped already: committed bytes stay, and the home hears about them.
    return report_committed(own.target);
  }
  if (object.incarnation.value != 0 && object.meta != own.meta) {
    // Another home took another source's shape for the result, so the bytes here have a wrong size.
    end_fold(own.target);
    void_bytes(own.target, object);
  }
  if (const auto known = folds_.find(own.target);
      known != folds_.end() && is_other_plan(own, known->second.accumulator.own())) {
    end_fold(own.target);  // its reduce was deleted, and this node has not heard of it
  }
  const auto [fold, is_new] =
      folds_.try_emplace(own.target, Folding{Accumulator(own), {}, {}, {}, 0, false});
  Folding& folding = fold->second;
  const bool raised = object.target_epoch < own.target_epoch;
  const bool is_other = is_new || asks_for_more(own, folding.accumulator.own());
  if (!is_new && !folding.accumulator.handle_own(own)) return;
  folding.note_members(own, is_other);
  dirty_folds_.insert(own.target);
  folding.reported.clear();  // a new home has no report yet
  if (raised) {
    // Blocks that hold only current members stay in the accumulator. No block is final in this
    // epoch.
    while (!folding.pulls.empty()) end_pull(folding.pulls.begin()->first, true);
    folding.singly.clear();
    for (LocalStripe& stripe : object.stripes) {
      if (stripe.state == StripeState::kReceiving) end_pull(stripe.transfer, true);
    }
    // A branch has one epoch, and its reader may wait for it: its transfers go on.
    if (!own.is_branch) refuse(sender_.drop(own.target), own.target);
    object.stripes.assign(own.stripe_count, LocalStripe{});
  }
  object.incarnation = Incarnation{1};
  object.target_epoch = own.target_epoch;
  object.meta = own.meta;
  object.committed = false;
  object.pinned = true;
  object.is_branch = own.is_branch;
  own_stripes(own, folding, object);
  // A node that fetches the result only after the commit would wait for the time of one more copy.
  if (own.everywhere && !own.share.is_share()) object.whole_wanted = true;
  if (!reserve_fold(folding, object)) return on_refused(own.target, own.meta.size_bytes);
  if (object.extent) claim(own.target);
}

void Engine::State::own_stripes(const ReduceOwn& own, Folding& folding, LocalObject& object) {
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
}

// Does all that this owner can do for a reduce at this point: finds members, folds what is here,
// pulls the rest.
void Engine::State::drive_fold(const ObjectId& target) {
  const auto it = folds_.find(target);
  if (it == folds_.end() || it->second.failed) return;
  Folding& folding = it->second;
  if (!objects_.at(target).extent || !folding.workspace.is_complete()) return;
  drive_members(target, folding);
  publish_folded(target, folding);
  // The home owns a stripe like every other owner, and sees from its own fold how the reduce gets
  // on. Reports it once for each member that came.
  const std::size_t known = folding.accumulator.members().size();
  if (view_.home_of(target) != config_.node || folding.accumulator.own().sealed ||
      known == folding.members_begun || !folding.accumulator.has_begun()) {
    return;
  }
  folding.members_begun = known;
  reduces_.handle_begun(target, view_);
}

// Publishes blocks that hold every sealed member to readers, and reports stripes whose blocks all
// do.
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
    const std::uint32_t before =
        std::exchange(object.stripes[stripe.value].ready, folding.accumulator.final_blocks(stripe));
    if (object.is_branch) {
      const bool is_news = before != object.stripes[stripe.value].ready;
      for (auto it = folds_.begin(); is_news && it != folds_.end(); ++it) {
        if (it->first != target)
          dirty_folds_.insert(it->first);  // the branch may be a member of it
      }
      continue;
    }
    if (!folding.accumulator.is_folded(stripe) || folding.reported.contains(stripe)) continue;
    folding.reported.insert(stripe);
    news.folded.push_back(stripe);
  }
  if (!news.folded.empty()) report(target, std::move(news));
}

void Engine::State::report(const ObjectId& target, ReduceReport report) {
  const auto it = objects_.find(target);
  if (it == objects_.end()) return;
  report.target = target;
  report.target_epoch = it->second.target_epoch;
  report.meta = it->second.meta;
  send(planner_of(target), std::move(report));
}

void Engine::State::report_committed(const ObjectId& target) {
  const auto outcome = committed_.find(target);
  if (outcome == committed_.end())
    return report(target, {});  // a small result that was pushed here
  ReduceReport news;
  news.target = target;
  news.target_epoch = outcome->second.target_epoch;
  news.committed = outcome->second.members;
  news.caller = outcome->second.caller;
  send(planner_of(target), std::move(news));
}

void EngineTables::forget_outcome(const ObjectId& target) {
  const auto outcome = committed_.find(target);
  if (outcome == committed_.end() || outcome->second.caller == config_.node) return;
  committed_.erase(outcome);
}

void Engine::State::handle_reduce_state(NodeId from, const ReduceState& state) {
  if (from != view_.home_of(state.target) && from != config_.node) return;
  const bool is_ours = is_planned_here(state.target);
  if (const auto call = calls_.find(state.target); call != calls_.end()) {
    call->second.want.seen = std::max(call->second.want.seen, state.target_epoch);
    if (state.phase == ReducePhase::kCommitted) {
      // An owner with a newer view than the home may miss this state. The next home asks this node.
      committed_[state.target] = {state.target_epoch, state.members, state.caller};
      reply(call->second.waiter, Reduced{state.members});
      end_call(state.target);
    } else if (state.phase == ReducePhase::kFailed) {
      // A cancelled target has a deletion record and needs no record of its failure.
      const bool is_kept = state.caller == config_.node && state.code != Code::kCancelled;
      if (is_kept) failed_[state.target] = failure_of(state, config_.node);
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
    it = objects_.find(state.target);  // raise_target may have forgotten the object
    if (it == objects_.end()) return;
  }
  if (state.phase == ReducePhase::kCommitted && state.target_epoch == it->second.target_epoch &&
      !it->second.committed) {
    commit_target(state, it->second);
    if (is_ours) report_committed(state.target);
  }
}

// A newer target epoch voids blocks that were received under an older one. An owner keeps its
// accumulator, because the ReduceOwn that follows says which of its blocks are void.
void Engine::State::raise_target(const ReduceState& state, LocalObject& object) {
  const bool knows = object.incarnation.value != 0;
  if (!knows || (folds_.contains(state.target) && state.phase == ReducePhase::kRunning)) return;
  end_fold(state.target);  // committed without us
  end_put(state.target, object, "made by a reduce");
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
  // A small result is one block for every receiver, although it may have come in several.
  if (object.meta.size_bytes <= config_.inline_bytes_max) object.meta = cut(object.meta);
  committed_[state.target] = {state.target_epoch, state.members, state.caller};
  claim(state.target);
  complete(state.target, object);
}

// Drops all branches. Their planner begins anew under a new view, and may be gone, so no node could
// be asked about them.
void Engine::State::drop_branches() {
  std::vector<ObjectId> branches;
  for (const auto& [id, object] : objects_) {
    if (object.is_branch) branches.push_back(id);
  }
  for (const ObjectId& id : branches) drop_object(id, Incarnation{1}, false);
}

// ---- the caller's side ----

// Adds a source that has arrived or is lost: it is the next in the order of arrival.
void Engine::State::confirm(const ObjectId& target, const ReduceSource& source) {
  Call& call = calls_.at(target);
  if (call.is_planned) return forward(target, source);
  const ObjectMeta* meta = source.failed ? nullptr : meta_here(source);
  if (meta != nullptr) call.want.meta = *meta;
  call.unplanned.push_back(source);
  const bool asks = call.unplanned.size() == 1 && !source.failed && call.want.meta.block_bytes == 0;
  if (!asks) return begin_call(target);
  Locate& question = locates_[source.object];
  question = {source.object, source.incarnation, kNoNode, true,
              carried_bytes_max(call.want.source_count, config_)};
  send(view_.home_of(source.object), question);
}

// Returns the shape of a source that is here; else nullptr.
const ObjectMeta* EngineTables::meta_here(const ReduceSource& source) const {
  const auto it = objects_.find(source.object);
  if (it == objects_.end() || !it->second.is_here() || !it->second.committed) return nullptr;
  const bool is_it = source.incarnation.value == 0 || source.incarnation == it->second.incarnation;
  return is_it ? &it->second.meta : nullptr;
}

// Plans a reduce, or hands it to its home.
// A small result is folded on its caller's node and lost with it. That node therefore plans it,
// with the first source, and the home only hears how it ends.
// A large reduce is planned once for all sources that exist, because a plan for some of them costs
// the others. Each home says at once if it has none, and the caller's node waits for no home longer
// than a window.
// `is_lost`: the first source is lost, and no node can tell its shape.
void Engine::State::begin_call(const ObjectId& target, bool is_lost) {
  Call& call = calls_.at(target);
  ReduceWant& want = call.want;
  if (call.is_planned || call.unplanned.empty()) return;
  const bool is_known = want.meta.block_bytes > 0;
  const bool is_small = is_known && want.meta.size_bytes <= config_.inline_bytes_max;
  if (!is_known && !is_lost && !call.unplanned.front().failed) return;  // it is being asked for
  if (!is_small && !is_lost && !call.unanswered.empty()) return;
  call.is_planned = true;
  call.unanswered.clear();
  const NodeId home = view_.home_of(target);
  if (is_small) {
    want.is_callers = true;
    if (home != config_.node) send(home, want);
  }
  for (const ReduceSource& source : std::exchange(call.unplanned, {})) {
    if (want.confirmed.size() < want.source_count) want.confirmed.push_back(source);
  }
  if (want.is_callers) return reduces_.handle_want(config_.node, want, view_);
  if (!want.confirmed.empty()) send(home, want);
}

void Engine::State::forward(const ObjectId& target, const ReduceSource& source) {
  ReduceWant& whole = calls_.at(target).want;
  if (whole.confirmed.size() >= whole.source_count) return;
  std::vector<ReduceSource> confirmed = std::exchange(whole.confirmed, {source});
  ReduceWant news = whole;
  news.first = static_cast<std::uint32_t>(confirmed.size());
  confirmed.push_back(source);
  whole.confirmed = std::move(confirmed);
  if (whole.is_callers) return reduces_.handle_want(config_.node, news, view_);
  send(view_.home_of(target), std::move(news));
}

bool EngineTables::is_planned_here(const ObjectId& target) const {
  const auto call = calls_.find(target);
  return call != calls_.end() && call->second.want.is_callers;
}

NodeId EngineTables::planner_of(const ObjectId& target) const {
  return is_planned_here(target) ? config_.node : view_.home_of(target);
}

// Passes the state on to the directory here. If this node planned the reduce for its own client, a
// failure goes to the target's home, which answers all receivers and this node. The home hears of a
// success from the holders of the result.
void Engine::State::tell_state(const ReduceState& state) {
  const bool is_home = view_.home_of(state.target) == config_.node;
  if (is_home) directory_.handle_reduce_state(state, now_);
  if (state.phase != ReducePhase::kFailed || !is_planned_here(state.target)) return;
  const ReduceReport& failure = failed_[state.target] = failure_of(state, config_.node);
  if (is_home) return send(config_.node, state);
  send(view_.home_of(state.target), failure);
}

// A source that was asked for is found or lost. Informs the callers that wait for it, the reduces
// planned here, and the folds here.
void Engine::State::note_arrival(const ObjectId& source, const Located* located) {
  if (located == nullptr) locates_.erase(source);
  std::vector<ObjectId> asking;
  for (auto& [target, call] : calls_) {
    const bool is_asked = !call.unplanned.empty() && call.unplanned.front().object == source;
    const auto [first, last] = call.awaited.equal_range(source);
    if (is_asked || first != last) asking.push_back(target);
  }
  for (const ObjectId& target : asking) {
    Call& call = calls_.at(target);
    call.unanswered.erase(source);
    const bool is_first = call.want.meta.block_bytes == 0;
    if (located != nullptr && !call.is_planned && is_first) call.want.meta = located->meta;
    const bool is_asked = !call.unplanned.empty() && call.unplanned.front().object == source;
    if (is_asked && located == nullptr) begin_call(target, true);
    const auto [first, last] = call.awaited.equal_range(source);
    std::vector<ReduceSource> arrived;
    for (auto it = first; it != last; ++it) arrived.push_back(it->second);
    call.awaited.erase(first, last);
    for (ReduceSource& each : arrived) {
      each.failed = located == nullptr;
      each.incarnation = located == nullptr ? Incarnation{} : located->incarnation;
      const bool is_alike = located != nullptr && located->meta == call.want.meta;
      if (is_alike) each.holder = located->sender;  // its planner need not ask again
      if (call.is_planned) forward(target, each);
      if (!call.is_planned) call.unplanned.push_back(each);
    }
    begin_call(target);
  }
  if (located != nullptr) return;
  reduces_.handle_source_lost(source, view_);
  member_lost(source);
}

// Ends the call, and takes back its questions about sources that no other call waits for.
void Engine::State::end_call(const ObjectId& target) {
  const std::multimap<ObjectId, ReduceSource> awaited = std::move(calls_.at(target).awaited);
  if (calls_.at(target).want.is_callers) reduces_.forget(target);
  calls_.erase(target);
  for (const auto& each : awaited) {
    const ObjectId& source = each.first;
    const auto question = locates_.find(source);
    if (question == locates_.end() || question->second.exists) continue;
    const bool shared = std::any_of(calls_.begin(), calls_.end(), [&](const auto& call) {
      return call.second.awaited.contains(source);
    });
    if (shared) continue;
    locates_.erase(question);
    claim(source);
  }
}

void Engine::State::end_fold(const ObjectId& target) {
  const auto it = folds_.find(target);
  if (it == folds_.end()) return;
  while (!it->second.pulls.empty()) end_pull(it->second.pulls.begin()->first, true);
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
