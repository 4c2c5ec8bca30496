// SPDX-License-Identifier: Apache-2.0
// The engine's deeds, the turns of a node's connections, and the actions of LinkRules.
// links_meeting.cc has the handshakes.
#include "io/links/links.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "io/log.h"

namespace hoplite {
namespace {

// for orders that did not fit into the thread's full socket
constexpr Duration kLivenessRetry = 10_ms;

// Returns the push in a message that the home repeats until it arrives: the object, and the
// receiver of an order to push. nullopt for any other message.
std::optional<QueuedPush> push_of(const Message& message) {
  if (const auto* push = std::get_if<Push>(&message.body)) return QueuedPush{push->object, kNoNode};
  const auto* order = std::get_if<PushTo>(&message.body);
  if (order == nullptr || order->receivers.empty()) return std::nullopt;
  return QueuedPush{order->object, order->receivers.front()};
}

const char* explain_death(DeathCause cause) {
  switch (cause) {
    case DeathCause::kEnded:
      return "its process has ended";
    case DeathCause::kOutOfReach:
      return "no rail reaches it any more";
    case DeathCause::kFrozen:
      return "its process does not run; it is told when it does";
    case DeathCause::kStaysDown:
      return "its link stays down";
    case DeathCause::kRefused:
      return "no process listens there any more";
    case DeathCause::kNextLifeAnswers:
      return "its next life answers";
    case DeathCause::kNextLifeDials:
      return "its next life dials";
  }
  return "";
}

}  // namespace

Links::Links(Identity identity, const LinkLimits& limits, Poller& poller, const Arena& arena,
             Liveness liveness, BulkPorts bulk, std::uint64_t first_token)
    : identity_(std::make_unique<Identity>(std::move(identity))),
      limits_(limits),
      rules_(identity_->node, limits),
      poller_(&poller),
      arena_(&arena),
      liveness_(std::move(liveness)),
      receives_(std::make_unique<SharedReceives>(arena.size_bytes())),
      counters_(std::make_unique<LinkCounters>()),
      bulk_(std::move(bulk)),
      liveness_token_(first_token),
      next_token_(first_token + 1),
      newcomers_(limits.meeting_max) {}

Result<Links> Links::open(Identity identity, const LinkLimits& limits,
                          const std::vector<std::string>& rails, Poller& poller, const Arena& arena,
                          std::uint64_t first_token) {
  if (rails.empty() || rails.size() > kRailsMax) {
    return Error{Code::kInvalidArgument, std::to_string(rails.size()) +
                                             " rails to listen on: give 1 to " +
                                             std::to_string(kRailsMax)};
  }
  auto liveness = Liveness::start(limits.liveness);
  if (!liveness) return liveness.error();
  auto bulk = BulkPorts::start(limits, poller);
  if (!bulk) return bulk.error();
  Links links(std::move(identity), limits, poller, arena, std::move(*liveness), std::move(*bulk),
              first_token);
  if (auto added = poller.add(links.liveness_.fd(), links.liveness_token_, Interest::kRead);
      !added) {
    return added.error();
  }
  for (const std::string& text : rails) {
    auto wanted = parse_address(text);
    if (!wanted) return wanted.error();
    auto listener = listen_on(*wanted);
    if (!listener) return listener.error();
    auto address = local_address(listener->value());
    if (!address) return address.error();
    const std::uint64_t token = links.next_token_++;
    if (auto added = poller.add(listener->value(), token, Interest::kRead); !added) {
      return added.error();
    }
    links.rails_.push_back(address_text(*address));
    links.addresses_.push_back(*address);
    links.listeners_.emplace(token, Listener(std::move(*listener)));
  }
  return links;
}

// ---- deeds ----

void Links::connect(const Member& member, Instant now) {
  rules_.handle_connect(member, now);
  perform_actions(now);
}

void Links::disconnect(NodeId node) {
  rules_.handle_disconnect(node);
  perform_actions(Instant{});  // none of them dials
  receives_->close_all(node);
}

void Links::send_goodbye() {
  rules_.handle_leaving();
  perform_actions(Instant{});  // none of them dials
}

// A long queue gets no payload, and no queue gets a push twice. This bounds memory, and a slow link
// is not busy with copies. No bytes are lost: a claim or an answer without the bytes names the node
// that has them, and the home repeats a push until it arrives (design decision 18).
void Links::send(const SendMessage& action) {
  const Link* const link = rules_.find(action.to);
  // LinkUp repeats everything
  if (link == nullptr || link->state != Link::State::kAnnounced) return;
  const auto control = connections_.find(link->control);
  HOPLITE_CHECK(control != connections_.end());
  RailConnection& wire = control->second.wire;
  const bool has_room = wire.queued_bytes() < limits_.payload_queue_bytes;
  const auto push = push_of(action.message);
  if (push && (wire.is_queued(*push) || (action.payload && !has_room))) return;
  const bool carries = action.payload && has_room;
  Bytes frame;
  encode(action.message, carries ? action.payload->size_bytes : 0, frame, &wire.sent_layouts());
  if (carries) {
    const std::span<const std::byte> payload = arena_->at(*action.payload);
    frame.insert(frame.end(), payload.begin(), payload.end());
  }
  wire.queue_frame(std::move(frame), push);
  mark_dirty(control->first, control->second);
}

void Links::send(const SendBlock& action) {
  const Link* const link = rules_.find(action.to);
  if (link == nullptr || link->state != Link::State::kAnnounced) return;
  const std::vector<Rail>& rails = link->rails;
  const auto is_open = [](const Rail& rail) { return rail.bulk.is_open; };
  auto rail = rails.begin() + std::min<std::ptrdiff_t>(action.rail.value, std::ssize(rails) - 1);
  if (!is_open(*rail)) rail = std::find_if(rails.begin(), rails.end(), is_open);
  HOPLITE_CHECK(rail != rails.end());
  bulk_.queue_block(rail->bulk.token, action);
}

void Links::open_receive(const OpenReceive& action) { receives_->open(action); }

void Links::close_receive(const CloseReceive& action) {
  if (receives_->close(action.from, action.transfer)) {
    events_.emplace_back(ReceiveClosed{action.from, action.transfer});
  }
}

// ---- a turn ----

// Messages come before blocks, and each connection of messages has a budget of its own.
void Links::handle_ready(std::span<const Ready> ready, Budget& blocks, Instant now) {
  std::vector<Ready> bulk;
  for (const Ready& each : ready) {
    if (bulk_.serves(each.token)) {
      bulk.push_back(each);
    } else {
      Budget frame_budget{kControlFrameBytesMax};
      serve(each, frame_budget, now);
    }
  }
  bulk_.handle_ready(bulk, blocks, now);
  collect_bulk_news(blocks);
  end_failed_bulk(now);
}

void Links::serve(const Ready& ready, Budget& budget, Instant now) {
  if (const auto listener = listeners_.find(ready.token); listener != listeners_.end()) {
    accept_all(listener->second, now);
    return;
  }
  if (ready.token == liveness_token_) {
    for (const LivenessEvent& event : liveness_.take_events()) handle_liveness(event, now);
    return;
  }
  const auto found = connections_.find(ready.token);
  if (found == connections_.end()) return;  // closed earlier in this turn
  Connection& connection = found->second;
  switch (connection.phase) {
    case Phase::kDialling:
    case Phase::kProbing:
      finish_connect(ready.token, connection, now);
      return;
    case Phase::kHandshake:
    case Phase::kClosing:
      shake_hands(ready.token, connection, budget, now);
      return;
    case Phase::kOpen:
      break;
  }
  if (connection.interest == Interest::kNone) {  // no interest in reading: this event is its end
    fail_connection(ready.token, {Code::kPeerLost, "the peer closed the connection"}, now);
    return;
  }
  if (ready.is_writable && connection.wire.has_output()) mark_dirty(ready.token, connection);
  if (ready.is_readable) receive(ready.token, connection, budget, now);
}

void Links::receive(std::uint64_t token, Connection& connection, Budget& budget, Instant now) {
  if (budget.bytes == 0) return;  // the poller reports it again
  const NodeId peer = connection.peer;
  const auto received = receive_frames(connection, budget);
  if (received) return;
  if (received.error().code == Code::kPeerLost) read_last_words(peer, token, now);
  fail_connection(token, received.error(), now);
}

Result<void> Links::receive_frames(Connection& connection, Budget& budget) {
  std::vector<FrameIn> frames;
  auto received = connection.wire.receive_frames(ReadAhead::kAllowed, budget, frames);
  for (FrameIn& frame : frames) {
    if (auto handled = handle_frame(connection, std::move(frame)); !handled) return handled;
  }
  return received;
}

// The poller may report the end of one connection before it reports an earlier Goodbye on another
// one. Each end of a link speaks on the control connection of its own choice.
void Links::read_last_words(NodeId peer, std::uint64_t ended, Instant now) {
  const Link* const link = rules_.find(peer);
  HOPLITE_CHECK(link != nullptr);
  std::vector<std::pair<std::uint64_t, Error>> failed;
  for (const Rail& rail : link->rails) {
    if (!rail.control.is_open || rail.control.token == ended) continue;
    Budget budget{kControlFrameBytesMax};
    auto received = receive_frames(connections_.at(rail.control.token), budget);
    if (!received) failed.emplace_back(rail.control.token, received.error());
  }
  for (const auto& [token, why] : failed) fail_connection(token, why, now);
}

Result<void> Links::handle_frame(Connection& connection, FrameIn frame) {
  if (auto* message = std::get_if<Message>(&frame.frame)) {
    events_.emplace_back(MessageIn{connection.peer, std::move(*message), std::move(frame.payload)});
    return {};
  }
  const auto* link_frame = std::get_if<LinkFrame>(&frame.frame);
  if (link_frame != nullptr && std::holds_alternative<Goodbye>(*link_frame)) {
    rules_.handle_goodbye(connection.peer);
    return {};
  }
  if (link_frame != nullptr && std::holds_alternative<CloseRail>(*link_frame)) return {};
  return Error{Code::kBadFrame, "a frame that does not come now"};
}

// The same order as in handle_ready.
void Links::flush(Budget& blocks, Instant now) {
  for (const std::uint64_t token : std::exchange(dirty_, {})) {
    Budget frame_budget{kControlFrameBytesMax};
    write_out(token, frame_budget, now);
  }
  bulk_.flush(blocks, now);
  collect_bulk_news(blocks);
  end_failed_bulk(now);
}

void Links::write_out(std::uint64_t token, Budget& budget, Instant now) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.is_dirty = false;
  const std::uint64_t queued = connection.wire.queued_bytes();
  auto sent = connection.wire.send(connection.peer, budget, events_);
  const std::uint64_t left = connection.wire.queued_bytes();
  const bool is_open = connection.phase == Phase::kOpen;  // else the deadline is the handshake's
  const bool is_stalled = left > limits_.queued_bytes_max && left >= queued;
  if (is_open && !is_stalled) connection.deadline = now + limits_.queue_stalled_max;
  if (sent && is_open && is_stalled && connection.deadline <= now) {
    sent = Error{Code::kPeerLost, "the peer takes nothing"};
  }
  if (!sent) {
    fail_connection(token, sent.error(), now);
  } else {
    watch(token, connection);
  }
}

void Links::handle_timeout(Instant now) {
  if (timer_ && *timer_ <= now) end_late_handshakes(now);
  rules_.handle_timeout(now);
  perform_actions(now);
#ifndef NDEBUG
  rules_.check_invariants();
#endif
}

std::optional<Instant> Links::poll_timeout() const {
  return earlier(timer_, rules_.poll_timeout());
}

void Links::end_late_handshakes(Instant now) {
  timer_.reset();
  if (!liveness_.flush()) set_timer(now + kLivenessRetry);
  std::vector<std::uint64_t> late;
  for (auto& [token, connection] : connections_) {
    if (connection.phase == Phase::kOpen) continue;
    if (connection.deadline <= now) {
      late.push_back(token);
    } else {
      set_timer(connection.deadline);
    }
  }
  for (const std::uint64_t token : late) {
    fail_connection(token, {Code::kTimeout, "no handshake within the limit"}, now);
  }
}

// The engine's answer to one life of a link must not go out on the next life. So a batch of events
// ends before the first LinkDown behind a LinkUp. Only the last LinkUp announces a link.
std::vector<IoEvent> Links::take_events() {
  const auto is_up = [](const IoEvent& e) { return std::holds_alternative<LinkUp>(e); };
  const auto is_down = [](const IoEvent& e) { return std::holds_alternative<LinkDown>(e); };
  const auto first_up = std::find_if(events_.begin(), events_.end(), is_up);
  const auto cut = std::find_if(first_up, events_.end(), is_down);
  for (auto event = first_up; event != cut; ++event) {
    const auto* up = std::get_if<LinkUp>(&*event);
    if (up == nullptr) continue;
    const auto goes_down = [&](const IoEvent& e) {
      const auto* down = std::get_if<LinkDown>(&e);
      return down != nullptr && down->node == up->node;
    };
    if (std::none_of(cut, events_.end(), goes_down)) rules_.handle_announced(up->node);
  }
  std::vector<IoEvent> batch(std::make_move_iterator(events_.begin()),
                             std::make_move_iterator(cut));
  events_.erase(events_.begin(), cut);
  has_lost_link_ = !events_.empty();
  return batch;
}

LinkCounters Links::counters() const {
  LinkCounters counters = *counters_;
  for (const auto& [token, connection] : connections_) {
    counters.layout_bytes += connection.wire.layout_bytes();
    counters.bytes_queued += connection.wire.queued_bytes();
  }
  counters.add_bulk(bulk_.counters());
  return counters;
}

// ---- the actions of LinkRules ----

// A dial that is refused at once adds actions while this loop runs.
void Links::perform_actions(Instant now) {
  while (const auto action = rules_.poll_action()) {
    std::visit([&](const auto& each) { perform(each, now); }, *action);
  }
}

void Links::perform(const SayGoodbye& action, Instant /*now*/) {
  const auto control = connections_.find(action.control);
  if (control == connections_.end()) return;
  Bytes frame;
  encode(LinkFrame{Goodbye{}}, frame);
  control->second.wire.queue_frame(std::move(frame));
  Budget control_budget{kControlFrameBytesMax};
  std::vector<IoEvent> ignored_events;
  // Goodbye may not fit into a full socket: the peer then takes the end for a fault and probes.
  [[maybe_unused]] const auto sent =
      control->second.wire.send(action.node, control_budget, ignored_events);
}

void Links::perform(const CloseConnection& action, Instant /*now*/) { close(action.token); }

void Links::perform(const ForgetPeer& action, Instant now) {
  liveness_.forget(action.node, action.upto);
  set_timer(now);  // its socket may be full: the order is sent again
}

void Links::perform(const ReportUp& action, Instant now) {
  ++counters_->links_up;
  events_.emplace_back(LinkUp{action.node, action.incarnation});
  const Link* const link = rules_.find(action.node);
  HOPLITE_CHECK(link != nullptr);
  for (const Rail& each : link->rails) {  // reads what has waited
    for (const std::uint64_t token : {each.control.token, each.bulk.token}) {
      begin_to_read(token, now);
    }
  }
}

void Links::perform(const ReportDown& action, Instant /*now*/) {
  ++counters_->links_down;
  events_.emplace_back(LinkDown{action.node});
  has_lost_link_ = true;
}

void Links::perform(const ReportDead& action, Instant /*now*/) {
  log_warning(kLinksLogger, node_name(action.node) + " of incarnation " +
                                std::to_string(action.incarnation.value) +
                                " is dead: " + explain_death(action.cause));
  ++counters_->peers_dead;
  if (action.cause == DeathCause::kOutOfReach) ++counters_->peers_unreachable;
  if (action.cause == DeathCause::kFrozen) ++counters_->peers_frozen;
  events_.emplace_back(PeerDead{action.node, action.incarnation, is_certain(action.cause)});
}

void Links::perform(const ReportRail& action, Instant /*now*/) {
  ++counters_->rails_lost;
  const bool is_cut = action.verdict == Verdict::kRailCut;
  log_warning(kLinksLogger, "rail " + std::to_string(action.rail.value) + " to " +
                                node_name(action.node) + (is_cut ? " is cut" : " is lost"));
}

void Links::set_timer(Instant at) { timer_ = earlier(timer_, at); }

void Links::close(std::uint64_t token) {
  bulk_.end(token);
  Budget any{};
  collect_bulk_news(any);  // before LinkDown
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  newcomers_.remove(token);
  connections_.erase(found);
}

void Links::fail_connection(std::uint64_t token, const Error& why, Instant now) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  const Phase phase = found->second.phase;
  const NodeId node = found->second.peer;
  const RailId rail = found->second.rail;
  close(token);
  if (phase == Phase::kProbing) {
    rules_.handle_end(node, rail, token, now);
    perform_actions(now);
    return;
  }
  report_end(token, node, rail, why, now);
}

void Links::report_end(std::uint64_t token, NodeId node, RailId rail, const Error& why,
                       Instant now) {
  if (why.code == Code::kBadFrame || why.code == Code::kWrongVersion) ++counters_->frames_bad;
  if (why.code != Code::kPeerLost) log_refusal(why, now);
  rules_.handle_end(node, rail, token, now);
  perform_actions(now);
}

void Links::mark_dirty(std::uint64_t token, Connection& connection) {
  if (std::exchange(connection.is_dirty, true)) return;
  dirty_.push_back(token);
}

// Asks the poller for what the connection can use. Before the link is up this node reads
// handshakes, and no message and no block.
void Links::watch(std::uint64_t token, Connection& connection) {
  Interest wanted = connection.wire.has_output() ? Interest::kBoth : Interest::kRead;
  if (connection.phase == Phase::kOpen) {
    const Link* const link = rules_.find(connection.peer);
    if (link == nullptr || !link->is_up()) wanted = Interest::kNone;
  }
  if (connection.interest == wanted) return;
  connection.interest = wanted;
  poller_->change(connection.wire.fd(), token, wanted);
}

// Reads messages, or has blocks read, if the connection is open and its link is up.
void Links::begin_to_read(std::uint64_t token, Instant now) {
  const auto found = connections_.find(token);
  if (found == connections_.end() || found->second.phase != Phase::kOpen) return;
  Connection& connection = found->second;
  const Link* const link = rules_.find(connection.peer);
  const bool is_up = link != nullptr && link->is_up();
  if (connection.kind != ConnectionKind::kBulk || !is_up) {
    watch(token, connection);
    return;
  }
  poller_->remove(connection.wire.fd());
  bulk_.add({token, connection.peer, connection.rail, std::move(connection.wire)}, now);
  connections_.erase(found);
}

void Links::collect_bulk_news(Budget& came) {
  BulkNews news = bulk_.take_news();
  std::ranges::move(news.events, std::back_inserter(events_));
  std::ranges::move(news.ends, std::back_inserter(bulk_ends_));
  came.take(news.came_bytes);
}

void Links::end_failed_bulk(Instant now) {
  for (; !bulk_ends_.empty(); bulk_ends_.pop_front()) end_bulk(bulk_ends_.front(), now);
}

void Links::end_bulk(const BulkEnd& end, Instant now) {
  const auto is_part_of_link = [&] {
    const Link* const link = rules_.find(end.peer);
    return link != nullptr && end.rail.value < link->rails.size() &&
           link->rails[end.rail.value].bulk.token == end.token;
  };
  if (!is_part_of_link()) return;  // closed in the meantime
  if (end.why.code == Code::kPeerLost) {
    read_last_words(end.peer, end.token, now);
    if (!is_part_of_link()) return;
  }
  close(end.token);
  report_end(end.token, end.peer, end.rail, end.why, now);
}

}  // namespace hoplite
