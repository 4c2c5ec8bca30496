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

void Links::start_dial(NodeId node, Link& link, std::size_t rail_index, ConnectionKind kind,
                       Instant now) {
  auto address = parse_address(link.member.rails[rail_index]);
  if (!address) {
    log_refusal(address.error(), now);
    return;
  }
  const SocketAddress& source = addresses_[std::min(rail_index, addresses_.size() - 1)];
  Dial started = dial(*address, source);
  ++counters_->dials;
  if (started.state == DialState::kRefused) handle_refused_dial(node, rail_index, now);
  if (started.state != DialState::kOpen && started.state != DialState::kPending) return;
  const std::uint64_t token = add(std::move(started.fd), Phase::kDialling, Interest::kWrite, now);
  if (token == 0) return;
  Connection& connection = connections_.at(token);
  connection.kind = kind;
  connection.peer_name = dialled_name(node, link.member.rails[rail_index]);
  connection.rail = RailId{static_cast<std::uint8_t>(rail_index)};
  connection.peer = node;
  connection.attempt = link.attempt;
  Rail& rail = link.rails[rail_index];
  rail.slot(kind) = token;
}

void Links::start_probe(NodeId node, Link& link, std::size_t rail_index, Instant now) {
  auto address = parse_address(link.member.rails[rail_index]);
  if (!address) return;
  const SocketAddress& source = addresses_[std::min(rail_index, addresses_.size() - 1)];
  Dial started = dial(*address, source);
  ++counters_->dials;
  if (started.state == DialState::kRefused) handle_refused_dial(node, rail_index, now);
  if (started.state != DialState::kPending) return;
  const std::uint64_t token = add(std::move(started.fd), Phase::kProbing, Interest::kWrite, now);
  if (token == 0) return;
  Connection& connection = connections_.at(token);
  connection.rail = RailId{static_cast<std::uint8_t>(rail_index)};
  connection.peer = node;
}

void Links::finish_connect(std::uint64_t token, Connection& connection, Instant now) {
  const NodeId node = connection.peer;
  const std::size_t rail_index = connection.rail.value;
  const auto known = links_.find(node);
  if (known == links_.end()) {  // forgotten while it was dialled
    fail_connection(token, {Code::kPeerLost, "its peer is no member any more"}, now);
    return;
  }
  const DialState state = finish_dial(connection.wire.fd());
  if (connection.phase == Phase::kProbing || state != DialState::kOpen) {
    fail_connection(token, {Code::kPeerLost, "the dial failed"}, now);
    if (state == DialState::kRefused) handle_refused_dial(node, rail_index, now);
    if (state == DialState::kOpen) known->second.rails[rail_index].is_refused = false;
    return;
  }
  known->second.rails[rail_index].is_refused = false;
  Hello hello;
  hello.to = node;
  hello.to_incarnation = known->second.member.incarnation;
  hello.kind = connection.kind;
  hello.rail = connection.rail;
  hello.attempt = connection.attempt;
  connection.phase = Phase::kHandshake;
  connection.handshake = Handshake(*identity_, hello);
  if (identity_->tls) connection.wire.secure(identity_->tls->begin(TlsSession::Side::kDials));
  send_handshake(connection);
  mark_dirty(token, connection);
}

// No process listens at this address any more. If that holds on every rail of the member, its
// process is gone.
void Links::handle_refused_dial(NodeId node, std::size_t rail_index, Instant now) {
  Link& link = links_.at(node);
  if (rail_index >= link.rails.size()) return;
  link.rails[rail_index].is_refused = true;
  const bool is_missing = link.is_wanted() && !link.is_up() && !link.has_said_goodbye;
  if (is_missing && link.is_refused()) {
    declare_dead(node, link, Verdict::kDead, "no process listens there any more", now);
  }
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
      if (connection.handshake.peer_incarnation() > connection.handshake.hello().to_incarnation) {
        declare_dead(connection.peer, links_.at(connection.peer), Verdict::kDead,
                     "its next life answers", now);
      }
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
  connection.phase = Phase::kOpen;
  newcomers_.remove(token);
  if (auto set = set_rail_options(connection.wire.fd(), connection.kind); !set) {
    fail_connection(token, set.error(), now);
    return;
  }
  watch(token, connection);
  report_if_up(connection.peer, links_.at(connection.peer));
}

Result<void> Links::join_life(std::uint64_t token, Connection& connection, Instant now) {
  // this node dialled: the connection is in its rail already
  if (connection.peer != kNoNode) return {};
  const Hello& hello = connection.handshake.hello();
  const std::string peer_name =
      node_name(hello.from) + " of incarnation " + std::to_string(hello.from_incarnation.value);
  if (links_.size() >= kViewMembersMax) {  // forgets nodes that are gone
    std::erase_if(links_, [](const auto& entry) {
      const auto has_none = [](const Rail& rail) {
        return rail.control == 0 && rail.bulk == 0 && rail.liveness == 0 && !rail.is_watched;
      };
      const Link& each = entry.second;
      return !each.is_wanted() && std::all_of(each.rails.begin(), each.rails.end(), has_none);
    });
  }
  if (!links_.contains(hello.from) && links_.size() >= kViewMembersMax) {
    return Error{Code::kUnauthenticated, peer_name + " is one node more than a view can have"};
  }
  Link& link = links_[hello.from];
  const Incarnation known =
      link.is_wanted() ? std::max(link.incarnation, link.member.incarnation) : link.incarnation;
  if (hello.from_incarnation <= link.dead_incarnation || hello.from_incarnation < known) {
    return Error{Code::kUnauthenticated, peer_name + " is an earlier life, which is over"};
  }
  if (link.is_wanted() && hello.from_incarnation > link.member.incarnation) {
    declare_dead(hello.from, link, Verdict::kDead, "its next life dials", now);
  }
  const bool is_of_a_life = hello.kind != ConnectionKind::kLiveness;
  if (hello.from_incarnation > link.incarnation || (is_of_a_life && hello.attempt > link.attempt)) {
    end_life(hello.from, link, now);
    if (hello.from_incarnation > link.incarnation) stop_watching(hello.from, link);
    link.incarnation = hello.from_incarnation;
    link.attempt = hello.attempt;
    link.has_said_goodbye = false;
  } else if (is_of_a_life && hello.attempt < link.attempt) {
    return Error{Code::kUnauthenticated, peer_name + " dials for a life of the link that is over"};
  }
  link.rails.resize(std::max<std::size_t>(link.rails.size(), hello.rail.value + 1U));
  Rail& rail = link.rails[hello.rail.value];
  std::uint64_t& slot = rail.slot(hello.kind);
  if (slot != 0) return Error{Code::kUnauthenticated, peer_name + " dials the same rail twice"};
  slot = token;
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
