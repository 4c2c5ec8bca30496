// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/reduces/calls.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/engine/owners.h"
#include "plan/reduce/reduce_shape.h"

namespace hoplite {
namespace {

// The caller's report of a failure. A receiver of the result hears it from the target's home, and
// the home may change at any time.
ReduceReport failure_of(const ReduceState& state, NodeId caller) {
  ReduceReport failure;
  failure.target = state.target;
  failure.target_epoch = state.target_epoch;
  failure.lost = state.lost;
  failure.caller = caller;
  failure.code = state.code;
  failure.text = state.text;
  return failure;
}

// `lost`: the indices that the planner names. Only those of the call's sources reach its client,
// each once and in order.
Reply reply_of(Code code, const std::string& text, std::vector<std::uint32_t> lost,
               std::uint32_t source_count) {
  if (code != Code::kReduceFailed) return Error{code, text};
  std::erase_if(lost, [&](std::uint32_t index) { return index >= source_count; });
  std::sort(lost.begin(), lost.end());
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  return ReduceFailed{std::move(lost), text};
}

}  // namespace

void Calls::handle_reduce(const Waiter& waiter, const ReduceCommand& reduce) {
  const std::string name = "reduce of " + short_name(reduce.target);
  if (reduce.count < 1 || reduce.count > reduce.source_count ||
      reduce.source_count > kReduceSourcesMax) {
    return engine_.outgoing.reply(
        waiter, Error{Code::kInvalidArgument, name + ": count " + std::to_string(reduce.count) +
                                                  " of " + std::to_string(reduce.source_count) +
                                                  " sources; needs 1 <= count <= sources <= " +
                                                  std::to_string(kReduceSourcesMax)});
  }
  if (reduce.share.offset > reduce.share.source_bytes ||
      reduce.meta.size_bytes > reduce.share.source_bytes - reduce.share.offset) {
    return engine_.outgoing.reply(
        waiter, Error{Code::kInvalidArgument,
                      name + ": its share, " + std::to_string(reduce.meta.size_bytes) +
                          " bytes from " + std::to_string(reduce.share.offset) +
                          " on, ends outside of the sources, which have " +
                          std::to_string(reduce.share.source_bytes)});
  }
  LocalObject* const there = engine_.objects.find(reduce.target);
  const bool has_bytes = there != nullptr && there->has_bytes();
  if (has_bytes || calls_.contains(reduce.target) ||
      engine_.keeping.is_deleted(reduce.target, Incarnation{1})) {
    return engine_.outgoing.reply(
        waiter, Error{Code::kDuplicateObject, name + ": its target is in use already"});
  }
  if (const auto failed = failed_.find(reduce.target); failed != failed_.end()) {
    const ReduceReport& failure = failed->second;
    return engine_.outgoing.reply(
        waiter, reply_of(failure.code, failure.text, failure.lost, reduce.source_count));
  }
  Call& call = calls_[reduce.target];
  call.waiter = waiter;
  call.want.target = reduce.target;
  call.want.op = reduce.op;
  call.want.source_count = reduce.source_count;
  call.want.count = reduce.count;
  call.want.everywhere = reduce.everywhere;
  call.want.deterministic = reduce.deterministic;
  call.want.share = reduce.share;
  if (reduce.share.is_share()) call.want.meta = engine_.objects.cut(reduce.meta);
  call.is_planned = reduce.share.is_share();  // its target's home plans it
  engine_.outgoing.send(engine_.peers.home_of(reduce.target), call.want);
}

void Calls::handle_reduce_source(const ReduceSourceCommand& command) {
  const auto it = calls_.find(command.target);
  if (it == calls_.end()) return;  // the reduce has ended meanwhile
  if (command.confirmed) return confirm(command.target, command.source);
  it->second.awaited.emplace(command.source.object, command.source);
  const ObjectId& object = command.source.object;
  const Locate question{object, command.source.incarnation, kNoNode, false,
                        carried_bytes_max(it->second.want.source_count, engine_.config)};
  const auto [open, is_new] = locates_.try_emplace(object, question);
  // An open question is asked again, because its answer may have been for an earlier call.
  if (is_new || !it->second.is_planned)
    engine_.outgoing.send(engine_.peers.home_of(object), open->second);
  if (it->second.is_planned) return;
  if (it->second.unanswered.empty())
    answers_due_.emplace_back(engine_.now + engine_.config.progress_window, command.target);
  it->second.unanswered.insert(object);
}

void Calls::handle_located(NodeId from, const Located& located, Bytes payload) {
  if (from != engine_.peers.home_of(located.object)) return;
  if (located.incarnation.value == 0) {  // no holder can be named yet; a second answer follows
    for (auto& [target, call] : calls_) {
      if (call.unanswered.erase(located.object) > 0) begin_call(target);
    }
    return;
  }
  locates_.erase(located.object);
  if (!payload.empty() && payload.size() == located.meta.size_bytes) {
    engine_.folds.carry({located.object, located.incarnation, std::move(payload)});
  }
  note_arrival(located.object, &located);
  engine_.reduces.handle_located(located, engine_.peers.view());
  engine_.folds.note_located(located);
  engine_.excerpts.handle_located(located);
}

// Adds a source that has arrived or is lost: it is the next in the order of arrival.
void Calls::confirm(const ObjectId& target, const ReduceSource& source) {
  Call& call = calls_.at(target);
  if (call.is_planned) return forward(target, source);
  const ObjectMeta* meta = source.failed ? nullptr : engine_.objects.meta_here(source);
  if (meta != nullptr) call.want.meta = *meta;
  call.unplanned.push_back(source);
  const bool asks = call.unplanned.size() == 1 && !source.failed && call.want.meta.block_bytes == 0;
  if (!asks) return begin_call(target);
  ask(Locate{source.object, source.incarnation, kNoNode, true,
             carried_bytes_max(call.want.source_count, engine_.config)});
}

// Plans a reduce, or hands it to its home.
// A small result is folded on its caller's node and lost with it. That node therefore plans it,
// with the first source, and the home only hears how it ends.
// A large reduce is planned once for all sources that exist, because a plan for some of them costs
// the others. Each home says at once if it has none, and the caller's node waits for no home longer
// than a window.
// `is_lost`: the first source is lost, and no node can tell its shape.
void Calls::begin_call(const ObjectId& target, bool is_lost) {
  Call& call = calls_.at(target);
  ReduceWant& want = call.want;
  if (call.is_planned || call.unplanned.empty()) return;
  const bool is_known = want.meta.block_bytes > 0;
  const bool is_small = is_known && want.meta.size_bytes <= engine_.config.inline_bytes_max;
  if (!is_known && !is_lost && !call.unplanned.front().failed) return;  // it is being asked for
  if (!is_small && !is_lost && !call.unanswered.empty()) return;
  call.is_planned = true;
  call.unanswered.clear();
  const NodeId home = engine_.peers.home_of(target);
  if (is_small) {
    want.is_callers = true;
    if (home != engine_.config.node) engine_.outgoing.send(home, want);
  }
  for (const ReduceSource& source : std::exchange(call.unplanned, {})) {
    if (want.confirmed.size() < want.source_count) want.confirmed.push_back(source);
  }
  if (want.is_callers)
    return engine_.reduces.handle_want(engine_.config.node, take_news(call), engine_.peers.view());
  if (!want.confirmed.empty()) news_.insert(target);
}

void Calls::forward(const ObjectId& target, const ReduceSource& source) {
  Call& call = calls_.at(target);
  if (call.want.confirmed.size() >= call.want.source_count) return;
  call.want.confirmed.push_back(source);
  if (!call.want.is_callers) {
    news_.insert(target);
    return;
  }
  engine_.reduces.handle_want(engine_.config.node, take_news(call), engine_.peers.view());
}

// Returns the want with the sources that its planner has not been told of.
ReduceWant Calls::take_news(Call& call) {
  std::vector<ReduceSource> confirmed = std::exchange(call.want.confirmed, {});
  ReduceWant news = call.want;
  news.first = static_cast<std::uint32_t>(call.told);
  news.confirmed.assign(confirmed.begin() + static_cast<std::ptrdiff_t>(call.told),
                        confirmed.end());
  call.told = confirmed.size();
  call.want.confirmed = std::move(confirmed);
  return news;
}

// Tells homes of the sources confirmed in this turn, in one message for each call.
bool Calls::send_news() {
  if (news_.empty()) return false;
  for (const ObjectId& target : std::exchange(news_, {})) {
    const auto call = calls_.find(target);
    if (call == calls_.end() || call->second.told == call->second.want.confirmed.size()) continue;
    engine_.outgoing.send(engine_.peers.home_of(target), take_news(call->second));
  }
  return true;
}

// A source that was asked for is found or lost. Informs the callers that wait for it, the reduces
// planned here, and the folds here.
void Calls::note_arrival(const ObjectId& source, const Located* located) {
  if (located == nullptr) {
    locates_.erase(source);
    engine_.excerpts.handle_source_lost(source, "object " + short_name(source) + " was deleted");
  }
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
  engine_.reduces.handle_source_lost(source, engine_.peers.view());
  engine_.folds.member_lost(source);
}

// Ends the call, and takes back its questions about sources that no other call waits for.
void Calls::end_call(const ObjectId& target) {
  const std::multimap<ObjectId, ReduceSource> awaited = std::move(calls_.at(target).awaited);
  if (calls_.at(target).want.is_callers) engine_.reduces.forget(target);
  calls_.erase(target);
  for (const auto& each : awaited) withdraw_question(each.first);
}

void Calls::withdraw_question(const ObjectId& source) {
  const auto question = locates_.find(source);
  if (question == locates_.end() || question->second.exists) return;
  const bool is_shared = std::any_of(calls_.begin(), calls_.end(), [&](const auto& call) {
    return call.second.awaited.contains(source);
  });
  if (is_shared || engine_.excerpts.asks_about(source)) return;
  locates_.erase(question);
  engine_.objects.claim(source);
}

// Ends the call of this request, if there is one.
bool Calls::cancel_call(const ObjectId& target, const Waiter& waiter) {
  const auto call = calls_.find(target);
  if (call == calls_.end() || call->second.waiter != waiter) return false;
  engine_.outgoing.reply(waiter, Error{Code::kCancelled, "cancelled by the caller"});
  end_call(target);
  return true;
}

std::vector<std::pair<ObjectId, Waiter>> Calls::calls_of(ClientId client) const {
  std::vector<std::pair<ObjectId, Waiter>> found;
  for (const auto& [target, call] : calls_) {
    if (call.waiter.client == client) found.emplace_back(target, call.waiter);
  }
  return found;
}

// Answers the client that called the reduce, if it has ended.
void Calls::answer_call(const ReduceState& state) {
  const auto call = calls_.find(state.target);
  if (call == calls_.end()) return;
  if (state.caller != kNoNode && state.caller != engine_.config.node) {
    return refuse_second(state.target, call->second);
  }
  call->second.want.seen = std::max(call->second.want.seen, state.target_epoch);
  if (state.phase == ReducePhase::kCommitted) {
    // An owner with a newer view than the home may miss this state. The next home asks this node.
    engine_.folds.note_committed(state);
    engine_.outgoing.reply(call->second.waiter, Reduced{state.members});
    end_call(state.target);
  } else if (state.phase == ReducePhase::kFailed) {
    // A cancelled target has a deletion record and needs no record of its failure.
    const bool is_kept = state.caller == engine_.config.node && state.code != Code::kCancelled;
    if (is_kept) failed_[state.target] = failure_of(state, engine_.config.node);
    engine_.outgoing.reply(call->second.waiter, reply_of(state.code, state.text, state.lost,
                                                         call->second.want.source_count));
    end_call(state.target);
  }
}

// A client of another node reduces into this target, so the plan and the fold here are void.
void Calls::refuse_second(const ObjectId& target, const Call& call) {
  const bool is_planned_here = call.want.is_callers;
  engine_.outgoing.reply(
      call.waiter, Error{Code::kDuplicateObject,
                         "reduce of " + short_name(target) + ": its target is in use already"});
  end_call(target);
  if (is_planned_here) engine_.objects.drop_object(target, Incarnation{1}, Cause::kLost);
}

// The target's home may forget the deletion, and would take a further want for a new reduce. The
// call therefore ends here, and not with the home's answer.
void Calls::handle_target_deleted(const ObjectId& target) {
  failed_.erase(target);
  const auto call = calls_.find(target);
  if (call == calls_.end()) return;
  engine_.outgoing.reply(call->second.waiter,
                         Error{Code::kCancelled, "reduce of " + short_name(target) +
                                                     " was cancelled: its target was deleted"});
  end_call(target);
}

// Passes the state on to the directory here. If this node planned the reduce for its own client, a
// failure goes to the target's home, which answers all receivers and this node. The home hears of a
// success from the holders of the result.
void Calls::tell_state(const ReduceState& state) {
  const bool is_home = engine_.peers.home_of(state.target) == engine_.config.node;
  if (is_home) engine_.directory.handle_reduce_state(state, engine_.now);
  if (state.phase != ReducePhase::kFailed || !is_planned_here(state.target)) return;
  const ReduceReport& failure = failed_[state.target] = failure_of(state, engine_.config.node);
  if (is_home) return engine_.outgoing.send(engine_.config.node, state);
  engine_.outgoing.send(engine_.peers.home_of(state.target), failure);
}

bool Calls::is_planned_here(const ObjectId& target) const {
  const auto call = calls_.find(target);
  return call != calls_.end() && call->second.want.is_callers;
}

NodeId Calls::planner_of(const ObjectId& target) const {
  return is_planned_here(target) ? engine_.config.node : engine_.peers.home_of(target);
}

// Asks the source's home where it is.
void Calls::ask(const Locate& question) {
  locates_[question.object] = question;
  engine_.outgoing.send(engine_.peers.home_of(question.object), question);
}

const Locate* Calls::find_question(const ObjectId& source) const {
  const auto question = locates_.find(source);
  return question == locates_.end() ? nullptr : &question->second;
}

void Calls::repeat_questions(std::optional<NodeId> only_to) {
  for (const auto& [id, locate] : locates_) {
    if (engine_.peers.is_for(id, only_to)) engine_.outgoing.send(engine_.peers.home_of(id), locate);
  }
  for (const auto& [id, call] : calls_) {
    if (!engine_.peers.is_for(id, only_to)) continue;
    engine_.outgoing.send(engine_.peers.home_of(id), call.want);
  }
  for (const auto& [id, failure] : failed_) {
    if (engine_.peers.is_for(id, only_to))
      engine_.outgoing.send(engine_.peers.home_of(id), failure);
  }
}

// Plans what still waits for a home's answer.
void Calls::stop_waiting_for_answers() {
  while (!answers_due_.empty() && answers_due_.front().first <= engine_.now) {
    const auto call = calls_.find(answers_due_.front().second);
    answers_due_.pop_front();
    if (call == calls_.end()) continue;
    call->second.unanswered.clear();
    begin_call(call->first);
  }
}

std::optional<Instant> Calls::next_deadline() const {
  if (answers_due_.empty()) return std::nullopt;
  return answers_due_.front().first;
}

void Calls::add_stats(EngineStats& stats) const {
  stats.questions = locates_.size();
  stats.reduces = engine_.reduces.plan_count() + calls_.size() + engine_.folds.folds().size() +
                  engine_.folds.outcome_count() + failed_.size();
}

void Calls::check_invariants() const {
  for (const auto& [target, call] : calls_) {
    HOPLITE_CHECK(!call.is_planned || call.unanswered.empty());
    HOPLITE_CHECK(call.told <= call.want.confirmed.size());
    for (const ObjectId& source : call.unanswered) HOPLITE_CHECK(call.awaited.contains(source));
  }
}

}  // namespace hoplite
