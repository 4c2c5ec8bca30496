// The interface of the engine, and its common parts: the loop that settles, the messages that go
// out, and the claims that repeat everything.
// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/engine.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/prng.h"
#include "plan/engine/state.h"

namespace hoplite {
namespace {

template <typename... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overload(Fs...) -> Overload<Fs...>;

}  // namespace

Engine::Engine(const EngineConfig& config, std::uint64_t seed)
    : state_(std::make_unique<State>(config, seed)) {}
Engine::~Engine() = default;

void Engine::handle_command(const Command& command, Instant now) {
  state_->begin(now);
  state_->handle_command(command);
  state_->settle();
}

void Engine::handle_io(const IoEvent& event, Instant now) {
  state_->begin(now);
  state_->handle_io(event);
  state_->settle();
}

void Engine::handle_timeout(Instant now) {
  state_->begin(now);
  state_->handle_timeout();
  state_->settle();
}

std::optional<Action> Engine::poll_action() { return state_->poll_action(); }
std::optional<Instant> Engine::poll_timeout() const { return state_->poll_timeout(); }
EngineStats Engine::stats() const { return state_->stats(); }
void Engine::check_invariants() const { state_->check_invariants(); }

// Each incarnation of a node has its own range of transfer ids, so that ids of two incarnations
// never meet at a peer.
EngineTables::EngineTables(const EngineConfig& config, std::uint64_t seed)
    : config_(config),
      view_(config.node),
      directory_(config),
      reduces_(config),
      inventory_(config.arena_bytes, config.admission_grace, config.when_full),
      rails_(config.rail_queue_bytes),
      sender_(config.node, config.combined_bytes_max),
      last_transfer_((std::uint64_t{config.incarnation.value} << 40) | (mix64(seed) & 0xffff)
                                                                           << 24),
      tombstones_(config.tombstone_life, config.recent_objects_max),
      deletes_(config),
      gone_(config.tombstone_life, config.recent_objects_max),
      orphans_(config.tombstone_life, config.recent_objects_max),
      parked_(config.parked_messages_max, config.parked_bytes_max) {
  HOPLITE_CHECK(config.node != kNoNode);
  HOPLITE_CHECK(!fault_of(config));
}

Engine::State::State(const EngineConfig& config, std::uint64_t seed) : EngineTables(config, seed) {}

// ---- which handler hears what ----

void Engine::State::handle_command(const Command& command) {
  const Waiter waiter{command.client, command.request};
  std::visit(
      Overload{[&](const PutCommand& put) { handle_put(waiter, put); },
               [&](const WroteCommand& wrote) { handle_wrote(waiter, wrote); },
               [&](const GetCommand& get) { handle_get(waiter, get); },
               [&](const ReleaseCommand& release) { handle_release(command.client, release); },
               [&](const DeleteCommand& remove) { handle_delete(waiter, remove); },
               [&](const ReduceCommand& reduce) { handle_reduce(waiter, reduce); },
               [&](const ReduceSourceCommand& source) { handle_reduce_source(source); },
               [&](const CancelCommand& cancel) { handle_cancel(waiter, cancel); },
               [&](const ClientLostCommand&) { handle_client_lost(command.client); },
               [&](const SetViewCommand& view) { handle_set_view(view); },
               [&](const ListCommand& list) { handle_list(command.request, list); },
               [&](const OrphanCommand& orphan) { handle_orphan(waiter, orphan); },
               [&](const DrainCommand&) { handle_drain(); }},
      command.body);
}

void Engine::State::handle_io(const IoEvent& event) {
  std::visit(Overload{[&](const MessageIn& in) { handle_message(in); },
                      [&](const BlockLanded& landed) { handle_block_landed(landed); },
                      [&](const BlockSent& sent) { handle_block_sent(sent); },
                      [&](const LinkUp& up) { handle_link_up(up); },
                      [&](const LinkDown& down) { handle_link_down(down); },
                      [&](const PeerDead& dead) { handle_peer_dead(dead); },
                      [&](const SpillDone& done) { handle_spill_done(done); }},
             event);
}

void Engine::State::receive(NodeId from, const Message& message, Bytes payload) {
  std::visit(
      Overload{[&](const Claim& claim) {
                 handle_claim(from, claim, message.view_epoch, std::move(payload));
               },
               [&](const Progress& progress) { handle_progress(from, progress); },
               [&](const Delete& remove) { handle_delete_at_home(from, remove); },
               [&](const Orphan& orphan) { handle_orphan_at_home(orphan); },
               [&](const Locate& locate) { handle_locate(from, locate); },
               [&](const ReduceWant& want) { handle_reduce_want(from, want); },
               [&](const ReduceReport& report) { handle_reduce_report(from, report); },
               [&](const ResyncDone& done) { handle_resync_done(from, done); },
               [&](const ResyncWanted&) { handle_resync_wanted(from); },
               [&](const Grant& grant) { handle_grant(from, grant); },
               [&](const Adopt& adopt) { handle_adopt(from, adopt); },
               [&](const Standing& standing) { handle_standing(from, standing); },
               [&](const Located& located) { handle_located(from, located, std::move(payload)); },
               [&](const Push& push) { handle_push(push, std::move(payload)); },
               [&](const PushTo& push) { handle_push_to(from, push); },
               [&](const Lost& lost) { handle_lost(from, lost); },
               [&](const Drop& drop) { handle_drop(from, drop); },
               [&](const Deleted& deleted) { handle_deleted(from, deleted); },
               [&](const ReduceOwn& own) { handle_reduce_own(from, own); },
               [&](const ReduceState& state) { handle_reduce_state(from, state); },
               [&](const PullStart& start) { handle_pull_start(from, message.transfer, start); },
               [&](const Credit& credit) { handle_credit(from, message.transfer, credit); },
               [&](const PullStop&) { handle_pull_stop(from, message.transfer); },
               [&](const PullRefused&) { handle_pull_refused(from, message.transfer); }},
      message.body);
}

// Handles messages to this node itself, admissions, the home's answers, folds and blocks until
// nothing is left or the turn is full; poll_timeout() then returns now. Each may cause the others.
void Engine::State::settle() {
  fold_bytes_left_ = config_.fold_bytes_max - std::min(config_.fold_bytes_max, fold_bytes_queued_);
  more_ = false;
  bool is_settled = false;
  for (std::size_t step = 0; !is_settled && step < config_.steps_per_turn_max; ++step) {
    admit();
    if (!loop_.empty()) {
      const Message message = std::move(loop_.front());
      loop_.pop_front();
      receive(config_.node, message, {});
    } else if (auto parcel = directory_.poll_parcel()) {
      send_parcel(std::move(*parcel));
    } else if (auto state = reduces_.poll_state()) {
      tell_state(*state);
    } else if (auto share = reduces_.poll_parcel()) {
      send_parcel(std::move(*share));
    } else if (const auto locate = reduces_.poll_locate()) {
      locates_[locate->object] = *locate;
      send(view_.home_of(locate->object), *locate);
    } else if (auto target = reduces_.poll_cancelled()) {
      delete_everywhere(*target, Incarnation{1});
    } else if (const auto held = deletes_.poll_held()) {
      delete_everywhere(held->command.object, held->command.upto);
      reply(held->waiter, Done{});
    } else if (!dirty_folds_.empty() && fold_bytes_left_ > 0) {
      const ObjectId dirty = *dirty_folds_.begin();
      dirty_folds_.erase(dirty_folds_.begin());
      drive_fold(dirty);
    } else if (!spills_.ended.empty() && dirty_folds_.empty()) {
      const Spilling ended = spills_.ended.back();
      spills_.ended.pop_back();
      unpin(ended.object, ended.incarnation, ClientId{0}, false);
    } else {
      is_settled = true;
    }
  }
  carried_.reset();
  more_ = !is_settled || !dirty_folds_.empty();
  pump();
  const bool is_empty = draining_ && sole_.empty();
  if (is_empty && !drained_) actions_.emplace_back(ReportDrained{});
  drained_ = is_empty;
}

void Engine::State::handle_timeout() {
  directory_.handle_timeout(now_);
  report_progress();
  if (paces_due_ && *paces_due_ <= now_) {
    paces_due_.reset();
    for (auto& [target, folding] : folds_) {
      for (auto& [stripe, pace] : folding.paces) pace.handle_window();
      dirty_folds_.insert(target);
    }
  }
  if (answers_due_ && *answers_due_ <= now_) {
    answers_due_.reset();
    for (auto& [target, call] : calls_) {
      call.unanswered.clear();
      begin_call(target);
    }
  }
  while (!out_of_reach_.empty() && out_of_reach_.front().first <= now_) {
    const TransferId transfer = out_of_reach_.front().second;
    out_of_reach_.pop_front();
    fail_pull(transfer);
  }
  deletes_.handle_timeout(now_);
  for (RecentObjects* recent : {&tombstones_, &gone_, &orphans_}) recent->handle_timeout(now_);
}

std::optional<Action> Engine::State::poll_action() {
  if (actions_.empty()) return std::nullopt;
  Action action = std::move(actions_.front());
  actions_.pop_front();
  if (const auto* fold = std::get_if<Fold>(&action)) fold_bytes_queued_ -= fold->from.size_bytes;
  if (const auto* end = std::get_if<Finish>(&action)) fold_bytes_queued_ -= end->from.size_bytes;
  return action;
}

std::optional<Instant> Engine::State::poll_timeout() const {
  if (more_ || !actions_.empty()) return now_;
  std::optional<Instant> earliest = directory_.poll_timeout();
  const auto consider = [&](std::optional<Instant> at) {
    if (at && (!earliest || *at < *earliest)) earliest = at;
  };
  consider(inventory_.poll_timeout());
  consider(progress_due_);
  consider(paces_due_);
  consider(answers_due_);
  if (!out_of_reach_.empty()) consider(out_of_reach_.front().first);
  consider(deletes_.poll_timeout());
  for (const RecentObjects* recent : {&tombstones_, &gone_, &orphans_}) {
    consider(recent->poll_timeout());
  }
  return earliest;
}

void Engine::State::send(NodeId to, PeerMessage body, TransferId transfer,
                         std::optional<Extent> payload) {
  Message message{view_.epoch(), transfer, {}, std::move(body)};
  std::visit(
      [&](const auto& m) {
        if constexpr (requires { m.object; }) {
          std::memcpy(&message.trace.value, m.object.bytes.data(), sizeof message.trace.value);
        } else if constexpr (requires { m.target; }) {
          std::memcpy(&message.trace.value, m.target.bytes.data(), sizeof message.trace.value);
        }
      },
      message.body);
  if (to == config_.node) {
    loop_.push_back(std::move(message));
  } else if (links_.contains(to)) {  // else: resync() repeats everything when the link is up
    actions_.emplace_back(SendMessage{to, std::move(message), payload});
  }
}

// The payload of a parcel is this node's own copy of the object. If the copy has gone meanwhile,
// the claim that says so is on its way to the home. A retried push then finds another holder, and a
// node that asked for a location has it and pulls.
void Engine::State::send_parcel(Parcel parcel) {
  if (!parcel.with_payload) return send(parcel.to, std::move(parcel.body));
  const auto* located = std::get_if<Located>(&parcel.body);
  const ObjectId& id = located != nullptr ? located->object : std::get<Push>(parcel.body).object;
  const auto it = objects_.find(id);
  const bool is_here = it != objects_.end() && it->second.is_complete() &&
                       (located == nullptr || it->second.incarnation == located->incarnation);
  if (!is_here && located == nullptr) return;
  if (!is_here) return send(parcel.to, std::move(parcel.body));
  note_use(it->first);
  send(parcel.to, std::move(parcel.body), {}, it->second.extent);
}

void Engine::State::reply(const Waiter& waiter, Reply reply) {
  actions_.emplace_back(ReplyToClient{waiter.client, waiter.request, std::move(reply)});
}

// Tells the object's home all that this node has and wants of it.
void Engine::State::claim(const ObjectId& id) {
  note_sole(id);
  const NodeId home = view_.home_of(id);
  const auto it = objects_.find(id);
  if (it != objects_.end() && rank_of(id, it->second) != inventory_.rank(id)) note_use(id);
  Claim said;
  said.object = id;
  std::optional<Extent> payload;
  if (it != objects_.end() && is_planned_here(id)) {
    // A fold's result belongs to no node until it is whole, and a put does not wait for its own
    // object.
    const bool is_put = it->second.is_whole() || it->second.writing || it->second.inbound;
    said.wants = it->second.is_wanted() && !is_put;
    said.exists = it->second.exists;
  } else if (it != objects_.end()) {
    const LocalObject& object = it->second;
    said = make_claim(id, object, inventory_.is_waiting(id));
    const bool is_small = object.meta.size_bytes <= config_.inline_bytes_max;
    // Only its parent reads a branch of a reduce, and the parent knows the holder.
    const bool is_whole = object.pinned && object.is_complete() && object.committed;
    if (is_small && is_whole && !object.is_branch) {
      payload = object.extent;
    }
  }
  const bool says_nothing = said.stripes.empty() && !said.wants;
  send(home, std::move(said), {}, payload);
  // A claim of nothing also takes back this node's question, so ask it again.
  const auto question = locates_.find(id);
  if (says_nothing && question != locates_.end()) send(home, question->second);
}

// Soft state: after a new view or a reconnect the node repeats everything, to one home or to all.
void Engine::State::resync(std::optional<NodeId> only_to, const ResyncDone& end) {
  const auto is_meant = [&](const ObjectId& id) {
    return !only_to || view_.home_of(id) == *only_to;
  };
  // ResyncWanted goes first. It makes the peer treat this node's claims as stale, and the claims
  // that follow renew them.
  for (const NodeId peer : links_) {
    const bool is_asked = !only_to || peer == *only_to;
    if (!is_asked || !parked_.take_dropped(peer, view_.epoch())) continue;
    asked_again_.insert(peer);
    send(peer, ResyncWanted{});
  }
  deletes_.for_each([&](const Delete& request) {
    if (is_meant(request.object)) send(view_.home_of(request.object), request);
  });
  orphans_.for_each([&](const ObjectId& id, Incarnation upto) {
    if (is_meant(id)) send(view_.home_of(id), Orphan{id, upto});
  });
  for (const auto& [id, object] : objects_) {
    if (is_meant(id)) claim(id);
  }
  for (const auto& [id, folding] : folds_) {
    if (!is_meant(id)) continue;
    folds_.at(id).reported.clear();
    report(id, {});
    dirty_folds_.insert(id);
  }
  for (const auto& [id, outcome] : committed_) {
    if (is_meant(id)) report_committed(id);
  }
  for (const auto& [id, locate] : locates_) {
    if (is_meant(id)) send(view_.home_of(id), locate);
  }
  for (const auto& [id, call] : calls_) {
    if (!is_meant(id)) continue;
    send(view_.home_of(id), call.want);
  }
  for (const auto& [id, failure] : failed_) {
    if (is_meant(id)) send(view_.home_of(id), failure);
  }
  for (const Member& member : view_.members()) {
    if (member.node == config_.node || (only_to && member.node != *only_to)) continue;
    send(member.node, end);
  }
}

// Admits requests range by range, in the order of asking.
void Engine::State::admit() {
  while (const auto next = inventory_.poll_admission(now_)) {
    if (const auto* admitted = std::get_if<Admitted>(&*next)) {
      on_admitted(*admitted);
    } else if (const auto* refused = std::get_if<Refused>(&*next)) {
      on_refused(refused->object, refused->size_bytes);
    } else if (const auto* spilled = std::get_if<Spill>(&*next)) {
      spill(spilled->object);
    } else {
      ++stats_.evictions;
      const ObjectId id = std::get<Evict>(*next).object;
      LocalObject& object = objects_.at(id);
      if (object.pinned) {  // the file has it
        inventory_.release(*object.extent, now_);
        object.extent.reset();
        continue;
      }
      void_bytes(id, object);
      objects_.erase(id);
      forget_outcome(id);
      claim(id);
    }
  }
}

// Hands out blocks until every rail's queue is full or nothing is ready.
void Engine::State::pump() {
  const auto folds = [&] { return fold_bytes_left_ > 0 ? Folds::kNow : Folds::kLater; };
  while (auto next = sender_.poll_block(objects_, rails_, inventory_, folds(), now_)) {
    SendBlock& block = next->block;
    block.header.view_epoch = view_.epoch();
    std::memcpy(&block.header.trace.value, block.header.object.bytes.data(),
                sizeof block.header.trace.value);
    if (next->combined.empty()) {
      ++objects_.at(block.header.object).pins[ClientId{0}];
      inventory_.mark_needed(block.header.object);
    } else {
      combine(*next);
    }
    ++stats_.blocks_sent;
    stats_.bytes_sent += block.extent.size_bytes;
    actions_.emplace_back(block);
  }
  more_ = more_ || fold_bytes_left_ == 0;
  while (const auto refused = sender_.poll_refused()) refuse({*refused}, {});
}

EngineStats Engine::State::stats() const {
  EngineStats stats = stats_;
  stats.objects = objects_.size();
  stats.arena_bytes_used = inventory_.used_bytes();
  stats.arena_bytes_pinned = inventory_.used_bytes() - inventory_.evictable_bytes();
  stats.draining = draining_ ? 1 : 0;
  stats.sole_copies = sole_.size();
  stats.directory_entries = directory_.entry_count();
  stats.view_epoch = view_.epoch().value;
  stats.members = view_.members().size();
  stats.grants = directory_.stats().grants;
  stats.regrants = directory_.stats().regrants;
  stats.edges_moved = directory_.stats().moves;
  stats.pushes = directory_.stats().pushes;
  stats.reduces_committed = reduces_.stats().committed;
  stats.reduces_branched = reduces_.stats().branched;
  stats.reduce_branches = reduces_.stats().branches;
  stats.reduce_degree = reduces_.stats().degree;
  stats.parked_messages = parked_.size();
  stats.parked_bytes = parked_.bytes();
  const Deletions& shard = directory_.deletions();
  stats.deletions_open = deletes_.size() + shard.under_way_count();
  stats.deletions_remembered = tombstones_.size() + shard.ended_count();
  stats.objects_recent = gone_.size() + orphans_.size();
  stats.questions = locates_.size();
  stats.reduces =
      reduces_.plan_count() + calls_.size() + folds_.size() + committed_.size() + failed_.size();
  stats.actions = actions_.size();
  return stats;
}

void Engine::State::check_invariants() const {
  inventory_.check_invariants();
  directory_.check_invariants();
  reduces_.check_invariants();
  rails_.check_invariants();
  parked_.check_invariants();
  deletes_.check_invariants();
  EngineStats counted;
  std::map<std::uint64_t, std::uint64_t> ranges;
  const auto add = [&](const Extent& extent) {
    HOPLITE_CHECK(ranges.emplace(extent.offset, extent.size_bytes).second);
  };
  for (const auto& [id, object] : objects_) {
    if (object.extent) add(*object.extent);
    HOPLITE_CHECK(!(object.extent && inventory_.is_waiting(id)));
    HOPLITE_CHECK(inventory_.rank(id) == rank_of(id, object));
    HOPLITE_CHECK(!object.spilled || (object.committed && !object.writing));
    HOPLITE_CHECK(!object.spilling ||
                  (object.extent && spills_.under_way.contains(*object.spilling)));
    if (object.spilled) counted.spill_bytes += object.spilled->size_bytes;
    HOPLITE_CHECK(sole_.contains(id) == is_sole(object));
    counted.waiters += object.waiters.size();
    counted.arena_bytes_orphaned += object.orphaned_bytes();
    for (const LocalStripe& stripe : object.stripes) {
      HOPLITE_CHECK((stripe.state == StripeState::kReceiving) == pulls_.contains(stripe.transfer));
    }
  }
  HOPLITE_CHECK(counted.waiters == stats_.waiters);
  HOPLITE_CHECK(counted.spill_bytes == stats_.spill_bytes);
  spills_.ranges.check_invariants();
  HOPLITE_CHECK(counted.arena_bytes_orphaned == stats_.arena_bytes_orphaned);
  for (const ObjectId& id : sole_) HOPLITE_CHECK(objects_.contains(id));
  for (const auto& [name, retired] : retired_) {
    add(retired.extent);
  }
  for (const auto& [target, folding] : folds_) {
    const ReduceOwn& own = folding.accumulator.own();
    const auto result = objects_.find(target);
    HOPLITE_CHECK(result != objects_.end() && result->second.target_epoch == own.target_epoch);
    for (const Extent& range : folding.workspace.ranges()) add(range);
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
  std::uint64_t end = 0;
  for (const auto& [offset, bytes] : ranges) {
    HOPLITE_CHECK(offset >= end);
    end = offset + bytes;
  }
  HOPLITE_CHECK(end <= inventory_.capacity_bytes());
}

}  // namespace hoplite
