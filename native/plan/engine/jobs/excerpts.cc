// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/jobs/excerpts.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {
namespace {

// A wish for which nothing comes is asked for again after this time. A message to the maker is lost
// with its link, and a copy may be evicted before it is pulled.
constexpr Duration kAskAgain = 1_s;
// Refusals for want of room until the get fails.
constexpr std::uint32_t kRefusalsMax = 3;
// Excerpts that a node makes at once; a peer's further ones are refused.
constexpr std::size_t kMadeAtOnceMax = 1024;

// Returns a * b + c, or nothing if it is larger than any object.
std::optional<std::uint64_t> multiply_add(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  if (c > kObjectBytesMax || (a > 0 && b > (kObjectBytesMax - c) / a)) return std::nullopt;
  return a * b + c;
}

}  // namespace

const char* fault_of(const Excerpt& excerpt) {
  if (excerpt.source.incarnation.value == 0) return "it names no attempt of its source";
  if (excerpt.source.object == excerpt.object) return "it is made of itself";
  if (excerpt.runs.empty()) return "it has no bytes";
  if (excerpt.runs.size() > kExcerptRunsMax) return "it has too many runs";
  std::uint64_t end = 0;
  for (const StridedRuns& run : excerpt.runs) {
    if (run.run_bytes == 0 || run.count == 0) return "a run of it is empty";
    const auto into_end = multiply_add(run.run_bytes, run.count, run.into);
    const auto from_end = multiply_add(run.stride_bytes, run.count - 1, run.from);
    if (!into_end || !from_end || run.run_bytes > kObjectBytesMax) return "it is too large";
    if (run.count > 1 && run.stride_bytes < run.run_bytes) return "its runs overlap";
    if (run.into < end) return "its runs are not in order";
    end = *into_end;
  }
  if (end > excerpt.meta.size_bytes) return "its runs don't fit into it";
  return fault_of(excerpt.meta);
}

std::uint64_t count_source_bytes(const Excerpt& excerpt) {
  std::uint64_t end = 0;
  for (const StridedRuns& run : excerpt.runs) {
    end = std::max(end, run.from + run.stride_bytes * (run.count - 1) + run.run_bytes);
  }
  return end;
}

// ---- from clients ----

// The wish for its id waits at the excerpt's home, which knows nothing of the source.
void Excerpts::handle_get(const Waiter& waiter, const ExcerptCommand& command) {
  const Excerpt& excerpt = command.excerpt;
  if (excerpt.runs.empty()) return describe(waiter, command);
  const ObjectId& id = excerpt.object;
  if (const char* fault = fault_of(excerpt)) {
    return engine_.outgoing.reply(
        waiter,
        Error{Code::kInvalidArgument, "part " + short_name(id) + " of object " +
                                          short_name(excerpt.source.object) + ": " + fault});
  }
  LocalObject& object = engine_.objects.make(id);
  if (!object.has_bytes()) object.is_excerpt = true;
  const bool is_here = object.is_complete() && object.is_final();
  if (!is_here && !wishes_.contains(id)) {
    wishes_.emplace(
        id,
        Wish{.excerpt = excerpt, .exists = command.exists, .maker = kNoNode, .until = engine_.now});
    deadlines_.emplace(engine_.now, id);
    by_source_.emplace(excerpt.source.object, id);
    find_maker(id, kNoNode);
  }
  engine_.objects.handle_get(waiter, GetCommand{id, false});
}

void Excerpts::describe(const Waiter& waiter, const ExcerptCommand& command) {
  const ObjectId& source = command.excerpt.source.object;
  const LocalObject* object = engine_.objects.find(source);
  const bool is_here = object != nullptr && object->is_final() &&
                       (object->is_whole() || object->is_writing()) &&
                       object->incarnation.value > 0;
  if (is_here) return answer_question(waiter, object->incarnation, object->meta);
  questions_.emplace(source, waiter);
  Excerpt any;
  any.source.object = source;
  ask(any, command.exists, kNoNode);
}

// The layout says how many bytes there are; none come with the answer.
void Excerpts::answer_question(const Waiter& waiter, Incarnation incarnation,
                               const ObjectMeta& meta) {
  ObjectMeta said;
  said.block_bytes = meta.block_bytes;
  said.layout = meta.layout;
  engine_.outgoing.reply(waiter, Fetched{incarnation, said, {}, false});
}

bool Excerpts::cancel(const Waiter& waiter, const ObjectId& object) {
  const auto [first, last] = questions_.equal_range(object);
  const auto found =
      std::find_if(first, last, [&](const auto& each) { return each.second == waiter; });
  if (found == last) return false;
  questions_.erase(found);
  engine_.outgoing.reply(waiter, Error{Code::kCancelled, "cancelled by the caller"});
  engine_.calls.withdraw_question(object);
  return true;
}

void Excerpts::handle_client_lost(ClientId client) {
  std::vector<std::pair<ObjectId, Waiter>> gone;
  for (const auto& [object, waiter] : questions_) {
    if (waiter.client == client) gone.emplace_back(object, waiter);
  }
  for (const auto& [object, waiter] : gone) cancel(waiter, object);
}

// ---- to find a maker ----

void Excerpts::find_maker(const ObjectId& id, NodeId failed) {
  Wish& wish = wishes_.at(id);
  wait_until(id, wish, engine_.now + kAskAgain);
  wish.maker = kNoNode;
  if (engine_.rebuilds.makes(id)) {
    wish.state = State::kMaking;
  } else if (failed != engine_.config.node && engine_.rebuilds.may_make(wish.excerpt)) {
    wish.state = State::kMaking;
    engine_.rebuilds.make(wish.excerpt, kNoNode);
  } else {
    wish.state = State::kLocating;
    ask(wish.excerpt, wish.exists, failed);
  }
}

// A reduce here may wait for the same object to be put. Its question is left as it is.
void Excerpts::ask(const Excerpt& excerpt, bool exists, NodeId failed) {
  const Locate* open = engine_.calls.find_question(excerpt.source.object);
  if (open != nullptr && !open->exists && exists) return;
  engine_.calls.ask(Locate{excerpt.source.object, excerpt.source.incarnation, failed, exists, 0});
}

void Excerpts::handle_located(const Located& located) {
  const auto [first, last] = questions_.equal_range(located.object);
  for (auto it = first; it != last; ++it) {
    answer_question(it->second, located.incarnation, located.meta);
  }
  questions_.erase(first, last);
  for (const ObjectId& id : wishes_about(located.object)) {
    Wish& wish = wishes_.at(id);
    if (wish.state != State::kLocating) continue;
    const Excerpt& excerpt = wish.excerpt;
    if (located.incarnation != excerpt.source.incarnation) {
      fail(id, Code::kObjectLost,
           "object " + short_name(located.object) + " was put again by another attempt");
    } else if (located.meta.size_bytes < count_source_bytes(excerpt)) {
      fail(id, Code::kInvalidArgument,
           "it ends outside of its source, object " + short_name(located.object) + ", which has " +
               std::to_string(located.meta.size_bytes) + " bytes");
    } else if (located.sender == engine_.config.node) {
      if (engine_.rebuilds.may_make(excerpt)) find_maker(id, kNoNode);
    } else if (located.sender != kNoNode) {
      wish.state = State::kAsked;
      wish.maker = located.sender;
      wait_until(id, wish, engine_.now + kAskAgain);
      engine_.outgoing.send(located.sender, MakeExcerpt{excerpt});
    }
  }
}

// A wish for which another node's copy already comes needs the source no more.
void Excerpts::handle_source_lost(const ObjectId& source, const std::string& why) {
  std::vector<Waiter> asking;
  const auto [first, last] = questions_.equal_range(source);
  for (auto it = first; it != last; ++it) asking.push_back(it->second);
  questions_.erase(first, last);
  for (const Waiter& waiter : asking) engine_.outgoing.reply(waiter, Error{Code::kObjectLost, why});
  for (const ObjectId& id : wishes_about(source)) {
    if (wishes_.at(id).state == State::kLocating && !is_coming(id))
      fail(id, Code::kObjectLost, why);
  }
}

// maker: dies │ this node: the link is down.  No answer comes, so another holder is asked at once.
// Test: Excerpting.AsksAnotherHolderWhenOneRefusesOrDies.
void Excerpts::handle_unreachable(NodeId node) {
  std::vector<ObjectId> asked;
  for (const auto& [id, wish] : wishes_) {
    if (wish.state == State::kAsked && wish.maker == node && !is_coming(id)) asked.push_back(id);
  }
  for (const ObjectId& id : asked) find_maker(id, node);
}

bool Excerpts::handle_lost(NodeId from, const Lost& lost) {
  const auto found = wishes_.find(lost.object);
  if (found == wishes_.end() || lost.code == Code::kDuplicateObject) return false;
  if (found->second.state != State::kAsked || found->second.maker != from) return false;
  handle_refusal(lost.object, from, lost.code, lost.text);
  return true;
}

void Excerpts::handle_refusal(const ObjectId& id, NodeId maker, Code code, const std::string& why) {
  const auto found = wishes_.find(id);
  if (found == wishes_.end()) return;
  Wish& wish = found->second;
  const bool is_full = code == Code::kStoreFull && ++wish.refusals >= kRefusalsMax;
  // Its own node has no room for it, wherever it is made.
  const bool is_full_here = code == Code::kStoreFull && maker == engine_.config.node;
  if (code == Code::kInvalidArgument || is_full || is_full_here) return fail(id, code, why);
  if (!is_coming(id)) find_maker(id, maker);
}

void Excerpts::fail(const ObjectId& id, Code code, const std::string& why) {
  const std::string source = short_name(wishes_.at(id).excerpt.source.object);
  forget(id);
  LocalObject* const object = engine_.objects.find(id);
  if (object == nullptr) return;
  engine_.objects.fail_waiters(id, *object, code, "a part of object " + source + ": " + why);
  engine_.objects.drop_unwanted(id);
  engine_.objects.forget_if_empty(id);
}

// ---- from readers ----

void Excerpts::handle_make(NodeId from, const MakeExcerpt& make) {
  const Excerpt& excerpt = make.excerpt;
  const ObjectId& id = excerpt.object;
  const auto refuse = [&](Code code, const std::string& why) {
    engine_.outgoing.send(from, Lost{id, code, why});
  };
  if (const char* fault = fault_of(excerpt)) return refuse(Code::kInvalidArgument, fault);
  const LocalObject* object = engine_.objects.find(id);
  if (object != nullptr && object->is_complete()) {
    engine_.objects.note_use(id);
    return engine_.objects.claim(id);
  }
  if (engine_.rebuilds.makes(id)) return engine_.rebuilds.note_asker(id, from);
  if (engine_.rebuilds.count() >= kMadeAtOnceMax)
    return refuse(Code::kStoreFull, "its holder makes too many parts at once");
  if (engine_.rebuilds.may_make(excerpt)) return engine_.rebuilds.make(excerpt, from);
  if (object == nullptr || !object->has_bytes())
    refuse(Code::kObjectLost,
           "node " + std::to_string(engine_.config.node.value) + " has not all of the source");
}

// ---- the table ----

bool Excerpts::is_coming(const ObjectId& id) const {
  const LocalObject* object = engine_.objects.find(id);
  if (object == nullptr) return false;
  if (object->is_whole() || object->inbound || engine_.inventory.is_waiting(id)) return true;
  return std::ranges::any_of(object->stripes, [](const LocalStripe& stripe) {
    return stripe.state == StripeState::kReceiving;
  });
}

void Excerpts::handle_timeout() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= engine_.now) {
    const ObjectId id = deadlines_.begin()->second;
    Wish& wish = wishes_.at(id);
    const LocalObject* object = engine_.objects.find(id);
    if (object == nullptr || !object->is_wanted() || object->is_complete()) {
      forget(id);
    } else if (is_coming(id)) {
      wait_until(id, wish, engine_.now + kAskAgain);
    } else {
      find_maker(id, kNoNode);
    }
  }
}

void Excerpts::wait_until(const ObjectId& id, Wish& wish, Instant until) {
  deadlines_.erase({wish.until, id});
  wish.until = until;
  deadlines_.emplace(until, id);
}

void Excerpts::forget(const ObjectId& id) {
  const auto found = wishes_.find(id);
  if (found == wishes_.end()) return;
  deadlines_.erase({found->second.until, id});
  const ObjectId source = found->second.excerpt.source.object;
  by_source_.erase({source, id});
  wishes_.erase(found);
  engine_.calls.withdraw_question(source);
}

std::set<ObjectId> Excerpts::wishes_about(const ObjectId& source) const {
  std::set<ObjectId> found;
  for (auto it = by_source_.lower_bound({source, ObjectId{}});
       it != by_source_.end() && it->first == source; ++it) {
    found.insert(it->second);
  }
  return found;
}

bool Excerpts::asks_about(const ObjectId& source) const {
  return questions_.contains(source) || !wishes_about(source).empty();
}

std::optional<Instant> Excerpts::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void Excerpts::add_stats(EngineStats& stats) const {
  stats.excerpts_wanted = wishes_.size() + questions_.size();
}

void Excerpts::check_invariants() const {
  HOPLITE_CHECK(deadlines_.size() == wishes_.size());
  HOPLITE_CHECK(by_source_.size() == wishes_.size());
  for (const auto& [id, wish] : wishes_) {
    HOPLITE_CHECK(deadlines_.contains({wish.until, id}));
    HOPLITE_CHECK(by_source_.contains({wish.excerpt.source.object, id}));
  }
}

}  // namespace hoplite
