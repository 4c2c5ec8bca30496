// The receiving end: leases become pulls, blocks land in an object or in a fold.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/engine/state.h"

namespace hoplite {
namespace {

// Remembers the lease of a grant that this node declines. Otherwise the home takes the next claim,
// which names the older lease, for one that crossed its grant.
void note_lease(LocalObject& object, const Grant& grant) {
  const bool is_it = object.incarnation == grant.incarnation &&
                     object.target_epoch == grant.target_epoch &&
                     object.stripes.size() == grant.stripe_count;
  if (!is_it) return;
  LocalStripe& stripe = object.stripes[grant.stripe.value];
  stripe.lease = std::max(stripe.lease, grant.lease);
}

// True if the link was as busy as usual while `bytes` came. `rate_most` is its recent peak rate.
bool is_link_busy(std::uint64_t bytes, Duration elapsed, std::uint64_t& rate_most) {
  const std::uint64_t rate = bytes * 1'000'000 / static_cast<std::uint64_t>(elapsed.ns / 1000 + 1);
  rate_most = std::max(rate, rate_most - rate_most / 16);
  return rate > 0 && rate * 4 >= rate_most * 3;
}

}  // namespace

void Engine::State::handle_grant(NodeId from, const Grant& grant) {
  const ObjectId& id = grant.object;
  if (from != view_.home_of(id) || !names_bytes(grant)) return;
  const auto it = objects_.find(id);
  if (it == objects_.end() || !it->second.is_wanted() || it->second.is_whole() ||
      it->second.writing || it->second.inbound) {
    if (it != objects_.end()) note_lease(it->second, grant);
    if (it != objects_.end() && it->second.is_late_copy())
      return;  // a claim that still wants it would be answered by the same grant
    return claim(id);
  }
  // The home has forgotten the deletion, or never heard of it, and would grant the object again.
  if (is_deleted(id, grant.incarnation)) {
    return send(view_.home_of(id), Delete{id, grant.incarnation});
  }
  LocalObject& object = it->second;
  const bool is_same =
      object.incarnation == grant.incarnation && object.target_epoch == grant.target_epoch;
  // The same bytes have the same shape, and a fold here is cut by its planner.
  if (is_same && object.extent && object.meta != grant.meta) return claim(id);
  if (is_same && folds_.contains(id) && object.stripes.size() != grant.stripe_count) {
    return claim(id);
  }
  // This node has a later target epoch than the grant: the claim says so to the home.
  if (object.incarnation == grant.incarnation && object.target_epoch > grant.target_epoch) {
    return claim(id);
  }
  if (object.incarnation != grant.incarnation || object.target_epoch != grant.target_epoch) {
    // A fold of an older target epoch goes with its bytes: a grant may overtake the ReduceOwn.
    end_fold(id);
    // A receiver may send PullStart before this node's own Grant arrives, because the home told it
    // about this node first. Its edge stays: this node has no bytes yet (incarnation 0).
    if (object.incarnation.value != 0) void_bytes(id, object);
    object.incarnation = grant.incarnation;
    object.target_epoch = grant.target_epoch;
    object.committed = grant.target_epoch.value == 0;
    object.pinned = false;
  }
  object.meta = grant.meta;
  gone_.forget(id);
  if (!object.extent) {
    const std::uint64_t size = grant.meta.size_bytes;
    if (!ask_range(id, size, Line::kCopies)) return on_refused(id, size);
    granting_ = id;
    admit();
    granting_.reset();
    // Without a range there is no lease. The claim says that this node wants nothing until it has
    // room.
    if (!objects_.contains(id) || !object.extent) return claim(id);
  }
  if (object.stripes.size() != grant.stripe_count) {
    for (LocalStripe& stripe : object.stripes) {
      if (stripe.state == StripeState::kReceiving) end_pull(stripe.transfer, true);
    }
    object.stripes.assign(grant.stripe_count, LocalStripe{});
  }
  LocalStripe& stripe = object.stripes[grant.stripe.value];
  if (grant.lease <= stripe.lease) return;
  stripe.lease = grant.lease;
  if (stripe.state == StripeState::kComplete || stripe.state == StripeState::kRoot)
    return claim(id);
  if (stripe.state == StripeState::kReceiving) {
    stripe.ready = pulls_.at(stripe.transfer).ready();
    end_pull(stripe.transfer, true);
  }
  start_pull(id, object, grant.stripe, grant.sender);
}

void Engine::State::start_pull(const ObjectId& id, LocalObject& object, StripeIndex index,
                               NodeId sender) {
  LocalStripe& stripe = object.stripes[index.value];
  stripe.beyond.clear();
  const auto count = static_cast<std::uint16_t>(object.stripes.size());
  if (stripe.ready >= stripe_blocks(object.meta.block_count(), count, index)) {
    stripe.state = StripeState::kComplete;
    claim(id);
    return complete(id, object);
  }
  const TransferId transfer{++last_transfer_};
  if (!progress_due_) progress_due_ = now_ + config_.progress_window;
  stripe.state = StripeState::kReceiving;
  stripe.sender = sender;
  stripe.transfer = transfer;
  open_pull(transfer,
            Pull(PullGoal{id, object.incarnation, object.target_epoch, object.meta, count, index,
                          sender, stripe.ready},
                 count > 1 ? std::max(window_blocks(object.meta, config_), kCreditBlocksStriped)
                           : window_blocks(object.meta, config_)),
            OpenReceive{transfer, sender, id, object.incarnation, object.target_epoch, object.meta,
                        count, index, *object.extent, 0});
}

void Engine::State::open_pull(TransferId transfer, Pull pull, const OpenReceive& receive) {
  actions_.emplace_back(receive);
  const NodeId sender = pull.goal().sender;
  pull.started = links_.contains(sender);
  if (pull.started) send(sender, pull.start(), transfer);
  pulls_.emplace(transfer, std::move(pull));
  if (!view_.is_live(sender)) out_of_reach_.emplace_back(now_ + config_.regrant_delay, transfer);
}

void Engine::State::end_pull(TransferId transfer, bool tell_sender) {
  const auto it = pulls_.find(transfer);
  if (it == pulls_.end()) return;
  const Pull& pull = it->second;
  actions_.emplace_back(CloseReceive{transfer, pull.goal().sender});
  if (tell_sender && pull.started) send(pull.goal().sender, PullStop{}, transfer);
  if (pull.fold) {
    if (const auto fold = folds_.find(pull.fold->target); fold != folds_.end()) {
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
  }
  pulls_.erase(it);
}

// The sender can't go on. The leading blocks stay; blocks behind a gap come again. The home finds
// another sender.
void Engine::State::fail_pull(TransferId transfer) {
  const auto it = pulls_.find(transfer);
  if (it == pulls_.end()) return;
  const Pull& pull = it->second;
  const NodeId sender = pull.goal().sender;
  if (pull.fold) {
    const FoldGoal goal = *pull.fold;
    end_pull(transfer, true);
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
    return;
  }
  const ObjectId id = pull.goal().object;
  LocalStripe& stripe = objects_.at(id).stripes[pull.goal().stripe.value];
  stripe.ready = pull.ready();
  stripe.beyond.clear();
  stripe.state = StripeState::kIdle;
  stripe.sender = sender;
  end_pull(transfer, true);
  claim(id);
  abandon(id);
}

void Engine::State::handle_block_landed(const BlockLanded& event) {
  const auto it = pulls_.find(event.transfer);
  if (it == pulls_.end() || it->second.goal().sender != event.from) return;
  Pull& pull = it->second;
  const bool was_beginning = pull.is_beginning();
  const Pull::Landed landed = pull.handle_landed(event.block);
  if (!landed.is_new) return;
  if (progress_due_) landed_[pull.goal().object] += pull.goal().meta.block_bytes;
  if (progress_due_) landed_all_ += pull.goal().meta.block_bytes;
  ++stats_.blocks_received;
  inventory_.note_progress(now_);
  if (pull.fold) return land_in_fold(event.transfer, pull, landed);
  if (landed.credits > 0 && !pull.is_done()) {
    send(event.from, Credit{landed.credits}, event.transfer);
  }
  land_in_object(event.transfer, pull, was_beginning && !pull.is_beginning());
}

void Engine::State::land_in_object(TransferId transfer, Pull& pull, bool has_begun) {
  const ObjectId id = pull.goal().object;
  LocalObject& object = objects_.at(id);
  LocalStripe& stripe = object.stripes[pull.goal().stripe.value];
  stripe.ready = pull.ready();
  if (!pull.beyond().empty() || !stripe.beyond.empty()) stripe.beyond = pull.beyond();
  if (object.whole_wanted) note_here(id);
  if (has_begun && object.target_epoch.value == 0) {
    // The home balances a forest when it hears that other objects share this link.
    const bool is_one_of_many = landed_[id] * 2 <= landed_all_;
    if (is_one_of_many) {
      send(view_.home_of(id), Progress{id, object.incarnation, object.target_epoch, {}});
    }
  }
  if (!pull.is_done()) return;
  stripe.state = StripeState::kComplete;
  end_pull(transfer, false);
  if (!object.is_complete()) {  // claimed with the next progress, to save messages
    unsaid_.insert(id);
    return;
  }
  claim(id);
  complete(id, object);
}

// Tells the homes which stripes have come and how far the others are, for a limited number of
// objects per window.
void Engine::State::report_progress() {
  if (!progress_due_ || *progress_due_ > now_) return;
  const Duration elapsed = now_ - *progress_due_ + config_.progress_window;
  progress_due_.reset();
  const auto landed = std::exchange(landed_, {});
  const std::uint64_t landed_all = std::exchange(landed_all_, 0);
  const bool is_busy = is_link_busy(landed_all, elapsed, landed_rate_most_);
  for (const ObjectId& id : std::exchange(unsaid_, {})) {
    if (objects_.contains(id)) claim(id);
  }
  std::map<ObjectId, Progress> said;
  for (const auto& [transfer, pull] : pulls_) {
    if (pull.fold) continue;
    const PullGoal& goal = pull.goal();
    Progress& progress = said[goal.object];
    progress.object = goal.object;
    progress.incarnation = goal.incarnation;
    progress.target_epoch = goal.target_epoch;
    const auto its = landed.find(goal.object);
    const bool is_one_of_many = its == landed.end() || its->second * 2 <= landed_all;
    if (is_busy && is_one_of_many) continue;  // no other sender would have been faster
    const LeaseId lease = objects_.at(goal.object).stripes[goal.stripe.value].lease;
    progress.stripes.push_back({goal.stripe, lease, pull.ready()});
  }
  if (said.empty()) return;
  progress_due_ = now_ + config_.progress_window;
  auto next = said.upper_bound(progress_after_);
  for (std::size_t i = std::min(said.size(), config_.progress_per_window_max); i > 0; --i, ++next) {
    if (next == said.end()) next = said.begin();
    progress_after_ = next->first;
    send(view_.home_of(next->first), std::move(next->second));
  }
}

// Folds a block from its slot into the accumulator before the credit that frees the slot goes out.
void Engine::State::land_in_fold(TransferId transfer, Pull& pull, const Pull::Landed& landed) {
  Folding& folding = folds_.at(pull.fold->target);
  const LocalObject& target = objects_.at(pull.fold->target);
  const BlockIndex block = stripe_block(pull.goal().stripe_count, pull.goal().stripe, landed.n);
  const std::uint64_t slot = landed.n % pull.window();
  fold_block(target, folding, pull.fold->members, block,
             pull.slots.offset + slot * pull.goal().meta.block_bytes);
  dirty_folds_.insert(pull.fold->target);
  if (pull.is_done()) return end_pull(transfer, false);
  folding.paces.at(pull.goal().stripe).advance(transfer, pull.ready(), landed.credits);
}

void Engine::State::handle_block_sent(const BlockSent& event) {
  rails_.handle_sent(event, now_);
  if (const auto sent = sender_.handle_sent(event.to, event.ticket)) {
    let_go(*sent);
  }
}

void Engine::State::let_go(const Sender::Sent& sent) {
  if (sent.borrowed) return inventory_.give_back(*sent.borrowed);
  unpin(sent.object, sent.incarnation, ClientId{0}, false);
}

// Refuses the transfers that `gone` was part of. The objects combined with it may be evicted again.
void Engine::State::refuse(const std::vector<Sender::Unserved>& refused, const ObjectId& gone) {
  for (const Sender::Unserved& each : refused) {
    send(each.to, PullRefused{}, each.transfer);
    for (const ObjectId& object : each.objects) {
      if (object != gone) note_use(object);
    }
  }
}

}  // namespace hoplite
