// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "plan/engine/owners.h"

namespace hoplite {
namespace {

// Remembers the lease of a grant that this node declines. Otherwise the home takes the next claim,
// which names the older lease, for one that crossed its grant.
void note_lease(LocalObject& object, const Grant& grant) {
  const bool is_it =
      name_of_bytes(object) == name_of_bytes(grant) && object.stripes.size() == grant.stripe_count;
  if (!is_it) return;
  for (const StripeLease& each : grant.leases) {
    LocalStripe& stripe = object.stripes[each.stripe.value];
    stripe.lease = std::max(stripe.lease, each.lease);
  }
}

// True if the home must hear what this node has before it grants.
bool contradicts(const LocalObject& object, const Grant& grant, bool is_folding) {
  if (name_of_bytes(object) != name_of_bytes(grant)) {
    return object.incarnation == grant.incarnation && object.target_epoch > grant.target_epoch;
  }
  // The same bytes have the same shape, and a fold here is cut by its planner.
  const bool is_other_shape = object.extent && object.meta != grant.meta;
  return is_other_shape || (is_folding && object.stripes.size() != grant.stripe_count);
}

// True if the link was as busy as usual while `bytes` came. `rate_most` is its recent peak rate.
bool is_link_busy(std::uint64_t bytes, Duration elapsed, std::uint64_t& rate_most) {
  const std::uint64_t rate = bytes * 1'000'000 / static_cast<std::uint64_t>(elapsed.ns / 1000 + 1);
  rate_most = std::max(rate, rate_most - rate_most / 16);
  return rate > 0 && rate * 4 >= rate_most * 3;
}

}  // namespace

// Each incarnation of a node has its own range of transfer ids, so that ids of two incarnations
// never meet at a peer.
Transfers::Transfers(Owners& engine, std::uint64_t seed)
    : engine_(engine),
      rails_(engine.config.rail_queue_bytes, engine.config.link_bytes_per_s),
      sender_(engine.config.node, engine.config.combined_bytes_max),
      last_transfer_((std::uint64_t{engine.config.incarnation.value} << 40) | (mix64(seed) & 0xffff)
                                                                                  << 24) {}

void Transfers::handle_grant(NodeId from, const Grant& grant) {
  const ObjectId& id = grant.object;
  if (from != engine_.peers.home_of(id) || !names_bytes(grant)) return;
  LocalObject* const found = engine_.objects.find(id);
  if (found == nullptr || !found->is_wanted() || found->is_whole() || found->put_request ||
      found->inbound || engine_.rebuilds.makes(id)) {
    if (found != nullptr) note_lease(*found, grant);
    // A claim of a late copy, which still wants it, would be answered by the same grant.
    if (found == nullptr || !found->is_late_copy()) engine_.objects.claim(id);
    return;
  }
  // The home has forgotten the deletion, or never heard of it, and would grant the object again.
  if (engine_.keeping.is_deleted(id, grant.incarnation)) {
    return engine_.outgoing.send(engine_.peers.home_of(id), Delete{id, grant.incarnation});
  }
  LocalObject& object = *found;
  if (contradicts(object, grant, engine_.folds.is_folding(id))) return engine_.objects.claim(id);
  if (name_of_bytes(object) != name_of_bytes(grant)) {
    // A fold of an older target epoch goes with its bytes: a grant may overtake the ReduceOwn.
    engine_.folds.end_fold(id);
    // A receiver may send PullStart before this node's own Grant arrives, because the home told it
    // about this node first. Its edge stays: this node has no bytes yet (incarnation 0).
    if (object.incarnation.value != 0) engine_.objects.void_bytes(id, object);
    object.begin(name_of_bytes(grant), grant.meta, Keep::kCopy,
                 finality_of_copy(grant.target_epoch));
  }
  object.meta = grant.meta;
  engine_.keeping.forget_gone(id);
  if (!object.extent) {
    const std::uint64_t size = grant.meta.size_bytes;
    if (!engine_.objects.ask_range(id, size, Line::kCopies))
      return engine_.objects.refuse_range(id, size);
    engine_.objects.admit_for(id);
    // Without a range there is no lease. The claim says that this node wants nothing until it has
    // room.
    if (!engine_.objects.contains(id) || !object.extent) return engine_.objects.claim(id);
  }
  if (object.stripes.size() != grant.stripe_count) {
    for (LocalStripe& stripe : object.stripes) {
      if (stripe.state == StripeState::kReceiving) end_pull(stripe.transfer, Notice::kTellSender);
    }
    object.stripes.assign(grant.stripe_count, LocalStripe{});
  }
  take_leases(grant);
}

// Takes up each lease that is newer than the stripe's own. The last stripe's completion may end the
// object's record here, so each lease looks it up. A stripe that is here already is claimed.
void Transfers::take_leases(const Grant& grant) {
  const ObjectId& id = grant.object;
  bool has_some = false;
  for (const StripeLease& each : grant.leases) {
    LocalObject* const object = engine_.objects.find(id);
    const bool is_it = object != nullptr && object->extent &&
                       name_of_bytes(*object) == name_of_bytes(grant) &&
                       object->stripes.size() == grant.stripe_count;
    if (!is_it) return;
    LocalStripe& stripe = object->stripes[each.stripe.value];
    if (each.lease <= stripe.lease) continue;
    stripe.lease = each.lease;
    if (stripe.state == StripeState::kComplete || stripe.state == StripeState::kRoot) {
      has_some = true;
      continue;
    }
    if (stripe.state == StripeState::kReceiving) {
      stripe.ready = pulls_.at(stripe.transfer).ready();
      end_pull(stripe.transfer, Notice::kTellSender);
    }
    start_pull(id, *object, each.stripe, each.sender);
  }
  if (has_some) engine_.objects.claim(id);
}

void Transfers::start_pull(const ObjectId& id, LocalObject& object, StripeIndex index,
                           NodeId sender) {
  LocalStripe& stripe = object.stripes[index.value];
  stripe.beyond.clear();
  const auto count = static_cast<std::uint16_t>(object.stripes.size());
  if (stripe.ready >= stripe_blocks(object.meta.block_count(), count, index)) {
    stripe.state = StripeState::kComplete;
    engine_.objects.claim(id);
    return engine_.objects.complete(id, object);
  }
  const TransferId transfer = next_transfer();
  if (!progress_due_) progress_due_ = engine_.now + engine_.config.progress_window;
  stripe.state = StripeState::kReceiving;
  stripe.sender = sender;
  stripe.transfer = transfer;
  Pull pull(PullGoal{id, object.incarnation, object.target_epoch, object.meta, count, index, sender,
                     stripe.ready},
            count > 1 ? std::max(window_blocks(object.meta, engine_.config), kCreditBlocksStriped)
                      : window_blocks(object.meta, engine_.config));
  pull.range = *object.extent;
  open_pull(transfer, std::move(pull));
}

void Transfers::open_pull(TransferId transfer, Pull of) {
  Pull& pull = pulls_.emplace(transfer, std::move(of)).first->second;
  if (engine_.loans.is_free(pull.place())) {
    open_receive(transfer, pull);
  } else {
    held_back_.insert(transfer);
  }
  if (!engine_.peers.view().is_live(pull.goal().sender))
    out_of_reach_.emplace_back(engine_.now + engine_.config.regrant_delay, transfer);
}

void Transfers::open_receive(TransferId transfer, Pull& pull) {
  const NodeId sender = pull.goal().sender;
  engine_.outgoing.act(pull.open(transfer));
  pull.stage = PullStage::kOpened;
  if (!engine_.outgoing.is_up(sender)) return;
  pull.stage = PullStage::kStarted;
  engine_.outgoing.send(sender, pull.start(), transfer);
}

// io/: amid a block of transfer 7 │ engine: CloseReceive 7, its bytes are void or come by another
// transfer │ io/: writes the rest of that block.  Nothing else may have the place by then.
// Test: ClosingReceives.OpensTheNextReceiveOfAStripeWhenTheFirstWritesNoMore.
void Transfers::handle_receive_closed(const ReceiveClosed& event) {
  has_closed_ = true;
  if (const auto range = engine_.loans.remove(event.transfer))
    engine_.inventory.release(*range, engine_.now);
}

void Transfers::open_held_back() {
  if (!std::exchange(has_closed_, false)) return;
  std::erase_if(held_back_, [&](TransferId transfer) {
    Pull& pull = pulls_.at(transfer);
    const bool is_free = engine_.loans.is_free(pull.place());
    if (is_free) open_receive(transfer, pull);
    return is_free;
  });
  engine_.folds.retry_held_back();
}

void Transfers::end_pull(TransferId transfer, Notice notice) {
  const auto it = pulls_.find(transfer);
  if (it == pulls_.end()) return;
  const Pull& pull = it->second;
  if (pull.stage == PullStage::kHeldBack) {
    held_back_.erase(transfer);
  } else {
    engine_.loans.add(transfer, pull.place());
    engine_.outgoing.act(CloseReceive{transfer, pull.goal().sender});
  }
  if (notice == Notice::kTellSender && pull.stage == PullStage::kStarted)
    engine_.outgoing.send(pull.goal().sender, PullStop{}, transfer);
  if (pull.fold) engine_.folds.note_pull_ended(transfer, pull);
  pulls_.erase(it);
}

// The sender can't go on. The leading blocks stay; blocks behind a gap come again. The home finds
// another sender.
void Transfers::fail_pull(TransferId transfer) {
  const auto it = pulls_.find(transfer);
  if (it == pulls_.end()) return;
  const Pull& pull = it->second;
  const NodeId sender = pull.goal().sender;
  if (pull.fold) {
    const FoldGoal goal = *pull.fold;
    end_pull(transfer, Notice::kTellSender);
    return engine_.folds.note_pull_failed(goal, sender);
  }
  const ObjectId id = pull.goal().object;
  LocalStripe& stripe = engine_.objects.at(id).stripes[pull.goal().stripe.value];
  stripe.ready = pull.ready();
  stripe.beyond.clear();
  stripe.state = StripeState::kIdle;
  stripe.sender = sender;
  end_pull(transfer, Notice::kTellSender);
  engine_.objects.claim(id);
  engine_.objects.drop_unwanted(id);
}

void Transfers::handle_pull_refused(NodeId from, TransferId transfer) {
  const auto it = pulls_.find(transfer);
  if (it == pulls_.end() || it->second.goal().sender != from) return;
  const Pull& pull = it->second;
  if (!pull.fold || pull.fold->members.size() == 1) return fail_pull(transfer);
  engine_.folds.ask_singly(pull.fold->target, from);
  end_pull(transfer, Notice::kSilent);
}

bool Transfers::pulls_from(NodeId sender, const ObjectId& object) const {
  return std::any_of(pulls_.begin(), pulls_.end(), [&](const auto& each) {
    const PullGoal& goal = each.second.goal();
    return goal.sender == sender && goal.object == object;
  });
}

void Transfers::give_credit(TransferId transfer, std::uint32_t blocks) {
  engine_.outgoing.send(pulls_.at(transfer).goal().sender, Credit{blocks}, transfer);
}

void Transfers::handle_block_landed(const BlockLanded& event) {
  const auto it = pulls_.find(event.transfer);
  if (it == pulls_.end() || it->second.goal().sender != event.from) return;
  Pull& pull = it->second;
  const bool was_beginning = pull.is_beginning();
  // Also of a block that comes again: its bytes have taken the place of the first ones.
  if (!pull.fold) note_sum(pull.goal(), event);
  const Pull::Landed landed = pull.handle_landed(event.block);
  if (!landed.is_new) return;
  if (progress_due_) landed_[pull.goal().object] += pull.goal().meta.block_bytes;
  if (progress_due_) landed_all_ += pull.goal().meta.block_bytes;
  ++engine_.counters.blocks_received;
  engine_.inventory.note_progress(engine_.now);
  if (pull.fold) return engine_.folds.land_in_fold(event.transfer, pull, landed);
  if (landed.credits > 0 && !pull.is_done()) {
    engine_.outgoing.send(event.from, Credit{landed.credits}, event.transfer);
  }
  land_in_object(event.transfer, pull, was_beginning && !pull.is_beginning());
}

// The object may have been cut anew since the pull began, as a small result is by its commit.
void Transfers::note_sum(const PullGoal& goal, const BlockLanded& event) {
  LocalObject& object = engine_.objects.at(goal.object);
  if (object.meta.block_bytes == goal.meta.block_bytes) object.keep_sum(event.block, event.crc32c);
}

void Transfers::land_in_object(TransferId transfer, Pull& pull, bool has_begun) {
  const ObjectId id = pull.goal().object;
  LocalObject& object = engine_.objects.at(id);
  LocalStripe& stripe = object.stripes[pull.goal().stripe.value];
  stripe.ready = pull.ready();
  if (!pull.beyond().empty() || !stripe.beyond.empty()) stripe.beyond = pull.beyond();
  if (object.wanted_by_fold) engine_.folds.note_here(id);
  engine_.objects.grow(id, object);
  if (has_begun && object.target_epoch.value == 0) {
    // The home balances a forest when it hears that other objects share this link.
    const bool is_one_of_many = landed_[id] * 2 <= landed_all_;
    if (is_one_of_many) {
      engine_.outgoing.send(engine_.peers.home_of(id),
                            Progress{id, object.incarnation, object.target_epoch, {}});
    }
  }
  if (!pull.is_done()) return;
  stripe.state = StripeState::kComplete;
  end_pull(transfer, Notice::kSilent);
  if (!object.is_complete()) {  // claimed with the next progress, to save messages
    unclaimed_.insert(id);
    return;
  }
  engine_.objects.claim(id);
  engine_.objects.complete(id, object);
}

// Tells the homes which stripes have come and how far the others are, for a limited number of
// objects per window.
void Transfers::report_progress() {
  if (!progress_due_ || *progress_due_ > engine_.now) return;
  const Duration elapsed = engine_.now - *progress_due_ + engine_.config.progress_window;
  progress_due_.reset();
  const auto landed = std::exchange(landed_, {});
  const std::uint64_t landed_all = std::exchange(landed_all_, 0);
  const bool is_busy = is_link_busy(landed_all, elapsed, landed_rate_most_);
  for (const ObjectId& id : std::exchange(unclaimed_, {})) {
    if (engine_.objects.contains(id)) engine_.objects.claim(id);
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
    const LeaseId lease = engine_.objects.at(goal.object).stripes[goal.stripe.value].lease;
    progress.stripes.push_back({goal.stripe, lease, pull.ready()});
  }
  if (said.empty()) return;
  progress_due_ = engine_.now + engine_.config.progress_window;
  auto next = said.upper_bound(progress_after_);
  for (std::size_t i = std::min(said.size(), engine_.config.progress_per_window_max); i > 0;
       --i, ++next) {
    if (next == said.end()) next = said.begin();
    progress_after_ = next->first;
    engine_.outgoing.send(engine_.peers.home_of(next->first), std::move(next->second));
  }
}

void Transfers::fail_out_of_reach() {
  while (!out_of_reach_.empty() && out_of_reach_.front().first <= engine_.now) {
    const TransferId transfer = out_of_reach_.front().second;
    out_of_reach_.pop_front();
    fail_pull(transfer);
  }
}

std::optional<Instant> Transfers::next_deadline() const {
  if (out_of_reach_.empty()) return progress_due_;
  return earlier(progress_due_, out_of_reach_.front().first);
}

void Transfers::handle_pull_start(NodeId from, TransferId transfer, const PullStart& start) {
  const LocalObject* const object = engine_.objects.find(start.object);
  // The home may have leased the object to the receiver before it heard that the bytes are gone
  // from here, even if this node wants them again.
  const bool is_gone = engine_.keeping.may_be_gone(start.object, start.incarnation) &&
                       (object == nullptr || !object->is_here());
  const bool is_past = start.of_branch && engine_.keeping.is_deleted(start.object, Incarnation{1});
  // Refuse to combine if any of the objects is spilled, because they may not all fit into the arena
  // at once. The receiver then asks for each by itself.
  const auto is_filed = [&](const ObjectId& id) {
    LocalObject* const at = engine_.objects.find(id);
    return at != nullptr && at->spilled && !at->is_complete();
  };
  const bool is_apart = !start.beside.empty() &&
                        (is_filed(start.object) ||
                         std::any_of(start.beside.begin(), start.beside.end(),
                                     [&](const Beside& other) { return is_filed(other.object); }));
  // A faulty peer may start a transfer that is already in flight.
  for (const ObjectId& served : sender_.handle_stop(from, transfer))
    engine_.objects.note_use(served);
  if (is_gone || is_past || is_apart ||
      !sender_.handle_start(from, transfer, start, engine_.objects.all())) {
    engine_.outgoing.send(from, PullRefused{}, transfer);
  }
  engine_.objects.note_use(start.object);
  if (sender_.serves(start.object)) engine_.spills.fetch_spilled(start.object);
  for (const Beside& other : start.beside) engine_.objects.note_use(other.object);
}

void Transfers::handle_credit(NodeId from, TransferId transfer, const Credit& credit) {
  sender_.handle_credit(from, transfer, credit.blocks);
}

void Transfers::handle_pull_stop(NodeId from, TransferId transfer) {
  for (const ObjectId& served : sender_.handle_stop(from, transfer))
    engine_.objects.note_use(served);
}

// Hands out blocks until every rail's queue is full or nothing is ready.
void Transfers::pump() {
  const auto blocks = sender_.take_blocks(engine_.objects.all(), rails_, engine_.inventory,
                                          engine_.outgoing.fold_bytes_left(), engine_.now);
  for (const Sender::Next& next : blocks) {
    SendBlock block = next.block;
    block.header.view_epoch = engine_.peers.view().epoch();
    std::memcpy(&block.header.trace.value, block.header.object.bytes.data(),
                sizeof block.header.trace.value);
    if (next.combined.empty()) {
      ++engine_.objects.at(block.header.object).pins[kThisNode];
      engine_.inventory.mark_needed(block.header.object);
    } else {
      engine_.folds.combine(next);
    }
    ++engine_.counters.blocks_sent;
    engine_.counters.bytes_sent += block.extent.size_bytes;
    engine_.outgoing.act(block);
  }
  while (const auto refused = sender_.poll_refused()) refuse({*refused}, {});
}

void Transfers::handle_block_sent(const BlockSent& event) {
  rails_.handle_sent(event, engine_.now);
  if (const auto sent = sender_.handle_sent(event.to, event.ticket)) {
    release_sent(*sent);
  }
}

void Transfers::release_sent(const Sender::Sent& sent) {
  if (sent.borrowed) return engine_.inventory.release_borrowed(*sent.borrowed);
  engine_.objects.unpin(sent.object, sent.incarnation, kThisNode, Pins::kOne);
}

// Refuses the transfers that `gone` was part of. The objects combined with it may be evicted again.
void Transfers::refuse(const std::vector<Sender::Unserved>& refused, const ObjectId& gone) {
  for (const Sender::Unserved& each : refused) {
    engine_.outgoing.send(each.to, PullRefused{}, each.transfer);
    for (const ObjectId& object : each.objects) {
      if (object != gone) engine_.objects.note_use(object);
    }
  }
}

// Refuses the transfers that read the object here, because its bytes go.
void Transfers::stop_serving(const ObjectId& id) { refuse(sender_.drop(id), id); }

// Tells the receivers of the object that it can't be read back here.
void Transfers::fail_readers(const ObjectId& id, const std::string& text) {
  const auto refused = sender_.drop(id);
  const std::string where = " (on node " + std::to_string(engine_.config.node.value) + ")";
  for (const auto& each : refused)
    engine_.outgoing.send(each.to, Lost{id, Code::kStoreFull, text + where});
  refuse(refused, id);
}

void Transfers::open_rails(NodeId node, std::size_t count) { rails_.handle_link_up(node, count); }

// Pulls from `node` begin again over its new link.
void Transfers::start_pulls_from(NodeId node) {
  for (auto& [transfer, pull] : pulls_) {
    if (pull.goal().sender != node || pull.stage != PullStage::kOpened) continue;
    pull.stage = PullStage::kStarted;
    engine_.outgoing.send(node, pull.start(), transfer);
  }
}

void Transfers::stop_sending_to(NodeId node) {
  rails_.handle_link_down(node);
  for (const ObjectId& served : sender_.handle_link_down(node)) engine_.objects.note_use(served);
  for (const Sender::Sent& sent : sender_.take_unsent(node)) release_sent(sent);
  // The receiver may have ended the link over a wrong checksum.
  engine_.objects.forget_sums();
}

void Transfers::fail_pulls_from(NodeId node) {
  std::vector<TransferId> broken;
  for (const auto& [transfer, pull] : pulls_) {
    if (pull.goal().sender == node) broken.push_back(transfer);
  }
  for (const TransferId transfer : broken) fail_pull(transfer);
}

void Transfers::check_invariants() const {
  rails_.check_invariants();
  for (const auto& [transfer, pull] : pulls_) {
    const bool is_held_back = pull.stage == PullStage::kHeldBack;
    HOPLITE_CHECK(is_held_back == held_back_.contains(transfer));
    HOPLITE_CHECK(has_closed_ || is_held_back != engine_.loans.is_free(pull.place()));
  }
  for (const auto& [id, object] : engine_.objects.all()) {
    for (const LocalStripe& stripe : object.stripes) {
      HOPLITE_CHECK((stripe.state == StripeState::kReceiving) == pulls_.contains(stripe.transfer));
    }
  }
}

}  // namespace hoplite
