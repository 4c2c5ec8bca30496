// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/jobs/rebuilds.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {
namespace {

// The home still remembers a deletion that it did not tell this node, and refuses the claim.
Duration longest_rebuild(const EngineConfig& config) { return {config.tombstone_life.ns / 4 * 3}; }

// Returns what is wrong with the command itself, or nullptr.
const char* fault_of(const RebuildCommand& command) {
  if (command.incarnation.value == 0) return "its incarnation is 0; they start at 1";
  if (command.meta.block_bytes == 0) return "its recipe names no size of a block";
  if (command.deltas.empty()) return "its recipe has no delta";
  if (command.deltas.size() > kRebuildDeltasMax) return "its recipe has too many deltas";
  const bool is_circle = std::ranges::any_of(
      command.deltas, [&](const Attempt& delta) { return delta.object == command.object; });
  return is_circle ? "its recipe makes it of itself" : fault_of(command.meta);
}

}  // namespace

// The get that follows waits for the rebuild, or asks the home where there is none.
void Rebuilds::handle_rebuild(const Waiter& waiter, const RebuildCommand& command) {
  if (const char* fault = fault_of(command)) {
    return engine_.outgoing.reply(
        waiter, Error{Code::kInvalidArgument,
                      "rebuild of object " + short_name(command.object) + ": " + fault});
  }
  if (may_begin(command)) {
    const auto base = engine_.objects.pin_whole(command.base, command.meta.size_bytes);
    if (base) begin(command, *base);
  }
  engine_.objects.handle_get(waiter, GetCommand{command.object, true});
}

// A small object comes in one message. An object that is here, wanted or folded comes by itself.
bool Rebuilds::may_begin(const RebuildCommand& command) const {
  const ObjectId& id = command.object;
  if (command.meta.size_bytes <= engine_.config.inline_bytes_max) return false;
  const LocalObject* object = engine_.objects.find(id);
  if (object != nullptr && (object->has_bytes() || object->is_wanted())) return false;
  return !makes(id) && !engine_.inventory.is_waiting(id) && !engine_.folds.is_folding(id) &&
         !engine_.calls.is_planned_here(id) && !engine_.keeping.is_deleted(id, command.incarnation);
}

// The base has a pin of this node already.
void Rebuilds::begin(const RebuildCommand& command, Extent base) {
  const RebuildId id{++last_.value};
  const Instant until = engine_.now + longest_rebuild(engine_.config);
  engine_.objects.make(command.object)
      .begin({command.incarnation, TargetEpoch{0}}, command.meta, Keep::kCopy, Finality::kFinal);
  all_.emplace(id, Rebuild{.object = command.object,
                           .incarnation = command.incarnation,
                           .crc32c = command.crc32c,
                           .until = until,
                           .base = base,
                           .deltas = std::vector<std::optional<Extent>>(command.deltas.size()),
                           .target = {},
                           .pinned = {command.base}});
  by_object_.emplace(command.object, id);
  deadlines_.emplace(until, id);
  for (std::size_t i = 0; i < command.deltas.size(); ++i) fetch(id, i, command.deltas[i]);
}

void Rebuilds::fetch(RebuildId id, std::size_t index, const Attempt& delta) {
  const RequestId request{++last_request_.value};
  asked_.emplace(request, Asked{id, index, delta});
  engine_.objects.handle_get({kThisNode, request}, GetCommand{delta.object, true});
}

// A source that a client writes, or that is in the file, is waited for like a delta.
bool Rebuilds::may_make(const Excerpt& excerpt) const {
  const ObjectId& id = excerpt.object;
  const LocalObject* object = engine_.objects.find(id);
  if (object != nullptr && object->has_bytes()) return false;
  if (makes(id) || engine_.inventory.is_waiting(id) || engine_.folds.is_folding(id) ||
      engine_.calls.is_planned_here(id) ||
      engine_.keeping.is_deleted(id, excerpt.source.incarnation)) {
    return false;
  }
  const LocalObject* source = engine_.objects.find(excerpt.source.object);
  return source != nullptr && (source->is_whole() || source->is_writing()) && source->is_final() &&
         source->incarnation == excerpt.source.incarnation &&
         source->meta.size_bytes >= count_source_bytes(excerpt);
}

void Rebuilds::make(const Excerpt& excerpt, NodeId asker) {
  const RebuildId id{++last_.value};
  const Instant until = engine_.now + longest_rebuild(engine_.config);
  LocalObject& object = engine_.objects.make(excerpt.object);
  object.is_excerpt = true;
  object.begin({excerpt.source.incarnation, TargetEpoch{0}}, engine_.objects.cut(excerpt.meta),
               Keep::kCopy, Finality::kFinal);
  Rebuild& begun = all_.emplace(id, Rebuild{.object = excerpt.object,
                                            .incarnation = excerpt.source.incarnation,
                                            .until = until,
                                            .base = {},
                                            .deltas = {std::nullopt},
                                            .target = {},
                                            .pinned = {},
                                            .runs = excerpt.runs,
                                            .source = excerpt.source})
                       .first->second;
  if (asker != kNoNode) begun.askers.insert(asker);
  by_object_.emplace(excerpt.object, id);
  deadlines_.emplace(until, id);
  fetch(id, 0, excerpt.source);
}

void Rebuilds::note_asker(const ObjectId& id, NodeId asker) {
  all_.at(by_object_.at(id)).askers.insert(asker);
}

// An answer comes amid a walk over all that wait for the object, which nothing may change.
void Rebuilds::note_answer(RequestId request, Reply reply) {
  answers_.emplace_back(request, std::move(reply));
}

// Takes one answer, or cancels one get that is wanted no more. To cancel one may end another
// rebuild, so none is cancelled amid the end of a rebuild.
bool Rebuilds::settle_one() {
  if (!answers_.empty()) {
    const auto [request, reply] = std::move(answers_.front());
    answers_.pop_front();
    const auto asked = asked_.extract(request);
    if (!asked.empty()) take_answer(asked.mapped(), reply);
    return true;
  }
  if (withdrawn_.empty()) return false;
  const RequestId request = withdrawn_.front();
  withdrawn_.pop_front();
  const auto asked = asked_.find(request);
  if (asked == asked_.end()) return true;
  const ObjectId delta = asked->second.delta.object;
  engine_.objects.handle_cancel({kThisNode, request}, CancelCommand{delta});
  return true;
}

void Rebuilds::take_answer(const Asked& asked, const Reply& reply) {
  const auto* fetched = std::get_if<Fetched>(&reply);
  const Attempt came{asked.delta.object, fetched == nullptr ? Incarnation{} : fetched->incarnation};
  const auto at = all_.find(asked.rebuild);
  if (at == all_.end() || !is_live(at)) {
    if (fetched != nullptr)
      engine_.objects.unpin(came.object, came.incarnation, kThisNode, Pins::kOne);
    return;
  }
  Rebuild& rebuild = at->second;
  if (fetched != nullptr) rebuild.pinned.push_back(came);
  // A recipe may name attempt 0, as an error does.
  if (fetched == nullptr || came != asked.delta) return fall_back(rebuild.object);
  rebuild.deltas[asked.index] = fetched->extent;
  const bool are_here =
      std::ranges::all_of(rebuild.deltas, [](const auto& delta) { return delta.has_value(); });
  if (!are_here) return;
  const ObjectId object = rebuild.object;
  const std::uint64_t size_bytes = engine_.objects.at(object).meta.size_bytes;
  if (!engine_.objects.ask_range(object, size_bytes, Line::kCopies))
    engine_.objects.refuse_range(object, size_bytes);
}

// A pin of this node keeps the range, even if the object is dropped amid a step.
void Rebuilds::begin_steps(const ObjectId& id) {
  const RebuildId rebuild = by_object_.at(id);
  Rebuild& begun = all_.at(rebuild);
  LocalObject& object = engine_.objects.at(id);
  begun.target = object.extent;
  ++object.pins[kThisNode];
  begun.pinned.push_back({id, begun.incarnation});
  order_step(rebuild, begun);
}

void Rebuilds::order_step(RebuildId id, Rebuild& rebuild) {
  RebuildJob job{.rebuild = id,
                 .object = rebuild.object,
                 .way = RebuildWay::kMake,
                 .base = rebuild.base,
                 .deltas = {},
                 .target = *rebuild.target,
                 .crc32c = rebuild.crc32c,
                 .step_bytes = engine_.config.spill_step_bytes};
  if (rebuild.runs.empty()) {
    for (const auto& delta : rebuild.deltas) job.deltas.push_back(*delta);
  } else {
    job.base = *rebuild.deltas[0];
    job.runs = rebuild.runs;
  }
  rebuild.is_under_way = true;
  engine_.outgoing.act(std::move(job));
}

void Rebuilds::handle_rebuild_done(const RebuildDone& event) {
  const auto at = all_.find(event.rebuild);
  if (at == all_.end() || !at->second.is_under_way) return;
  Rebuild& rebuild = at->second;
  rebuild.is_under_way = false;
  const bool goes_on = event.error.empty() && !event.is_whole;
  if (!is_live(at)) {
    const ObjectId object = rebuild.object;
    release(at);
    if (!goes_on) return;
    return engine_.outgoing.act(
        RebuildJob{event.rebuild, object, RebuildWay::kForget, {}, {}, {}, 0, 0});
  }
  engine_.inventory.note_progress(engine_.now);
  if (!event.error.empty()) return fall_back(rebuild.object);
  const Attempt& source = rebuild.source;
  if (!rebuild.runs.empty() && engine_.keeping.is_deleted(source.object, source.incarnation))
    return fall_back(rebuild.object);
  if (event.is_whole) return finish(at);
  order_step(event.rebuild, rebuild);
}

// The claim names no lease: it is the claim of a node that tells a new home what it has.
void Rebuilds::finish(ById::iterator it) {
  const ObjectId id = it->second.object;
  deadlines_.erase({it->second.until, it->first});
  by_object_.erase(id);
  LocalObject& object = engine_.objects.at(id);
  LocalStripe whole;
  whole.state = StripeState::kComplete;
  object.stripes.assign(1, whole);
  engine_.keeping.forget_gone(id);
  ++(it->second.runs.empty() ? engine_.counters.rebuilds : engine_.counters.excerpts);
  engine_.objects.claim(id);
  engine_.objects.complete(id, object);
  release(it);
}

void Rebuilds::fall_back(ObjectId id, Code code, std::string why) {
  ++engine_.counters.rebuilds_failed;
  const Rebuild& rebuild = all_.at(by_object_.at(id));
  const bool is_excerpt = !rebuild.runs.empty();
  const std::set<NodeId> askers = rebuild.askers;
  if (why.empty()) why = "node " + std::to_string(engine_.config.node.value) + " can't make it";
  LocalObject& object = engine_.objects.at(id);
  engine_.objects.void_bytes(id, object);  // it ends the rebuild
  object.begin({}, {}, Keep::kCopy, Finality::kFinal);
  engine_.folds.note_here(id);
  engine_.objects.claim(id);
  if (!is_excerpt) return;
  for (const NodeId asker : askers) engine_.outgoing.send(asker, Lost{id, code, why});
  engine_.excerpts.handle_refusal(id, engine_.config.node, code, why);
  engine_.objects.forget_if_empty(id);
}

// helper: amid a step, writes into the target │ engine: the last client takes its get back, the
// object goes.  The ranges stay until the step has ended.
// Test: Rebuilding.KeepsItsRangesUntilTheStepHasEnded.
void Rebuilds::end(const ObjectId& id) {
  const auto found = by_object_.find(id);
  if (found == by_object_.end()) return;
  const auto at = all_.find(found->second);
  by_object_.erase(found);
  deadlines_.erase({at->second.until, at->first});
  for (const auto& [request, asked] : asked_) {
    if (asked.rebuild == at->first) withdrawn_.push_back(request);
  }
  if (!at->second.is_under_way) release(at);
}

void Rebuilds::release(ById::iterator it) {
  const std::vector<Attempt> pinned = std::move(it->second.pinned);
  all_.erase(it);
  for (const Attempt& each : pinned) {
    engine_.objects.unpin(each.object, each.incarnation, kThisNode, Pins::kOne);
  }
}

void Rebuilds::handle_timeout() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= engine_.now) {
    fall_back(all_.at(deadlines_.begin()->second).object);
  }
}

std::optional<Instant> Rebuilds::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

bool Rebuilds::is_live(ById::const_iterator it) const {
  const auto found = by_object_.find(it->second.object);
  return found != by_object_.end() && found->second == it->first;
}

void Rebuilds::check_invariants() const {
  HOPLITE_CHECK(deadlines_.size() == by_object_.size());
  for (auto it = all_.begin(); it != all_.end(); ++it) {
    const Rebuild& rebuild = it->second;
    HOPLITE_CHECK(is_live(it) || rebuild.is_under_way);
    HOPLITE_CHECK(!rebuild.is_under_way || rebuild.target);
    if (!is_live(it)) continue;
    const LocalObject* object = engine_.objects.find(rebuild.object);
    HOPLITE_CHECK(object != nullptr);
    HOPLITE_CHECK(object->is_wanted() || !rebuild.runs.empty());
    HOPLITE_CHECK(object->stripes.empty());
    HOPLITE_CHECK(object->extent == rebuild.target);
    HOPLITE_CHECK(object->incarnation == rebuild.incarnation);
    HOPLITE_CHECK(!object->put_request && !object->inbound);
  }
  for (const auto& [id, object] : engine_.objects.all()) {
    for (const Waiter& waiter : object.waiters) {
      HOPLITE_CHECK(waiter.client != kThisNode || asked_.contains(waiter.request));
    }
  }
}

}  // namespace hoplite
