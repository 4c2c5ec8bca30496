// Commands of clients and of the control plane. Each command's whole answer starts here.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/check.h"
#include "plan/engine/state.h"
#include "plan/reduce/reduce_shape.h"

namespace hoplite {

void Engine::State::handle_put(const Waiter& waiter, const PutCommand& put) {
  const std::string name = short_name(put.object);
  const bool small = put.meta.size_bytes <= config_.inline_bytes_max;
  const char* fault = fault_of(put.meta);
  if (put.incarnation.value == 0) fault = "its incarnation is 0; they start at 1";
  const bool comes = put.payload.size() == put.meta.size_bytes;
  if (!comes && (small || !put.payload.empty())) fault = "its bytes didn't come with it";
  if (fault != nullptr) {
    return reply(waiter, Error{Code::kInvalidArgument, "put of object " + name + ": " + fault});
  }
  if (is_deleted(put.object, put.incarnation)) {
    return reply(waiter, Error{Code::kDuplicateObject,
                               "object " + name + " was deleted; put it under another id"});
  }
  LocalObject& object = objects_[put.object];
  if (object.has_bytes() && object.incarnation >= put.incarnation) {
    return reply(waiter, Error{Code::kDuplicateObject,
                               "object " + name + " exists already; objects are immutable"});
  }
  end_fold(put.object);  // the put replaces the result of a reduce
  end_put(put.object, object, "put again by a later attempt");
  object.incarnation = put.incarnation;
  object.target_epoch = TargetEpoch{0};
  object.meta = cut(put.meta);
  object.committed = object.pinned = true;
  object.put_request = waiter;
  object.writer = waiter.client;
  if (comes) return store_small(put.object, object, put.payload);
  object.writing = true;
  if (ask_range(put.object, put.meta.size_bytes, Line::kPuts)) return;
  on_refused(put.object, put.meta.size_bytes);
}

void Engine::State::handle_wrote(const Waiter& waiter, const WroteCommand& wrote) {
  const auto it = objects_.find(wrote.object);
  const bool valid = it != objects_.end() && it->second.writing && it->second.extent &&
                     it->second.writer == waiter.client &&
                     it->second.incarnation == wrote.incarnation;
  if (!valid || wrote.upto_bytes > it->second.meta.size_bytes) {
    if (waiter.request.value == 0) return;  // progress is not answered
    const auto [first, last] = retired_.equal_range({wrote.object, wrote.incarnation});
    for (auto retired = first; retired != last && !wrote.pin; ++retired) {
      std::optional<Waiter>& writer = retired->second.writer;
      if (writer && writer->client == waiter.client) writer.reset();
    }
    free_retired(wrote.object, wrote.incarnation);
    return reply(waiter, Error{Code::kObjectLost, "object " + short_name(wrote.object) +
                                                      " was deleted while it was being put"});
  }
  LocalObject& object = it->second;
  object.written_bytes = std::max(object.written_bytes, wrote.upto_bytes);
  note_here(wrote.object);
  if (object.written_bytes < object.meta.size_bytes) return;
  object.writing = false;
  object.put_request.reset();
  object.stripes[0].state = StripeState::kComplete;
  if (wrote.pin) {
    answer_get(wrote.object, object, waiter);
  } else {
    reply(waiter, Done{});
  }
  claim(wrote.object);
  complete(wrote.object, object);
}

void Engine::State::handle_get(const Waiter& waiter, const GetCommand& get) {
  LocalObject& object = objects_[get.object];
  if (object.is_complete() && object.committed) return answer_get(get.object, object, waiter);
  const bool wanted = object.is_wanted();
  const bool existed = object.exists;
  object.waiters.push_back(waiter);
  ++stats_.waiters;
  object.exists = object.exists || get.exists;
  if (!wanted || existed != object.exists) claim(get.object);
  fetch_spilled(get.object);
}

void Engine::State::handle_release(ClientId client, const ReleaseCommand& release) {
  unpin(release.object, release.incarnation, client, false);
}

void Engine::State::handle_delete(const Waiter& waiter, const DeleteCommand& remove) {
  const NodeId home = view_.home_of(remove.object);
  if (!deletes_.has_room(home)) return deletes_.hold(home, {waiter, remove});
  delete_everywhere(remove.object, remove.upto);
  reply(waiter, Done{});
}

// A deletion without an answer counts, however many deletions came after it.
bool EngineTables::is_deleted(const ObjectId& id, Incarnation incarnation) const {
  return tombstones_.covers(id, incarnation) || deletes_.covers(id, incarnation);
}

// `upto` 0 means every attempt that exists.
void Engine::State::delete_everywhere(const ObjectId& id, Incarnation upto) {
  const auto it = objects_.find(id);
  Incarnation here = upto;
  if (upto.value == 0) {
    here = Incarnation{1};
    if (it != objects_.end()) here = std::max(here, it->second.incarnation);
  }
  const auto question = locates_.find(id);
  const bool is_later = it != objects_.end() && it->second.incarnation > here;
  const bool ends_question = question != locates_.end() && !is_later &&
                             (upto.value == 0 || question->second.incarnation <= upto);
  const Delete request{id, upto};
  deletes_.note(view_.home_of(id), request, here, now_);
  send(view_.home_of(id), request);
  if (it != objects_.end() && it->second.is_wanted() && it->second.incarnation <= here) {
    fail_waiters(it->second, Code::kObjectLost, "object " + short_name(id) + " was deleted");
  }
  drop_object(id, here, true);
  forget_if_empty(id);
  // The home may end the deletion, and forget it, before it hears the question.
  if (ends_question) note_arrival(id, nullptr);
}

void Engine::State::handle_reduce(const Waiter& waiter, const ReduceCommand& reduce) {
  const std::string name = "reduce of " + short_name(reduce.target);
  if (reduce.count < 1 || reduce.count > reduce.source_count ||
      reduce.source_count > kReduceSourcesMax) {
    return reply(waiter,
                 Error{Code::kInvalidArgument, name + ": count " + std::to_string(reduce.count) +
                                                   " of " + std::to_string(reduce.source_count) +
                                                   " sources; needs 1 <= count <= sources <= " +
                                                   std::to_string(kReduceSourcesMax)});
  }
  if (reduce.share.offset > reduce.share.source_bytes ||
      reduce.meta.size_bytes > reduce.share.source_bytes - reduce.share.offset) {
    return reply(waiter, Error{Code::kInvalidArgument,
                               name + ": its share, " + std::to_string(reduce.meta.size_bytes) +
                                   " bytes from " + std::to_string(reduce.share.offset) +
                                   " on, ends outside of the sources, which have " +
                                   std::to_string(reduce.share.source_bytes)});
  }
  const auto there = objects_.find(reduce.target);
  const bool has_bytes = there != objects_.end() && there->second.has_bytes();
  if (has_bytes || calls_.contains(reduce.target) || is_deleted(reduce.target, Incarnation{1})) {
    return reply(waiter, Error{Code::kDuplicateObject, name + ": its target is in use already"});
  }
  if (const auto failed = failed_.find(reduce.target); failed != failed_.end()) {
    return reply(waiter, Error{failed->second.code, failed->second.text});
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
  if (reduce.share.is_share()) call.want.meta = cut(reduce.meta);
  call.is_planned = reduce.share.is_share();  // its target's home plans it
  send(view_.home_of(reduce.target), call.want);
}

void Engine::State::handle_reduce_source(const ReduceSourceCommand& command) {
  const auto it = calls_.find(command.target);
  if (it == calls_.end()) return;  // the reduce has ended meanwhile
  if (command.confirmed) return confirm(command.target, command.source);
  it->second.awaited.emplace(command.source.object, command.source);
  const ObjectId& object = command.source.object;
  const Locate question{object, command.source.incarnation, kNoNode, false,
                        carried_bytes_max(it->second.want.source_count, config_)};
  if (!locates_.try_emplace(object, question).second) return;
  send(view_.home_of(object), question);
  if (it->second.is_planned) return;
  it->second.unanswered.insert(object);
  if (!answers_due_) answers_due_ = now_ + config_.progress_window;
}

void Engine::State::handle_cancel(const Waiter& waiter, const CancelCommand& cancel) {
  const ObjectId& id = cancel.object;
  const auto call = calls_.find(id);
  if (call != calls_.end() && call->second.waiter == waiter) {
    reply(waiter, Error{Code::kCancelled, "cancelled by the caller"});
    end_call(id);
    return delete_everywhere(id, Incarnation{1});
  }
  std::set<Incarnation> ended;
  for (auto it = retired_.lower_bound({id, Incarnation{}});
       it != retired_.end() && it->first.first == id; ++it) {
    if (it->second.writer != waiter) continue;
    it->second.writer.reset();
    ended.insert(it->first.second);
  }
  for (const Incarnation incarnation : ended) free_retired(id, incarnation);
  const auto it = objects_.find(id);
  if (it != objects_.end()) take_back(id, it->second, waiter);
}

// Takes back a client's request for this object, if it has one. The object may be gone afterwards.
void Engine::State::take_back(ObjectId id, LocalObject& object, const Waiter& waiter) {
  const bool is_put = object.put_request == waiter && (object.writing || object.inbound);
  const bool answered = is_put && object.extent;  // by Reserved
  const auto waiting = std::find(object.waiters.begin(), object.waiters.end(), waiter);
  if (!is_put && waiting == object.waiters.end()) return;
  if (waiting != object.waiters.end()) {
    object.waiters.erase(waiting);
    --stats_.waiters;
  }
  if (is_put) {
    object.writing = object.pinned = false;
    object.inbound.reset();
    object.put_request.reset();
    void_bytes(id, object);
    object.incarnation = Incarnation{0};
    object.meta = ObjectMeta{};
  }
  if (!answered) reply(waiter, Error{Code::kCancelled, "cancelled by the caller"});
  claim(id);
  abandon(id);
}

void Engine::State::handle_client_lost(ClientId client) {
  std::vector<std::pair<ObjectId, Waiter>> waiting;
  for (const auto& [target, call] : calls_) {
    if (call.waiter.client == client) waiting.emplace_back(target, call.waiter);
  }
  std::vector<std::pair<ObjectId, Waiter>> asked;
  std::vector<std::pair<ObjectId, Incarnation>> pinned;
  for (const auto& [id, object] : objects_) {
    for (const Waiter& waiter : object.waiters) {
      if (waiter.client == client) asked.emplace_back(id, waiter);
    }
    const bool unfinished = object.writing || object.inbound;
    if (unfinished && object.put_request && object.put_request->client == client) {
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
    const auto there = objects_.find(id);
    if (there != objects_.end()) take_back(id, there->second, waiter);
  }
  for (const auto& [id, waiter] : waiting) {
    handle_cancel(waiter, CancelCommand{id});
  }
  for (const auto& [id, incarnation] : pinned) unpin(id, incarnation, client, true);
}

void Engine::State::handle_set_view(const SetViewCommand& view) {
  const std::vector<Member> before = view_.members();
  if (!view_.handle_view(view.epoch, view.members)) return;
  std::vector<NodeId> gone;
  for (const Member& old : before) {
    const Member* now = view_.find(old.node);
    if (old.node == config_.node || (now != nullptr && now->incarnation == old.incarnation))
      continue;
    gone.push_back(old.node);
    part_from(old.node);
    if (connected_.erase(old.node) > 0) actions_.emplace_back(Disconnect{old.node});
  }
  for (const Member& member : view_.members()) {
    if (member.node == config_.node || connected_.contains(member.node)) continue;
    connected_.emplace(member.node, member);
    actions_.emplace_back(Connect{member});
  }
  deletes_.handle_view(view_);
  directory_.handle_view(view_, now_);
  reduces_.handle_view(view_);
  for (const NodeId node : gone) {
    // The directory hears of a node that is back as another incarnation by the node's ResyncDone.
    if (!view_.is_live(node)) directory_.handle_node_dead(node, now_);
    reduces_.handle_node_dead(node, true, view_);
  }
  if (!directory_.is_recovering()) reduces_.handle_recovered(view_);
  drop_branches();
  asked_again_.clear();
  resyncs_.clear();
  resync(std::nullopt, {.draining = draining_});
  // This node's own claims come first. Otherwise receivers that it feeds would count as orphans and
  // wait forever.
  while (!loop_.empty()) {
    const Message message = std::move(loop_.front());
    loop_.pop_front();
    receive(config_.node, message, {});
  }
  for (const MessageIn& event : parked_.take()) handle_message(event);
}

}  // namespace hoplite
