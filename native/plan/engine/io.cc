// Input from outside this node: messages, blocks, links, deaths.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/check.h"
#include "plan/engine/state.h"

namespace hoplite {
namespace {

// Transfers are fenced by their ids; everything else by the epoch of the view.
bool is_of_a_transfer(const PeerMessage& body) {
  return std::holds_alternative<PullStart>(body) || std::holds_alternative<Credit>(body) ||
         std::holds_alternative<PullStop>(body) || std::holds_alternative<PullRefused>(body);
}

}  // namespace

void Engine::State::handle_message(const MessageIn& event) {
  const Epoch epoch = event.message.view_epoch;
  if (!is_of_a_transfer(event.message.body) && epoch != view_.epoch()) {
    if (epoch < view_.epoch()) {  // its sender repeats it under the newer view
      ++stats_.messages_stale;
      return;
    }
    ++stats_.messages_parked;
    directory_.handle_newer_view(event.from, epoch);
    parked_.park(event);
    return;
  }
  receive(event.from, event.message, event.payload);
}

void Engine::State::handle_link_up(const LinkUp& event) {
  const auto member = connected_.find(event.node);
  if (member == connected_.end() || member->second.incarnation != event.incarnation) return;
  if (links_.contains(event.node)) part_from(event.node);
  links_.insert(event.node);
  directory_.handle_link_down(event.node);  // grants sent while it was down are lost
  rails_.handle_link_up(event.node, member->second.rails.size());
  resync(event.node, {.draining = draining_});
  reduces_.handle_link_up(event.node, view_);
  for (auto& [transfer, pull] : pulls_) {
    if (pull.goal().sender != event.node || pull.started) continue;
    pull.started = true;
    send(event.node, pull.start(), transfer);
  }
}

void Engine::State::handle_link_down(const LinkDown& event) { part_from(event.node); }

// Everything in flight to or from `node` is void.
void Engine::State::part_from(NodeId node) {
  links_.erase(node);
  parked_.forget(node);
  asked_again_.erase(node);
  resyncs_.erase(node);
  rails_.handle_link_down(node);
  for (const ObjectId& served : sender_.handle_link_down(node)) note_use(served);
  for (const Sender::Sent& sent : sender_.take_unsent(node)) let_go(sent);
  directory_.handle_link_down(node);
  directory_.handle_unreachable(node);
  std::vector<TransferId> broken;
  for (const auto& [transfer, pull] : pulls_) {
    if (pull.goal().sender == node) broken.push_back(transfer);
  }
  for (const TransferId transfer : broken) fail_pull(transfer);
}

void Engine::State::handle_peer_dead(const PeerDead& event) {
  const Member* member = view_.find(event.node);
  if (member == nullptr || member->incarnation != event.incarnation) return;
  const bool was_live = view_.is_live(event.node);
  view_.handle_dead(event.node, event.incarnation, event.is_certain);
  part_from(event.node);
  if (!was_live) return;
  // If the death is uncertain, other nodes may still reach the objects there: the next view
  // decides.
  if (event.is_certain) directory_.handle_node_dead(event.node, now_);
  reduces_.handle_node_dead(event.node, event.is_certain, view_);
  if (!directory_.is_recovering()) reduces_.handle_recovered(view_);
  actions_.emplace_back(ReportDeath{event.node, event.incarnation});
}

// ---- to the home ----

void Engine::State::handle_claim(NodeId from, const Claim& claim, Epoch epoch, Bytes payload) {
  const bool carries = from != config_.node && claim.stripes.size() == 1 &&
                       claim.stripes[0].state == StripeState::kComplete &&
                       claim.meta.size_bytes <= config_.inline_bytes_max && claim.pinned &&
                       payload.size() == claim.meta.size_bytes;
  if (carries && !directory_.is_deleted(claim.object)) {
    // The home keeps a copy of small objects, so that a get is one push away (decision 18).
    LocalObject& object = objects_[claim.object];
    if (!object.has_bytes() || object.incarnation < claim.incarnation) {
      end_fold(claim.object);  // the whole result is here
      end_put(claim.object, object, "put again by a later attempt");
      object.incarnation = claim.incarnation;
      object.target_epoch = claim.target_epoch;
      object.meta = claim.meta;
      object.committed = true;
      object.pinned = false;
      store_small(claim.object, object, std::move(payload));
      const auto stored = objects_.find(claim.object);
      if (stored != objects_.end() && stored->second.extent) {
        return directory_.handle_claim(from, claim, epoch, now_,
                                       make_claim(claim.object, stored->second, false));
      }
      // Nothing holds back the nodes whose puts bring such copies. A copy is therefore made at once
      // or not at all.
      if (stored != objects_.end() && !stored->second.is_wanted()) {
        drop_object(claim.object, claim.incarnation, false);
      }
    }
  }
  directory_.handle_claim(from, claim, epoch, now_);
}

void Engine::State::handle_progress(NodeId from, const Progress& progress) {
  directory_.handle_progress(from, progress, now_);
}

void Engine::State::handle_delete_at_home(NodeId from, const Delete& remove) {
  directory_.handle_delete(from, remove, now_);
  reduces_.handle_delete(remove.object);
}

void Engine::State::handle_locate(NodeId from, const Locate& locate) {
  directory_.handle_locate(from, locate, now_);
}

void Engine::State::handle_reduce_want(NodeId from, const ReduceWant& want) {
  const bool sane =
      want.count >= 1 && want.count <= want.source_count && want.source_count <= kReduceSourcesMax;
  if (!sane) return;
  if (directory_.is_deleted(want.target)) {
    ReduceState state;
    state.target = want.target;
    state.target_epoch = want.seen;
    state.phase = ReducePhase::kFailed;
    state.code = Code::kCancelled;
    state.text = "reduce of " + short_name(want.target) + " was cancelled: its target was deleted";
    return send(from, std::move(state));
  }
  reduces_.handle_want(from, want, view_);
}

void Engine::State::handle_reduce_report(NodeId from, const ReduceReport& report) {
  if (directory_.is_deleted(report.target)) {
    return send(from, Drop{report.target, Incarnation{1}, true});
  }
  reduces_.handle_report(from, report, view_);
}

void Engine::State::handle_resync_done(NodeId from, const ResyncDone& done) {
  // A peer that has already reported everything may only add that it drains.
  const bool is_awaited = directory_.awaits(from);
  if (!is_awaited && !done.draining) return;
  const bool recovering = directory_.is_recovering();
  view_.handle_draining(from, done.draining);
  directory_.handle_draining(from, done.draining, now_);
  // peer: claims, ResyncDone │ this node, without that view: claims dropped │ this node: view,
  // ResyncWanted │ the first ResyncDone comes. It must not end the recovery, because its claims are
  // missing. Test: ParkedEngine.DoesNotTakeTheEndOfWhatItDroppedForTheEndOfTheAnswer.
  if (done.is_asked) asked_again_.erase(from);
  if (asked_again_.contains(from) || !is_awaited) return;
  directory_.handle_resync_done(from, now_);
  if (recovering && !directory_.is_recovering()) reduces_.handle_recovered(view_);
}

// The peer lost everything that this node sent in this view, as if the link had been down.
void Engine::State::handle_resync_wanted(NodeId from) {
  if (!links_.contains(from) || ++resyncs_[from] > kResyncsMax) return;
  directory_.handle_link_down(from);
  if (asked_again_.contains(from)) send(from, ResyncWanted{});  // the peer lost the first one
  resync(from, {.draining = draining_, .is_asked = true});
  reduces_.handle_link_up(from, view_);
}

// ---- from the home ----

void Engine::State::handle_located(NodeId from, const Located& located, Bytes payload) {
  if (from != view_.home_of(located.object)) return;
  if (located.incarnation.value == 0) {  // no holder can be named yet; a second answer follows
    for (auto& [target, call] : calls_) {
      if (call.unanswered.erase(located.object) > 0) begin_call(target);
    }
    return;
  }
  locates_.erase(located.object);
  if (!payload.empty() && payload.size() == located.meta.size_bytes) {
    carried_ = Carried{located.object, located.incarnation, std::move(payload)};
  }
  note_arrival(located.object, &located);
  reduces_.handle_located(located, view_);
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

void Engine::State::handle_push(const Push& push, Bytes payload) {
  if (!names_bytes(push) || is_deleted(push.object, push.incarnation)) return;
  if (payload.size() != push.meta.size_bytes || push.meta.size_bytes > config_.inline_bytes_max) {
    return;
  }
  const auto it = objects_.find(push.object);
  const bool is_wanted = it != objects_.end() && it->second.is_wanted();
  if (!is_wanted) claim(push.object);
  if (it == objects_.end()) return;
  LocalObject& object = it->second;
  const bool is_newer = std::pair(object.incarnation, object.target_epoch) <
                        std::pair(push.incarnation, push.target_epoch);
  if (is_wanted && (!object.has_bytes() || is_newer)) {
    // It may also hold a range that an earlier grant waits for.
    end_fold(push.object);  // the whole result is here
    end_put(push.object, object, "put again by a later attempt");
    object.incarnation = push.incarnation;
    object.target_epoch = push.target_epoch;
    object.meta = push.meta;
    object.committed = true;
    object.pinned = false;
    store_small(push.object, object, std::move(payload));  // acknowledged by its claim
  }
  // Each half of the list goes one way, so that the depth is the logarithm of its length. A node
  // that holds the object already passes it on as well, because the other receivers wait for it.
  const auto stored = objects_.find(push.object);
  const bool has_it = stored != objects_.end() && stored->second.is_complete() &&
                      stored->second.incarnation == push.incarnation &&
                      stored->second.target_epoch == push.target_epoch &&
                      stored->second.meta == push.meta;
  if (push.forward.empty() || !has_it) return;
  const std::size_t half = (push.forward.size() + 1) / 2;
  for (const std::size_t first : {std::size_t{0}, half}) {
    const std::size_t last = first == 0 ? half : push.forward.size();
    if (first >= last) continue;
    Push next = push;
    next.forward.assign(push.forward.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                        push.forward.begin() + static_cast<std::ptrdiff_t>(last));
    send(push.forward[first], std::move(next), {}, stored->second.extent);
  }
}

void Engine::State::handle_push_to(NodeId from, const PushTo& push) {
  if (from != view_.home_of(push.object)) return;
  const auto it = objects_.find(push.object);
  const bool able = it != objects_.end() && it->second.is_complete() && it->second.committed &&
                    it->second.incarnation == push.incarnation && !push.receivers.empty() &&
                    it->second.meta.size_bytes <= config_.inline_bytes_max;
  if (!able) return claim(push.object);
  Push next{push.object,
            push.incarnation,
            it->second.target_epoch,
            it->second.meta,
            {push.receivers.begin() + 1, push.receivers.end()}};
  if (push.receivers[0] == config_.node) return;
  send(push.receivers[0], std::move(next), {}, it->second.extent);
}

// Accepted from the home of an object or of a failed reduce, and from the sender of a pull with
// kStoreFull only: that sender can't read the object back from its file. Ignored from a sender that
// this node no longer pulls from.
void Engine::State::handle_lost(NodeId from, const Lost& lost) {
  const bool is_pulled = std::any_of(pulls_.begin(), pulls_.end(), [&](const auto& each) {
    const PullGoal& goal = each.second.goal();
    return goal.sender == from && goal.object == lost.object;
  });
  const bool is_homes = from == view_.home_of(lost.object);
  const bool is_senders = is_pulled && lost.code == Code::kStoreFull;
  if (!is_homes && !is_senders) return;
  if (is_senders) {
    give_up_folds_of(lost.object, lost.text);
  } else {
    note_arrival(lost.object, nullptr);
  }
  const auto it = objects_.find(lost.object);
  if (it == objects_.end()) return;
  LocalObject& object = it->second;
  if (lost.code == Code::kDuplicateObject) {
    fail_waiters(object, lost.code, lost.text);
    return drop_object(lost.object, object.incarnation, false);
  }
  if (object.is_late_copy()) return;  // a claim that wants it would get the same answer
  if (object.is_whole() || object.writing || object.inbound) return claim(lost.object);
  const std::string why = object.fault.empty() ? "" : "; it was here, but: " + object.fault;
  fail_waiters(object, lost.code, lost.text + why);
  object.whole_wanted = object.exists = object.adopting = false;
  if (!object.pinned && !folds_.contains(lost.object)) void_bytes(lost.object, object);
  forget_if_empty(lost.object);
}

// Only the home may say so. A Drop from another node, where this home knows of no deletion, would
// lead to endless new grants.
void Engine::State::handle_drop(NodeId from, const Drop& drop) {
  if (from != view_.home_of(drop.object)) return;
  const auto it = objects_.find(drop.object);
  const bool is_later = it != objects_.end() && it->second.incarnation > drop.upto;
  const bool is_left = it == objects_.end() || is_later;
  drop_object(drop.object, drop.upto, drop.deleted);
  if (!drop.deleted) return;
  if (!is_later && locates_.contains(drop.object)) note_arrival(drop.object, nullptr);
  if (is_left) claim(drop.object);  // the answer: drop_object() claims only what it drops
}

// Without a view every node considers itself the home.
void Engine::State::handle_deleted(NodeId from, const Deleted& deleted) {
  if (from != view_.home_of(deleted.object) || view_.epoch().value == 0) return;
  deletes_.handle_deleted(deleted);
}

// ---- between receivers and senders ----

void Engine::State::handle_pull_start(NodeId from, TransferId transfer, const PullStart& start) {
  const auto it = objects_.find(start.object);
  const LocalObject* object = it == objects_.end() ? nullptr : &it->second;
  // The home may have leased the object to the receiver before it heard that the bytes are gone
  // from here, even if this node wants them again.
  const bool may_be_gone = gone_.covers(start.object, start.incarnation) ||
                           (gone_.is_short(now_) && !gone_.contains(start.object));
  const bool is_gone = may_be_gone && (object == nullptr || !object->is_here());
  const bool is_past = start.of_branch && is_deleted(start.object, Incarnation{1});
  // Refuse to combine if any of the objects is spilled, because they may not all fit into the arena
  // at once. The receiver then asks for each by itself.
  const auto is_filed = [&](const ObjectId& id) {
    const auto at = objects_.find(id);
    return at != objects_.end() && at->second.spilled && !at->second.is_complete();
  };
  const bool is_apart = !start.beside.empty() &&
                        (is_filed(start.object) ||
                         std::any_of(start.beside.begin(), start.beside.end(),
                                     [&](const Beside& other) { return is_filed(other.object); }));
  // A faulty peer may start a transfer that is already in flight.
  for (const ObjectId& served : sender_.handle_stop(from, transfer)) note_use(served);
  if (is_gone || is_past || is_apart || !sender_.handle_start(from, transfer, start, objects_)) {
    send(from, PullRefused{}, transfer);
  }
  note_use(start.object);
  if (sender_.serves(start.object)) fetch_spilled(start.object);
  for (const Beside& other : start.beside) note_use(other.object);
}

void Engine::State::handle_credit(NodeId from, TransferId transfer, const Credit& credit) {
  sender_.handle_credit(from, transfer, credit.blocks);
}

void Engine::State::handle_pull_stop(NodeId from, TransferId transfer) {
  for (const ObjectId& served : sender_.handle_stop(from, transfer)) note_use(served);
}

void Engine::State::handle_pull_refused(NodeId from, TransferId transfer) {
  const auto it = pulls_.find(transfer);
  if (it == pulls_.end() || it->second.goal().sender != from) return;
  const Pull& pull = it->second;
  if (!pull.fold || pull.fold->members.size() == 1) return fail_pull(transfer);
  // The sender can't combine the members, or one of them has gone. The next pulls ask for each by
  // itself.
  Folding& folding = folds_.at(pull.fold->target);
  folding.singly.insert(from);
  dirty_folds_.insert(pull.fold->target);
  end_pull(transfer, false);
}

}  // namespace hoplite
