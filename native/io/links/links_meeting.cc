// SPDX-License-Identifier: Apache-2.0
// From the first SYN to the last proof: accepting, dialling, probing and the handshake.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "io/links/links.h"
#include "io/log.h"

namespace hoplite {
namespace {

constexpr int kAcceptsPerTurn = 16;

std::string dialled_name(NodeId node, const std::string& address) {
  return node_name(node) + " at " + address;
}

std::string dialler_name(const SocketAddress& from) {
  const std::string text = address_text(from);
  return text.substr(0, text.rfind(':'));  // the port is any
}

const char* explain_refusal(LinkRules::Answer answer) {
  switch (answer) {
    case LinkRules::Answer::kJoined:
      return "has joined";
    case LinkRules::Answer::kTooManyNodes:
      return "is one node more than a view can have";
    case LinkRules::Answer::kEarlierLife:
      return "is an earlier life, which is over";
    case LinkRules::Answer::kEarlierAttempt:
      return "dials for a life of the link that is over";
    case LinkRules::Answer::kRailTaken:
      return "dials the same rail twice";
  }
  return "";
}

}  // namespace

std::uint64_t Links::add(UniqueFd fd, Phase phase, Interest interest, Instant now) {
  const std::uint64_t token = next_token_++;
  // no memory in the kernel: the same as a refusal
  if (!poller_->add(fd.value(), token, interest)) return 0;
  const RailPlace place{arena_, receives_.get(), limits_.arriving_bytes_max, counters_.get()};
  Connection connection{.wire = RailConnection(std::move(fd), place),
                        .phase = phase,
                        .kind = ConnectionKind::kControl,
                        .rail = RailId{0},
                        .peer = kNoNode,
                        .peer_name = {},
                        .attempt = 0,
                        .deadline = now + limits_.handshake_max,
                        .handshake = Handshake(*identity_),
                        .interest = interest,
                        .is_dirty = false};
  set_timer(connection.deadline);
  connections_.emplace(token, std::move(connection));
  return token;
}

void Links::accept_all(Listener& listener, Instant now) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    auto accepted = listener.accept();
    if (!accepted) return;
    if (!accepted->is_open()) {
      ++counters_->connections_refused;
      log_refusal({Code::kUnauthenticated, "a connection was sent away: no descriptor is left"},
                  now);
      continue;
    }
    const auto from = remote_address(accepted->value());
    if (!from) continue;  // it is gone already
    if (newcomers_.is_full()) {
      ++counters_->connections_refused;
      log_refusal({Code::kUnauthenticated, "too many connections that have not proven themselves"},
                  now);
      const auto displaced = newcomers_.eviction_candidate();
      if (!displaced) continue;
      close(*displaced);
    }
    const std::uint64_t token = add(std::move(*accepted), Phase::kHandshake, Interest::kRead, now);
    if (token == 0) continue;
    newcomers_.add(token, *from);
    Connection& connection = connections_.at(token);
    connection.peer_name = dialler_name(*from);
    if (identity_->tls) connection.wire.secure(identity_->tls->begin(TlsSession::Side::kListens));
  }
}

void Links::perform(const DialRail& action, Instant now) {
  const Link* const link = rules_.find(action.node);
  HOPLITE_CHECK(link != nullptr);
  const std::string& rail = link->member.rails[action.rail.value];
  auto address = parse_address(rail);
  if (!address) {
    log_refusal(address.error(), now);
    return;
  }
  Dial started = start_dial(action.node, action.rail, *address, now);
  if (started.state != DialState::kOpen && started.state != DialState::kPending) return;
  const std::uint64_t token = add(std::move(started.fd), Phase::kDialling, Interest::kWrite, now);
  if (token == 0) return;
  Connection& connection = connections_.at(token);
  connection.kind = action.kind;
  connection.peer_name = dialled_name(action.node, rail);
  connection.rail = action.rail;
  connection.peer = action.node;
  connection.attempt = link->attempt;
  rules_.handle_dialling(action.node, action.rail, action.kind, token);
}

void Links::perform(const ProbeRail& action, Instant now) {
  const Link* const link = rules_.find(action.node);
  HOPLITE_CHECK(link != nullptr);
  auto address = parse_address(link->member.rails[action.rail.value]);
  if (!address) return;
  Dial started = start_dial(action.node, action.rail, *address, now);
  if (started.state != DialState::kPending) return;
  const std::uint64_t token = add(std::move(started.fd), Phase::kProbing, Interest::kWrite, now);
  if (token == 0) return;
  Connection& connection = connections_.at(token);
  connection.rail = action.rail;
  connection.peer = action.node;
}

Dial Links::start_dial(NodeId node, RailId rail, const SocketAddress& to, Instant now) {
  const std::size_t source = std::min<std::size_t>(rail.value, addresses_.size() - 1);
  Dial started = dial(to, addresses_[source]);
  ++counters_->dials;
  if (started.state == DialState::kRefused) rules_.handle_refused(node, rail, now);
  return started;
}

void Links::finish_connect(std::uint64_t token, Connection& connection, Instant now) {
  const NodeId node = connection.peer;
  const RailId rail = connection.rail;
  const Link* const link = rules_.find(node);
  if (link == nullptr) {  // forgotten while it was dialled
    fail_connection(token, {Code::kPeerLost, "its peer is no member any more"}, now);
    return;
  }
  const DialState state = finish_dial(connection.wire.fd());
  if (connection.phase == Phase::kProbing || state != DialState::kOpen) {
    fail_connection(token, {Code::kPeerLost, "the dial failed"}, now);
    if (state == DialState::kOpen) rules_.handle_taken(node, rail);
    if (state == DialState::kRefused) rules_.handle_refused(node, rail, now);
    perform_actions(now);
    return;
  }
  rules_.handle_taken(node, rail);
  Hello hello;
  hello.to = node;
  hello.to_incarnation = link->member.incarnation;
  hello.kind = connection.kind;
  hello.rail = connection.rail;
  hello.attempt = connection.attempt;
  connection.phase = Phase::kHandshake;
  connection.handshake = Handshake(*identity_, hello);
  if (identity_->tls) connection.wire.secure(identity_->tls->begin(TlsSession::Side::kDials));
  send_handshake(connection);
  mark_dirty(token, connection);
}

void Links::send_handshake(Connection& connection) {
  while (auto frame = connection.handshake.poll_frame()) {
    Bytes bytes;
    encode(*frame, bytes);
    connection.wire.queue_frame(std::move(bytes));
  }
}

void Links::shake_hands(std::uint64_t token, Connection& connection, Budget& budget, Instant now) {
  std::vector<FrameIn> frames;
  auto received = connection.wire.receive_frames(ReadAhead::kNone, budget, frames);
  if (connection.wire.has_output()) mark_dirty(token, connection);
  if (connection.phase == Phase::kClosing) {  // only its end is of interest
    if (!received) fail_connection(token, {Code::kPeerLost, "as expected"}, now);
    return;
  }
  if (!frames.empty()) connection.handshake.bind(connection.wire.binding());
  for (const FrameIn& frame : frames) {
    const auto* link_frame = std::get_if<LinkFrame>(&frame.frame);
    auto handled = link_frame != nullptr ? connection.handshake.handle_frame(*link_frame)
                                         : Error{Code::kBadFrame, "a message before the handshake"};
    if (!handled) {
      ++counters_->handshakes_refused;
      if (handled.error().code == Code::kWrongVersion) ++counters_->versions_refused;
      fail_connection(token, handled.error(), now);
      return;
    }
    send_handshake(connection);
    mark_dirty(token, connection);
  }
  switch (connection.handshake.state()) {
    case Handshake::State::kDone:
      adopt(token, connection, now);
      return;
    case Handshake::State::kOtherIncarnation:
      if (connection.peer == kNoNode) {  // the answer is on its way; then the dialler closes
        connection.phase = Phase::kClosing;
        return;
      }
      rules_.handle_other_life(connection.peer, connection.handshake.peer_incarnation(), now);
      perform_actions(now);
      fail_connection(token, {Code::kPeerLost, "another life of the node answers"}, now);
      return;
    default:
      if (received) return;
      if (received.error().code == Code::kWrongVersion) ++counters_->versions_refused;
      if (received.error().code != Code::kPeerLost) ++counters_->handshakes_refused;
      if (received.error().code != Code::kUnauthenticated) {
        fail_connection(token, received.error(), now);
        return;
      }
      // One end has no TLS, or none that the other accepts. A dialler of this kind gets a TLS
      // alert, so that its operators can read the reason. It is sent without a wait and may be
      // lost.
      if (connection.peer == kNoNode) {
        const auto answer = no_tls_alert();
        ::send(connection.wire.fd(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      }
      fail_connection(token,
                      {Code::kUnauthenticated, "connection with " + connection.peer_name +
                                                   " refused: " + received.error().text},
                      now);
  }
}

// The peer has proven itself: the connection joins its link's life, or starts the next one.
void Links::adopt(std::uint64_t token, Connection& connection, Instant now) {
  auto joined = join_life(token, connection, now);
  if (!joined) {
    ++counters_->handshakes_refused;
    fail_connection(token, joined.error(), now);
    return;
  }
  ++counters_->handshakes;
  if (connection.kind == ConnectionKind::kLiveness) {
    hand_over(token, connection, now);
    return;
  }
  if (auto set = set_rail_options(connection.wire.fd(), connection.kind); !set) {
    fail_connection(token, set.error(), now);
    return;
  }
  connection.phase = Phase::kOpen;
  newcomers_.remove(token);
  rules_.handle_open(connection.peer, connection.rail, connection.kind);
  perform_actions(now);
  begin_to_read(token, now);
}

Result<void> Links::join_life(std::uint64_t token, Connection& connection, Instant now) {
  // this node dialled: the connection is in its rail already
  if (connection.peer != kNoNode) return {};
  const Hello& hello = connection.handshake.hello();
  const LinkRules::Answer answer = rules_.handle_hello(hello, token, now);
  perform_actions(now);
  if (answer != LinkRules::Answer::kJoined) {
    return Error{Code::kUnauthenticated, node_name(hello.from) + " of incarnation " +
                                             std::to_string(hello.from_incarnation.value) + " " +
                                             explain_refusal(answer)};
  }
  connection.kind = hello.kind;
  connection.rail = hello.rail;
  connection.peer = hello.from;
  connection.attempt = hello.attempt;
  return {};
}

void Links::log_refusal(const Error& why, Instant now) {
  if (const auto line = refusals_.handle_refusal(why.text, now)) {
    log_warning(kLinksLogger, *line);
  }
}

}  // namespace hoplite
