// SPDX-License-Identifier: Apache-2.0
// The commands of clients about objects. Each command's whole answer starts here.
#include <algorithm>
#include <utility>

#include "plan/engine/objects.h"
#include "plan/engine/owners.h"

namespace hoplite {

void Objects::handle_put(const Waiter& waiter, PutCommand put) {
  const std::string name = short_name(put.object);
  const bool small = put.meta.size_bytes <= engine_.config.inline_bytes_max;
  const char* fault = fault_of(put.meta);
  if (put.incarnation.value == 0) fault = "its incarnation is 0; they start at 1";
  const bool comes = put.payload.size() == put.meta.size_bytes;
  if (!comes && (small || !put.payload.empty())) fault = "its bytes didn't come with it";
  if (fault != nullptr) {
    return engine_.outgoing.reply(
        waiter, Error{Code::kInvalidArgument, "put of object " + name + ": " + fault});
  }
  if (engine_.keeping.is_deleted(put.object, put.incarnation)) {
    return engine_.outgoing.reply(
        waiter,
        Error{Code::kDuplicateObject, "object " + name + " was deleted; put it under another id"});
  }
  LocalObject& object = make(put.object);
  if (object.has_bytes() && object.incarnation >= put.incarnation) {
    return engine_.outgoing.reply(
        waiter,
        Error{Code::kDuplicateObject, "object " + name + " exists already; objects are immutable"});
  }
  engine_.folds.end_fold(put.object);  // the put replaces the result of a reduce
  end_put(put.object, object, "put again by a later attempt");
  object.begin({put.incarnation, TargetEpoch{0}}, cut(put.meta), Keep::kMade, Finality::kFinal);
  object.put_request = waiter;
  if (comes) return store_small(put.object, object, std::move(put.payload));
  if (ask_range(put.object, put.meta.size_bytes, Line::kPuts)) return;
  refuse_range(put.object, put.meta.size_bytes);
}

void Objects::handle_wrote(const Waiter& waiter, const WroteCommand& wrote) {
  LocalObject* const found = find(wrote.object);
  const bool valid = found != nullptr && found->is_writing() && found->extent &&
                     found->put_request->client == waiter.client &&
                     found->incarnation == wrote.incarnation;
  if (!valid || wrote.upto_bytes > found->meta.size_bytes) {
    if (waiter.request.value == 0) return;  // progress is not answered
    const auto [first, last] = retired_.equal_range({wrote.object, wrote.incarnation});
    for (auto retired = first; retired != last && !wrote.pin; ++retired) {
      std::optional<Waiter>& writer = retired->second.writer;
      if (writer && writer->client == waiter.client) writer.reset();
    }
    free_retired(wrote.object, wrote.incarnation);
    return engine_.outgoing.reply(
        waiter, Error{Code::kObjectLost, "object " + short_name(wrote.object) +
                                             " was deleted while it was being put"});
  }
  LocalObject& object = *found;
  object.written_bytes = std::max(object.written_bytes, wrote.upto_bytes);
  BlockIndex block = wrote.first_block;
  for (std::size_t i = 0; object.takes_sums && i < wrote.sums.size(); ++i, ++block.value) {
    object.keep_sum(block, wrote.sums[i]);
  }
  engine_.folds.note_here(wrote.object);
  if (object.written_bytes < object.meta.size_bytes) return grow(wrote.object, object);
  object.put_request.reset();
  object.stripes[0].state = StripeState::kComplete;
  if (wrote.pin) {
    answer_get(wrote.object, object, waiter);
  } else {
    engine_.outgoing.reply(waiter, Done{});
  }
  claim(wrote.object);
  complete(wrote.object, object);
}

void Objects::handle_get(const Waiter& waiter, const GetCommand& get) {
  LocalObject& object = make(get.object);
  const auto early = early_bytes(object);
  const bool is_early = early && get.upto_bytes <= *early;
  if (is_early || (object.is_complete() && object.is_final()))
    return answer_get(get.object, object, waiter);
  const bool wanted = object.is_wanted();
  const bool existed = object.exists;
  object.waiters.push_back({waiter.client, waiter.request, get.upto_bytes});
  object.next_upto_bytes = std::min(object.next_upto_bytes, get.upto_bytes);
  ++engine_.counters.waiters;
  object.exists = object.exists || get.exists;
  if (!wanted || existed != object.exists) claim(get.object);
  engine_.spills.fetch_spilled(get.object);
}

void Objects::handle_release(ClientId client, const ReleaseCommand& release) {
  unpin(release.object, release.incarnation, client, Pins::kOne);
}

void Objects::handle_cancel(const Waiter& waiter, const CancelCommand& cancel) {
  const ObjectId& id = cancel.object;
  if (engine_.calls.cancel_call(id, waiter))
    return engine_.keeping.delete_everywhere(id, Incarnation{1});
  std::set<Incarnation> ended;
  for (auto old = retired_.lower_bound({id, Incarnation{}});
       old != retired_.end() && old->first.first == id; ++old) {
    if (old->second.writer != waiter) continue;
    old->second.writer.reset();
    ended.insert(old->first.second);
  }
  for (const Incarnation incarnation : ended) free_retired(id, incarnation);
  LocalObject* const found = find(id);
  if (found != nullptr) cancel_request(id, *found, waiter);
}

void Objects::handle_client_lost(ClientId client) {
  std::vector<std::pair<ObjectId, Waiter>> waiting = engine_.calls.calls_of(client);
  std::vector<std::pair<ObjectId, Waiter>> asked;
  std::vector<std::pair<ObjectId, Incarnation>> pinned;
  for (const auto& [id, object] : objects_) {
    for (const Waiter& waiter : object.waiters) {
      if (waiter.client == client) asked.emplace_back(id, waiter);
    }
    if (object.put_request && object.put_request->client == client) {
      asked.emplace_back(id, *object.put_request);
    }
    if (object.pins.contains(client)) pinned.emplace_back(id, object.incarnation);
  }
  for (const auto& [name, retired] : retired_) {
    if (retired.pins.contains(client)) pinned.push_back(name);
    if (retired.writer && retired.writer->client == client) {
      waiting.emplace_back(name.first, *retired.writer);
    }
  }
  for (const auto& [id, waiter] : asked) {
    LocalObject* const there = find(id);
    if (there != nullptr) cancel_request(id, *there, waiter);
  }
  for (const auto& [id, waiter] : waiting) {
    handle_cancel(waiter, CancelCommand{id});
  }
  for (const auto& [id, incarnation] : pinned) unpin(id, incarnation, client, Pins::kAll);
}

// Takes back a client's request for this object, if it has one. The object may be gone afterwards.
void Objects::cancel_request(ObjectId id, LocalObject& object, const Waiter& waiter) {
  const bool is_put = object.put_request == waiter;
  const bool answered = is_put && object.extent;  // by Reserved
  const auto waiting = std::find(object.waiters.begin(), object.waiters.end(), waiter);
  if (!is_put && waiting == object.waiters.end()) return;
  if (waiting != object.waiters.end()) {
    object.waiters.erase(waiting);
    --engine_.counters.waiters;
  }
  if (is_put) {
    object.inbound.reset();
    object.put_request.reset();
    void_bytes(id, object);
    object.begin({}, {}, Keep::kCopy, Finality::kFinal);
    engine_.folds.note_here(id);  // it may be a source that is folded as it is written
  }
  if (!answered) engine_.outgoing.reply(waiter, Error{Code::kCancelled, "cancelled by the caller"});
  claim(id);
  drop_unwanted(id);
}

}  // namespace hoplite
