// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/reduces/folds.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "plan/engine/owners.h"

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
void Folds::handle_reduce_own(NodeId from, const ReduceOwn& own) {
  if (from != engine_.peers.home_of(own.target) && from != engine_.config.node) return;
  if (own.stripe_count == 0 || own.stripe_count > kStripesMax || own.meta.block_bytes == 0 ||
      own.count == 0 || own.target_epoch.value == 0 || !can_reduce_all(own.meta.parts, own.op)) {
    return;
  }
  if (engine_.keeping.is_deleted(own.target, Incarnation{1}))
    return engine_.outgoing.send(from, refusal_of(own));
  LocalObject& object = engine_.objects.make(own.target);
  if (object.target_epoch > own.target_epoch || object.put_request || object.inbound ||
      (object.target_epoch.value == 0 && object.is_here())) {
    return;
  }
  if (engine_.rebuilds.makes(own.target)) {
    engine_.rebuilds.fall_back(own.target);  // it may erase the entry
    return handle_reduce_own(from, own);
  }
  if (object.target_epoch.value > 0 && object.is_final() && object.is_here()) {
    // The result may be mapped already: committed bytes stay, and the home hears about them.
    return report_committed(own.target);
  }
  if (object.incarnation.value != 0 && object.meta != own.meta) {
    // Another home took another source's shape for the result, so the bytes here have a wrong size.
    end_fold(own.target);
    engine_.objects.void_bytes(own.target, object);
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
  const std::set<ObjectId> wanted = raised ? folding.whole_sources() : std::set<ObjectId>{};
  if (!is_new && !folding.accumulator.handle_own(own)) return;
  folding.note_members(own, is_other);
  const std::set<ObjectId> still_wanted = raised ? folding.whole_sources() : wanted;
  for (const ObjectId& source : wanted) {
    if (!still_wanted.contains(source)) stop_wanting(source);
  }
  dirty_folds_.insert(own.target);
  folding.reported.clear();  // a new home has no report yet
  if (raised) {
    // Blocks that hold only current members stay in the accumulator. No block is final in this
    // epoch.
    while (!folding.pulls.empty())
      engine_.transfers.end_pull(folding.pulls.begin()->first, Notice::kTellSender);
    folding.singly.clear();
    for (LocalStripe& stripe : object.stripes) {
      if (stripe.state == StripeState::kReceiving)
        engine_.transfers.end_pull(stripe.transfer, Notice::kTellSender);
    }
    // A branch has one epoch, and its reader may wait for it: its transfers go on.
    if (!own.is_branch) engine_.transfers.stop_serving(own.target);
    object.stripes.assign(own.stripe_count, LocalStripe{});
  }
  object.begin({Incarnation{1}, own.target_epoch}, own.meta, Keep::kMade,
               own.is_branch ? Finality::kBranch : Finality::kTentative);
  own_stripes(own, folding, object);
  held_back_.erase(own.target);
  if (!may_write(folding, object)) held_back_.insert(own.target);
  // A node that fetches the result only after the commit would wait for the time of one more copy.
  if (own.everywhere && !own.share.is_share()) object.wanted_by_all = true;
  if (!reserve_fold(folding, object))
    return engine_.objects.refuse_range(own.target, own.meta.size_bytes);
  if (object.extent) engine_.objects.claim(own.target);
}

void Folds::own_stripes(const ReduceOwn& own, Folding& folding, LocalObject& object) {
  if (object.stripes.size() != own.stripe_count) {  // received under another cut: void here
    for (LocalStripe& stripe : object.stripes) {
      if (stripe.state == StripeState::kReceiving)
        engine_.transfers.end_pull(stripe.transfer, Notice::kTellSender);
    }
    object.stripes.assign(own.stripe_count, LocalStripe{});
  }
  for (const StripeIndex index : own.owned) {
    if (index.value >= own.stripe_count) continue;
    LocalStripe& stripe = object.stripes[index.value];
    if (stripe.state == StripeState::kReceiving)
      engine_.transfers.end_pull(stripe.transfer, Notice::kTellSender);
    if (stripe.state != StripeState::kRoot) {
      folding.accumulator.accept_final(index, stripe.ready);
    }
    stripe.state = StripeState::kRoot;
    stripe.beyond.clear();
  }
}

// Reserves result and workspace together or not at all, so that no two folds wait for each other's
// memory. Only stripes that move here later ask for more, and the result of two levels waits behind
// a branch here; these requests fail after the grace.
// Returns false if the arena could never hold it.
bool Folds::reserve_fold(Folding& folding, const LocalObject& object) {
  const ReduceOwn& own = folding.accumulator.own();
  if (!engine_.inventory.can_hold({own.meta.size_bytes, 0}, Line::kFolds)) return false;
  const FoldPulls pulls =
      fold_pulls(own, engine_.config, std::numeric_limits<std::uint64_t>::max());
  const std::uint64_t slots = pulls.at_once * pulls.slot_bytes;
  const auto workspace = folding.workspace.ask(own, slots);
  if (!workspace) return true;
  const ObjectId key = object.extent ? workspace_key(own.target) : own.target;
  const Need need = object.extent ? Need{*workspace, 0} : Need{own.meta.size_bytes, *workspace};
  if (!engine_.inventory.can_hold(need, Line::kFolds)) return false;
  if (object.extent) slot_keys_.emplace(key, own.target);
  engine_.inventory.cancel(key, engine_.now);  // a smaller request, or one of a get
  engine_.inventory.request(key, need, Line::kFolds, engine_.now);
  return true;
}

// Places the workspace. The fold may have ended while it waited for the range.
void Folds::place_workspace(const ObjectId& target, Extent range) {
  const auto fold = folds_.find(target);
  if (fold == folds_.end()) return engine_.inventory.release(range, engine_.now);
  fold->second.workspace.place(range);
  dirty_folds_.insert(target);
}

// Returns the target of a reservation for a workspace alone, and forgets the reservation.
std::optional<ObjectId> Folds::take_slot_key(const ObjectId& key) {
  const auto slot = slot_keys_.find(key);
  if (slot == slot_keys_.end()) return std::nullopt;
  return slot_keys_.extract(slot).mapped();
}

// Folds what changed, a target at a time. Returns false if there is nothing to do in this turn.
bool Folds::drive_next() {
  if (dirty_folds_.empty() || engine_.outgoing.fold_bytes_left() == 0) return false;
  const ObjectId dirty = *dirty_folds_.begin();
  dirty_folds_.erase(dirty_folds_.begin());
  drive_fold(dirty);
  return true;
}

// Does all that this owner can do for a reduce at this point: finds members, folds what is here,
// pulls the rest.
void Folds::drive_fold(const ObjectId& target) {
  const auto it = folds_.find(target);
  if (it == folds_.end() || it->second.failed || held_back_.contains(target)) return;
  Folding& folding = it->second;
  if (!engine_.objects.at(target).extent || !folding.workspace.is_complete()) return;
  drive_members(target, folding);
  publish_folded(target, folding);
  // The home owns a stripe like every other owner, and sees from its own fold how the reduce gets
  // on. Reports it once for each member that came.
  const std::size_t known = folding.accumulator.members().size();
  if (engine_.peers.home_of(target) != engine_.config.node || folding.accumulator.own().sealed ||
      known == folding.members_begun || !folding.accumulator.has_begun()) {
    return;
  }
  folding.members_begun = known;
  engine_.reduces.handle_begun(target, engine_.peers.view());
}

// True if no closed receive may still write into the stripes that this node owns. It received them
// while another node owned them.
bool Folds::may_write(const Folding& folding, const LocalObject& object) const {
  const ReduceOwn& own = folding.accumulator.own();
  return !object.extent || std::ranges::all_of(own.owned, [&](StripeIndex stripe) {
    return engine_.loans.is_free({*object.extent, own.meta.block_bytes, own.stripe_count, stripe});
  });
}

void Folds::retry_held_back() {
  std::erase_if(held_back_, [&](const ObjectId& target) {
    const bool is_free = may_write(folds_.at(target), engine_.objects.at(target));
    if (is_free) dirty_folds_.insert(target);
    return is_free;
  });
}

// Publishes blocks that hold every sealed member to readers, and reports stripes whose blocks all
// do.
void Folds::publish_folded(const ObjectId& target, Folding& folding) {
  LocalObject& object = engine_.objects.at(target);
  ReduceReport news;
  for (const StripeIndex stripe : folding.accumulator.own().owned) {
    while (engine_.outgoing.fold_bytes_left() > 0) {
      const auto whole = folding.accumulator.poll_whole(stripe);
      if (!whole) break;
      finish_block(object, folding, *whole);
    }
    if (engine_.outgoing.fold_bytes_left() == 0) dirty_folds_.insert(target);
    const std::uint32_t before =
        std::exchange(object.stripes[stripe.value].ready, folding.accumulator.final_blocks(stripe));
    if (object.finality == Finality::kBranch) {
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

void Folds::open_paces() {
  if (!paces_due_ || *paces_due_ > engine_.now) return;
  paces_due_.reset();
  for (auto& [target, folding] : folds_) {
    for (auto& [stripe, pace] : folding.paces) pace.handle_window();
    dirty_folds_.insert(target);
  }
}

void Folds::report(const ObjectId& target, ReduceReport report) {
  LocalObject* const found = engine_.objects.find(target);
  if (found == nullptr) return;
  report.target = target;
  report.target_epoch = found->target_epoch;
  report.meta = found->meta;
  engine_.outgoing.send(engine_.calls.planner_of(target), std::move(report));
}

void Folds::report_committed(const ObjectId& target) {
  const auto outcome = committed_.find(target);
  if (outcome == committed_.end())
    return report(target, {});  // a small result that was pushed here
  ReduceReport news;
  news.target = target;
  news.target_epoch = outcome->second.target_epoch;
  news.committed = outcome->second.members;
  news.caller = outcome->second.caller;
  engine_.outgoing.send(engine_.calls.planner_of(target), std::move(news));
}

void Folds::handle_reduce_state(NodeId from, const ReduceState& state) {
  if (from != engine_.peers.home_of(state.target) && from != engine_.config.node) return;
  const bool is_ours = engine_.calls.is_planned_here(state.target);
  engine_.calls.answer_call(state);
  LocalObject* found = engine_.objects.find(state.target);
  if (found == nullptr) return;
  if (state.phase == ReducePhase::kFailed) {
    found->wanted_by_fold = found->wanted_by_all = false;
    engine_.objects.fail_waiters(state.target, *found, state.code, state.text);
    engine_.objects.drop_object(state.target, Incarnation{1}, Cause::kLost);
    return stop_wanting(state.target);  // a part of a later attempt goes as well
  }
  if (state.target_epoch > found->target_epoch) {
    raise_target(state, *found);
    found = engine_.objects.find(state.target);  // raise_target may have forgotten the object
    if (found == nullptr) return;
  }
  if (state.phase == ReducePhase::kCommitted && state.target_epoch == found->target_epoch &&
      !found->is_final()) {
    commit_target(state, *found);
    if (is_ours) report_committed(state.target);
  }
}

// A newer target epoch voids blocks that were received under an older one. An owner keeps its
// accumulator, because the ReduceOwn that follows says which of its blocks are void.
void Folds::raise_target(const ReduceState& state, LocalObject& object) {
  const bool knows = object.incarnation.value != 0;
  if (!knows || (folds_.contains(state.target) && state.phase == ReducePhase::kRunning)) return;
  end_fold(state.target);  // committed without this node
  engine_.objects.end_put(state.target, object, "made by a reduce");
  object.begin({object.incarnation, state.target_epoch}, object.meta, Keep::kCopy,
               Finality::kTentative);
  engine_.objects.claim(state.target);
  engine_.objects.forget_if_empty(state.target);
}

void Folds::commit_target(const ReduceState& state, LocalObject& object) {
  object.finality = Finality::kFinal;
  if (const auto fold = folds_.find(state.target); fold != folds_.end()) {
    for (const StripeIndex index : fold->second.accumulator.own().owned) {
      LocalStripe& stripe = object.stripes[index.value];
      stripe.state =
          fold->second.accumulator.is_folded(index) ? StripeState::kComplete : StripeState::kIdle;
    }
    end_fold(state.target);
  }
  // A small result is one block for every receiver, although it may have come in several.
  if (object.meta.size_bytes <= engine_.config.inline_bytes_max) {
    object.meta = engine_.objects.cut(object.meta);
    object.sums.clear();
  }
  note_committed(state);
  engine_.objects.claim(state.target);
  engine_.objects.complete(state.target, object);
}

void Folds::note_committed(const ReduceState& state) {
  committed_[state.target] = {state.target_epoch, state.members, state.caller};
}

void Folds::forget_outcome(const ObjectId& target) {
  const auto outcome = committed_.find(target);
  if (outcome == committed_.end() || outcome->second.caller == engine_.config.node) return;
  committed_.erase(outcome);
}

void Folds::end_fold(const ObjectId& target) {
  const auto it = folds_.find(target);
  if (it == folds_.end()) return;
  while (!it->second.pulls.empty())
    engine_.transfers.end_pull(it->second.pulls.begin()->first, Notice::kTellSender);
  for (const Extent& range : it->second.workspace.ranges()) engine_.objects.release_range(range);
  for (const auto& [index, member] : it->second.accumulator.members()) {
    if (member.whole) stop_wanting(member.source.object);
  }
  for (const auto& [other, folding] : folds_) dirty_folds_.insert(other);  // may want it too
  const ObjectId key = workspace_key(target);
  if (slot_keys_.erase(key) > 0) engine_.inventory.cancel(key, engine_.now);
  folds_.erase(it);
  dirty_folds_.erase(target);
  held_back_.erase(target);
}

// A source is no longer fetched whole for a fold here. Folds that still want it are marked for a
// look at it.
void Folds::stop_wanting(const ObjectId& source) {
  LocalObject* const found = engine_.objects.find(source);
  if (found == nullptr) return;
  found->wanted_by_fold = false;
  engine_.objects.note_use(source);
  engine_.objects.drop_unwanted(source);
  note_here(source);
}

// The result is not folded, because nothing here has room for it.
void Folds::fail_fold(const ObjectId& target, const std::string& text) {
  if (!folds_.contains(target)) return;
  ReduceReport news;
  news.code = Code::kStoreFull;
  news.text = text;
  report(target, std::move(news));
  end_fold(target);
}

// Gives up the folds that lack some of `source`.
void Folds::fail_folds_of(const ObjectId& source, const std::string& text) {
  std::vector<ObjectId> targets;
  for (const auto& [target, folding] : folds_) {
    const Accumulator& accumulator = folding.accumulator;
    const auto& members = accumulator.members();
    const auto lacks = [&](const auto& each) {
      const auto& owned = accumulator.own().owned;
      return each.second.source.object == source &&
             std::any_of(owned.begin(), owned.end(), [&](StripeIndex stripe) {
               return accumulator.first_lacking(each.first, stripe).has_value();
             });
    };
    if (std::any_of(members.begin(), members.end(), lacks)) targets.push_back(target);
  }
  for (const ObjectId& target : targets) engine_.objects.fail_without_room(target, text);
}

// Drops all branches. Their planner begins anew under a new view, and may be gone, so no node could
// be asked about them.
void Folds::drop_branches() {
  std::vector<ObjectId> branches;
  for (const auto& [id, object] : engine_.objects.all()) {
    if (object.finality == Finality::kBranch) branches.push_back(id);
  }
  for (const ObjectId& id : branches) engine_.objects.drop_object(id, Incarnation{1}, Cause::kLost);
}

void Folds::repeat_reports(std::optional<NodeId> only_to) {
  for (auto& [id, folding] : folds_) {
    if (!engine_.peers.is_for(id, only_to)) continue;
    folding.reported.clear();
    report(id, {});
    dirty_folds_.insert(id);
  }
  for (const auto& [id, outcome] : committed_) {
    if (engine_.peers.is_for(id, only_to)) report_committed(id);
  }
}

void Folds::check_invariants() const {
  for (const auto& [target, folding] : folds_) {
    const ReduceOwn& own = folding.accumulator.own();
    const LocalObject* result = engine_.objects.find(target);
    HOPLITE_CHECK(result != nullptr && result->target_epoch == own.target_epoch);
    const bool is_held_back = held_back_.contains(target);
    HOPLITE_CHECK(engine_.transfers.has_closed() || is_held_back != may_write(folding, *result));
    for (const auto& [index, member] : folding.accumulator.members()) {
      const bool is_awaited = folding.news.contains(index) || folding.here.contains(index) ||
                              folding.waiting.contains(index) ||
                              folding.asked.contains({member.source.object, index});
      for (const StripeIndex stripe : own.owned) {
        HOPLITE_CHECK(is_awaited || member.pulled.contains(stripe) ||
                      !folding.accumulator.first_lacking(index, stripe));
      }
    }
  }
}

}  // namespace hoplite
