// SPDX-License-Identifier: Apache-2.0
#include "node/node.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/prng.h"
#include "io/read_clock.h"
#include "io/signals_blocked.h"

namespace hoplite {
namespace {

// Tokens of the poller: one half of them for each of its two users.
constexpr std::uint64_t kFirstPortToken = 1;
constexpr std::uint64_t kFirstLinkToken = 1ULL << 63;

constexpr Duration kLongTurn = 10_ms;
constexpr Duration kPublishEvery = 10_ms;

}  // namespace

// ---- any thread ----

Result<std::unique_ptr<Node>> Node::start(const NodeOptions& options) {
  auto config = configure(options);
  if (!config) return config.error();
  auto parts = open_parts(options, *config);
  if (!parts) return parts.error();
  std::unique_ptr<Node> node(new Node(*config, std::move(*parts)));
  const SignalsBlocked guard;
  node->thread_ = std::thread(&Node::run, node.get());
  return node;
}

Result<Node::Parts> Node::open_parts(const NodeOptions& options, const NodeConfig& config) {
  auto poller = Poller::open();
  if (!poller) return poller.error();
  auto arena = Arena::open(options.arena_bytes);
  if (!arena) return arena.error();
  Parts parts{.poller = std::make_unique<Poller>(std::move(*poller)),
              .arena = std::make_unique<Arena>(std::move(*arena)),
              .pages = nullptr,
              .crew = nullptr,
              .spiller = nullptr,
              .rebuilder = nullptr,
              .links = nullptr,
              .port = nullptr};
  parts.pages =
      std::make_unique<Pages>(*parts.arena, static_cast<std::uint64_t>(config.prefault_bytes));
  parts.crew = std::make_unique<FoldCrew>(config.fold_threads);
  parts.rebuilder = std::make_unique<Rebuilder>(*parts.arena, *parts.poller);
  if (config.engine.when_full == WhenFull::kSpill) {
    auto spiller = Spiller::start(options.spill_directory, *parts.arena, *parts.poller);
    if (!spiller) return spiller.error();
    parts.spiller = std::move(*spiller);
  }
  Identity identity{options.node, options.incarnation, options.secret};
  if (config.data_tls != 0) {
    auto tls = TlsContext::open(options.tls);
    if (!tls) return tls.error();
    identity.tls = std::move(*tls);
  }
  auto links = Links::open(std::move(identity), config.limits, options.listen, *parts.poller,
                           *parts.arena, kFirstLinkToken);
  if (!links) return links.error();
  auto port = LocalPort::open(options.socket_path, options.node, options.incarnation, {},
                              *parts.poller, *parts.arena, kFirstPortToken);
  if (!port) return port.error();
  parts.links = std::make_unique<Links>(std::move(*links));
  parts.port = std::make_unique<LocalPort>(std::move(*port));
  return parts;
}

Node::Node(const NodeConfig& config, Parts parts)
    : config_(config),
      parts_(std::move(parts)),
      rails_(parts_.links->rails()),
      commands_(*parts_.poller),
      engine_(config.engine, mix64(config.engine.node.value) ^ config.engine.incarnation.value),
      object_trace_(config.moments_max, config.trace != 0) {
  NodeStats first;
  first.arena_bytes = config.engine.arena_bytes;
  completion_.publish(first);
}

Node::~Node() { stop(); }

void Node::set_view(Epoch epoch, std::vector<Member> members) {
  commands_.push({ClientId{0}, RequestId{0}, SetViewCommand{epoch, std::move(members)}});
}

std::optional<NodeEvent> Node::next_event(Duration timeout) {
  return completion_.next_event(timeout);
}

std::map<std::string, std::uint64_t> Node::stats() const {
  return counters_by_name(completion_.stats());
}

void Node::drain() { commands_.push({ClientId{0}, RequestId{0}, DrainCommand{}}); }

Listing Node::list(const ListCommand& command) {
  const RequestId list = completion_.begin_list();
  commands_.push({ClientId{0}, list, command});
  return completion_.take_list(list);
}

void Node::stop() {
  std::call_once(stopped_, [this] {
    commands_.stop();
    thread_.join();
    completion_.close();
    parts_.spiller.reset();
    parts_.rebuilder.reset();
    parts_.pages.reset();
    parts_.crew.reset();
    parts_.port.reset();
    parts_.links.reset();
  });
}

// ---- reactor thread only ----

void Node::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "hoplite-node");
  trace_.install();
  while (!commands_.is_stopping()) {
    const auto wait = wait_max();
    const bool may_wait = wait != Duration{0};  // else the look is left for the next wait
    const auto waiting = may_wait ? std::exchange(waiting_, Waiting::kAsleep) : Waiting::kAsleep;
    const auto ready = parts_.poller->wait(wait, waiting);  // the turn's only wait
    const Instant now = read_clock();                       // the only clock that decisions see
    Budget incoming{config_.turn.bytes_max / 2};
    handle_ready(ready, incoming, now);
    const std::uint64_t came_bytes = config_.turn.bytes_max / 2 - incoming.bytes;
    if (choose_waiting(came_bytes, now - turn_started_) == Waiting::kAwake) {
      waiting_ = Waiting::kAwake;
    }
    turn_started_ = now;
    parts_.links->handle_timeout(now);
    // Decisions for a link's previous life must not go out on the next one, where they are void.
    if (parts_.links->has_lost_link()) perform_all(now);
    decide(now);
    Budget folded{config_.turn.bytes_max / 2};
    perform_some(folded, now);
    Budget outgoing{config_.turn.bytes_max / 2};
    parts_.links->flush(outgoing, now);
    parts_.port->flush();
    end_turn(now);
  }
  parts_.links->send_goodbye();
}

std::optional<Duration> Node::wait_max() const {
  if (has_actions_left_ || parts_.links->has_events() || parts_.port->has_commands() ||
      !commands_.is_empty()) {
    return Duration{0};
  }
  const auto next = earlier(engine_.poll_timeout(), parts_.links->poll_timeout());
  if (!next) return std::nullopt;
  return Duration{std::max<std::int64_t>(0, (*next - turn_ended_).ns)};
}

void Node::handle_ready(std::span<const Ready> ready, Budget& blocks, Instant now) {
  std::vector<Ready> of_links;
  for (const Ready& each : ready) {
    if (each.token >= kFirstLinkToken) {
      of_links.push_back(each);
    } else {
      parts_.port->handle_ready(each);
    }
  }
  parts_.links->handle_ready(of_links, blocks, now);
}

void Node::decide(Instant now) {
  for (Command& command : commands_.take(config_.turn.commands_max)) {
    object_trace_.record(command, 0, now);
    engine_.handle_command(std::move(command), now);
  }
  for (Command& command : parts_.port->take_commands(config_.turn.commands_max)) {
    object_trace_.record(command, parts_.port->process_of(command.client), now);
    engine_.handle_command(std::move(command), now);
  }
  for (IoEvent& event : parts_.links->take_events()) {
    object_trace_.record(event, now);
    engine_.handle_io(std::move(event), now);
  }
  if (parts_.spiller != nullptr) {
    for (const SpillDone& done : parts_.spiller->take_done()) {
      object_trace_.record(done, now);
      engine_.handle_io(done, now);
    }
  }
  for (const RebuildDone& done : parts_.rebuilder->take_done()) engine_.handle_io(done, now);
  engine_.handle_timeout(now);
}

void Node::perform_some(Budget& budget, Instant now) {
  const TurnLimits& turn = config_.turn;
  Budget payloads{turn.bytes_max / 2};  // queues no more than may leave
  for (std::size_t i = 0; i < turn.actions_max && budget.bytes > 0 && payloads.bytes > 0; ++i) {
    auto action = engine_.poll_action();
    has_actions_left_ = action.has_value();
    if (!action) break;
    const auto* message = std::get_if<SendMessage>(&*action);
    if (message != nullptr && message->payload) payloads.take(message->payload->size_bytes);
    perform(*action, budget, now);
  }
  parts_.crew->run();
}

void Node::perform_all(Instant now) {
  Budget unlimited{std::numeric_limits<std::uint64_t>::max()};
  while (auto action = engine_.poll_action()) perform(*action, unlimited, now);
  parts_.crew->run();
  has_actions_left_ = false;
}

void Node::perform(Action& action, Budget& budget, Instant now) {
  static constexpr std::array<const char*, std::variant_size_v<Action>> kNames{
      "send message", "send block",   "open receive",    "close receive", "fold",
      "finish",       "write inline", "reply to client", "connect",       "disconnect",
      "report death", "list objects", "report drained",  "spill",         "rebuild"};
  trace_.record(now, kNames[action.index()], turns_.turns);
  object_trace_.record(action, now);
  Links& links = *parts_.links;
  const Arena& arena = *parts_.arena;
  FoldCrew& crew = *parts_.crew;
  // Other actions tell of bytes that are folded, or read or free them.
  const bool is_fold = std::holds_alternative<Fold>(action);
  if (!is_fold && !std::holds_alternative<Finish>(action)) crew.run();
  std::visit(Visitor{
                 [&](const SendMessage& a) { links.send(a); },
                 [&](const SendBlock& a) { links.send(a); },
                 [&](const OpenReceive& a) {
                   if (a.slots == 0) parts_.pages->want(a.base);
                   links.open_receive(a);
                 },
                 [&](const CloseReceive& a) { links.close_receive(a); },
                 [&](const Fold& a) {
                   const auto into = arena.at(a.into);
                   const auto from = arena.at(a.from);
                   budget.take(into.size());
                   crew.fold(a.op, a.dtype, a.first, into, from);
                 },
                 [&](const Finish& a) {
                   const auto from = arena.at(a.from);
                   budget.take(from.size());
                   crew.finish(a.op, a.dtype, a.sources, arena.at(a.into), from);
                 },
                 [&](const WriteInline& a) {
                   HOPLITE_CHECK(a.payload.size() <= a.extent.size_bytes);
                   budget.take(a.payload.size());
                   if (!a.payload.empty()) {
                     std::memcpy(arena.at(a.extent).data(), a.payload.data(), a.payload.size());
                   }
                 },
                 [&](const ReplyToClient& a) {
                   if (const auto* range = std::get_if<Reserved>(&a.reply)) {
                     parts_.pages->want(range->extent);
                   }
                   parts_.port->reply(a);
                   waiting_ = Waiting::kAwake;  // an answered client may ask again at once
                 },
                 [&](const Connect& a) { links.connect(a.member, now); },
                 [&](const Disconnect& a) { links.disconnect(a.node); },
                 [&](const ReportDeath& a) {
                   completion_.push_event({NodeEventKind::kPeerDead, a.node, a.incarnation});
                 },
                 [&](const ReportDrained&) {
                   completion_.push_event({NodeEventKind::kDrained, node_id(), incarnation()});
                 },
                 [&](const SpillJob& a) { parts_.spiller->submit(a); },
                 [&](const RebuildJob& a) {
                   parts_.pages->want(a.target);
                   parts_.rebuilder->submit(a);
                 },
                 [&](TellListing& a) {
                   a.listing.remembered = object_trace_.moments_of(a.traced);
                   completion_.finish_list(a.request, std::move(a.listing));
                 },
             },
             action);
}

void Node::end_turn(Instant started) {
#ifndef NDEBUG
  engine_.check_invariants();
#endif
  turn_ended_ = read_clock();
  const Duration turn = turn_ended_ - started;
  ++turns_.turns;
  turns_.longest_turn_us =
      std::max(turns_.longest_turn_us, static_cast<std::uint64_t>(turn.ns / 1000));
  if (turn > kLongTurn) ++turns_.turns_over_10ms;
  const auto wait = wait_max();
  const bool may_sleep = !wait || *wait > kPublishEvery;
  if (!may_sleep && turn_ended_ < published_ + kPublishEvery) return;
  published_ = turn_ended_;
  completion_.publish({.arena_bytes = config_.engine.arena_bytes,
                       .engine = engine_.stats(),
                       .links = parts_.links->counters(),
                       .clients = parts_.port->counters(),
                       .turns = turns_});
}

}  // namespace hoplite
