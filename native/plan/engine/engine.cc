// SPDX-License-Identifier: Apache-2.0
// The interface of the engine, which handler hears what, and the loop that settles what follows.
#include "plan/engine/engine.h"

#include <utility>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {
namespace {

// True of the events that come by the thousand. The engine can decide what follows from one of
// them when it has the next one.
bool may_settle_later(const IoEvent& event) {
  if (const auto* in = std::get_if<MessageIn>(&event)) {
    const PeerMessage& body = in->message.body;
    return std::holds_alternative<Credit>(body) ||
           (std::holds_alternative<Claim>(body) && in->payload.empty());
  }
  return std::holds_alternative<BlockLanded>(event) || std::holds_alternative<BlockSent>(event) ||
         std::holds_alternative<ReceiveClosed>(event);
}

}  // namespace

// Passes each event to the part that owns what it is about, and then settles.
class Engine::State : private Owners {
 public:
  State(const EngineConfig& of, std::uint64_t seed) : Owners(of, seed) {
    HOPLITE_CHECK(of.node != kNoNode);
    HOPLITE_CHECK(!fault_of(of));
  }
  void handle_command(Command command, Instant at);
  void handle_io(IoEvent event, Instant at);
  void handle_timeout(Instant at);
  [[nodiscard]] std::optional<Action> poll_action();
  [[nodiscard]] std::optional<Instant> poll_timeout() const;
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] std::vector<Wait> waits() const { return overview.waits(); }
  void check_invariants() const;

 private:
  void handle_message(MessageIn event);
  void handle_set_view(const SetViewCommand& view);
  void receive(NodeId from, const Message& message, Bytes payload);  // and from this node itself
  void pass_on(Command command);
  void pass_on(IoEvent event);
  void catch_up() {
    if (!is_settled_) settle();
  }
  void settle();
  bool settle_one();

  bool is_settled_ = true;  // False after events that may_settle_later
  bool more_ = false;       // True if a turn was full and there is more
};

Engine::Engine(const EngineConfig& config, std::uint64_t seed)
    : state_(std::make_unique<State>(config, seed)) {}
Engine::~Engine() = default;

void Engine::handle_command(Command command, Instant now) {
  state_->handle_command(std::move(command), now);
}
void Engine::handle_io(IoEvent event, Instant now) { state_->handle_io(std::move(event), now); }
void Engine::handle_timeout(Instant now) { state_->handle_timeout(now); }

std::optional<Action> Engine::poll_action() { return state_->poll_action(); }
std::optional<Instant> Engine::poll_timeout() const { return state_->poll_timeout(); }
EngineStats Engine::stats() const { return state_->stats(); }
std::vector<Wait> Engine::waits() const { return state_->waits(); }
void Engine::check_invariants() const { state_->check_invariants(); }

// ---- which handler hears what ----

void Engine::State::pass_on(Command command) {
  const Waiter waiter{command.client, command.request};
  std::visit(
      Visitor{
          [&](PutCommand& put) { objects.handle_put(waiter, std::move(put)); },
          [&](const WroteCommand& wrote) { objects.handle_wrote(waiter, wrote); },
          [&](const GetCommand& get) { objects.handle_get(waiter, get); },
          [&](const ReleaseCommand& release) { objects.handle_release(command.client, release); },
          [&](const DeleteCommand& remove) { keeping.handle_delete(waiter, remove); },
          [&](const ReduceCommand& reduce) { calls.handle_reduce(waiter, reduce); },
          [&](const ReduceSourceCommand& source) { calls.handle_reduce_source(source); },
          [&](const CancelCommand& cancel) {
            if (channels.cancel(waiter, cancel.object)) return;
            if (keeping.cancel(waiter, cancel.object)) return;
            if (excerpts.cancel(waiter, cancel.object)) return;
            objects.handle_cancel(waiter, cancel);
          },
          [&](const ClientLostCommand&) {
            channels.handle_client_lost(command.client);
            keeping.handle_client_lost(command.client);
            excerpts.handle_client_lost(command.client);
            objects.handle_client_lost(command.client);
          },
          [&](const SetViewCommand& view) { handle_set_view(view); },
          [&](const ListCommand& list) { overview.handle_list(command.request, list); },
          [&](const OrphanCommand& orphan) { keeping.handle_orphan(waiter, orphan); },
          [&](const DrainCommand&) { peers.handle_drain(); },
          [&](const EchoCommand&) { outgoing.reply(waiter, Done{}); },
          [&](const TakeTermCommand& take) { channels.handle_take_term(waiter, take); },
          [&](const PublishCommand& it) { channels.handle_publish(waiter, it); },
          [&](const WatchCommand& watch) { channels.handle_watch(waiter, watch); },
          [&](const ListChannelsCommand& list) {
            outgoing.reply(waiter, ChannelsListed{channels.list(kChannelRowsMax, list.after)});
          },
          [&](const RebuildCommand& rebuild) { rebuilds.handle_rebuild(waiter, rebuild); },
          [&](const ReadCommand& read) { channels.handle_read(command.client, read); },
          [&](const KeepCommand& keep) { keeping.handle_keep(waiter, keep); },
          [&](const ExcerptCommand& excerpt) { excerpts.handle_get(waiter, excerpt); }},
      command.body);
}

void Engine::State::pass_on(IoEvent event) {
  std::visit(Visitor{[&](MessageIn& in) { handle_message(std::move(in)); },
                     [&](const BlockLanded& landed) { transfers.handle_block_landed(landed); },
                     [&](const BlockSent& sent) { transfers.handle_block_sent(sent); },
                     [&](const ReceiveClosed& closed) { transfers.handle_receive_closed(closed); },
                     [&](const LinkUp& up) { peers.handle_link_up(up); },
                     [&](const LinkDown& down) { peers.handle_link_down(down); },
                     [&](const PeerDead& dead) { peers.handle_peer_dead(dead); },
                     [&](const SpillDone& done) { spills.handle_spill_done(done); },
                     [&](const RebuildDone& done) { rebuilds.handle_rebuild_done(done); }},
             event);
}

void Engine::State::receive(NodeId from, const Message& message, Bytes payload) {
  std::visit(
      Visitor{
          [&](const Claim& claim) {
            home.handle_claim(from, claim, message.view_epoch, std::move(payload));
          },
          [&](const Progress& progress) { home.handle_progress(from, progress); },
          [&](const Delete& remove) { home.handle_delete(from, remove); },
          [&](const Orphan& orphan) { home.handle_orphan(orphan); },
          [&](const Locate& locate) { home.handle_locate(from, locate); },
          [&](const ReduceWant& want) { home.handle_reduce_want(from, want); },
          [&](const ReduceReport& report) { home.handle_reduce_report(from, report); },
          [&](const ResyncDone& done) { peers.handle_resync_done(from, done); },
          [&](const ResyncWanted&) { peers.handle_resync_wanted(from); },
          [&](const Grant& grant) { transfers.handle_grant(from, grant); },
          [&](const Adopt& adopt) { keeping.handle_adopt(from, adopt); },
          [&](const Standing& standing) { keeping.handle_standing(from, standing); },
          [&](const Located& located) { calls.handle_located(from, located, std::move(payload)); },
          [&](const Push& push) { home.handle_push(push, std::move(payload)); },
          [&](const PushTo& push) { home.handle_push_to(from, push); },
          [&](const Lost& lost) { objects.handle_lost(from, lost); },
          [&](const Drop& drop) { keeping.handle_drop(from, drop); },
          [&](const Deleted& deleted) { keeping.handle_deleted(from, deleted); },
          [&](const ReduceOwn& own) { folds.handle_reduce_own(from, own); },
          [&](const ReduceState& state) { folds.handle_reduce_state(from, state); },
          [&](const PullStart& start) {
            transfers.handle_pull_start(from, message.transfer, start);
          },
          [&](const Credit& credit) { transfers.handle_credit(from, message.transfer, credit); },
          [&](const PullStop&) { transfers.handle_pull_stop(from, message.transfer); },
          [&](const PullRefused&) { transfers.handle_pull_refused(from, message.transfer); },
          [&](const ChannelClaim& claim) { channel_home.handle_claim(from, claim); },
          [&](const ChannelQuestion& asked) { channel_home.handle_question(from, asked); },
          [&](const VersionAck& ack) { channel_home.handle_ack(from, ack); },
          [&](const VersionOffer& offer) { channels.handle_offer(from, offer); },
          [&](const VersionNews& news) { channels.handle_news(from, news); },
          [&](const ChannelAnswer& answer) { channels.handle_answer(from, answer); },
          [&](const MakeExcerpt& make) { excerpts.handle_make(from, make); }},
      message.body);
}

void Engine::State::handle_message(MessageIn event) {
  if (peers.admits(event)) receive(event.from, event.message, std::move(event.payload));
}

// This node's own claims come first. Otherwise receivers that it feeds would count as orphans and
// wait forever.
void Engine::State::handle_set_view(const SetViewCommand& view) {
  if (!peers.handle_set_view(view)) return;
  while (const auto message = outgoing.poll_own_message()) receive(config.node, *message, {});
  for (MessageIn& event : peers.take_parked()) handle_message(std::move(event));
}

// ---- what follows ----

void Engine::State::handle_command(Command command, Instant at) {
  catch_up();
  now = at;
  pass_on(std::move(command));
  settle();
}

void Engine::State::handle_io(IoEvent event, Instant at) {
  const bool may_wait = may_settle_later(event);
  if (!may_wait) catch_up();
  now = at;
  pass_on(std::move(event));
  is_settled_ = false;
  if (!may_wait) settle();
}

// Blocks that came in this turn may have made claims, which the directory here must have heard
// before it judges.
void Engine::State::handle_timeout(Instant at) {
  if (outgoing.has_own_messages()) catch_up();
  now = at;
  directory.handle_timeout(now);
  transfers.report_progress();
  folds.open_paces();
  calls.stop_waiting_for_answers();
  transfers.fail_out_of_reach();
  rebuilds.handle_timeout();
  excerpts.handle_timeout();
  keeping.forget_old();
  settle();
}

std::optional<Action> Engine::State::poll_action() {
  if (calls.send_news()) is_settled_ = false;
  catch_up();
  return outgoing.poll_action();
}

// Handles messages to this node itself, admissions, the home's answers, folds and blocks until
// nothing is left or the turn is full; poll_timeout() then returns now. Each may cause the others.
void Engine::State::settle() {
  is_settled_ = true;
  outgoing.begin_turn();
  transfers.open_held_back();
  bool is_done = false;
  for (std::size_t step = 0; !is_done && step < config.steps_per_turn_max; ++step) {
    objects.admit();
    is_done = !settle_one();
  }
  folds.end_turn();
  more_ = !is_done || !folds.is_idle();
  transfers.pump();
  more_ = more_ || outgoing.fold_bytes_left() == 0;
  keeping.report_drained();
}

// Does the first that is to be done. Returns false if nothing is.
bool Engine::State::settle_one() {
  if (const auto message = outgoing.poll_own_message()) {
    receive(config.node, *message, {});
    return true;
  }
  return home.settle_one() || channel_home.settle_one() || keeping.ask_held_deletion() ||
         folds.drive_next() || spills.unpin_read_back() || rebuilds.settle_one();
}

std::optional<Instant> Engine::State::poll_timeout() const {
  const bool is_pending = !is_settled_ || more_ || calls.has_news();
  if (is_pending || outgoing.action_count() > 0) return now;
  std::optional<Instant> earliest;
  for (const auto& at :
       {directory.poll_timeout(), inventory.poll_timeout(), transfers.next_deadline(),
        folds.next_deadline(), calls.next_deadline(), keeping.next_forgetting(),
        rebuilds.next_deadline(), excerpts.next_deadline()}) {
    earliest = earlier(earliest, at);
  }
  return earliest;
}

EngineStats Engine::State::stats() const {
  EngineStats stats = counters;
  stats.objects = objects.all().size();
  stats.arena_bytes_used = inventory.used_bytes();
  stats.arena_bytes_pinned = inventory.used_bytes() - inventory.evictable_bytes();
  stats.directory_entries = directory.entry_count();
  stats.grants = directory.stats().grants;
  stats.regrants = directory.stats().regrants;
  stats.edges_moved = directory.stats().moves;
  stats.pushes = directory.stats().pushes;
  stats.reduces_committed = reduces.stats().committed;
  stats.reduces_branched = reduces.stats().branched;
  stats.reduce_branches = reduces.stats().branches;
  stats.reduce_degree = reduces.stats().degree;
  stats.actions = outgoing.action_count();
  peers.add_stats(stats);
  keeping.add_stats(stats);
  calls.add_stats(stats);
  channels.add_stats(stats);
  excerpts.add_stats(stats);
  return stats;
}

void Engine::State::check_invariants() const {
  inventory.check_invariants();
  loans.check_invariants();
  directory.check_invariants();
  reduces.check_invariants();
  outgoing.check_invariants();
  peers.check_invariants();
  objects.check_invariants();
  keeping.check_invariants();
  spills.check_invariants();
  rebuilds.check_invariants();
  excerpts.check_invariants();
  transfers.check_invariants();
  folds.check_invariants();
  calls.check_invariants();
  channels.check_invariants();
  channel_home.check_invariants();
}

}  // namespace hoplite
