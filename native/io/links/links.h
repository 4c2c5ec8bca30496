// SPDX-License-Identifier: Apache-2.0
// All rails to all peers: listens, dials, shakes hands (handshake.h), makes IoEvents of arrivals.
// Owns all TCP descriptors of the node except the liveness thread's; BulkPorts serves those for
// blocks, on this thread or on others. Reactor thread only.
//  - The member with the smaller node id dials, and redials until it knows that the peer is dead.
//  - A life of a link (`attempt`, counted by the dialler) is up when control and bulk of one rail
//    are open. The loss of an open one ends it: LinkDown, then LinkUp after a reconnect. One
//    control connection carries all its messages, in order. A rail's third connection (liveness)
//    belongs to no life: Links proves it and hands it over to the liveness thread.
//  - Without GOODBYE a peer is dead when that thread says so, every rail refuses the dial (the
//    other side only probes), another life proves itself, or the link stays down.
//  - No event of a node reaches the engine before Connect: its open connections wait unread.
// Decisions 7, 19 and 19e.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/bulk/bulk_ports.h"
#include "io/links/handshake.h"
#include "io/links/link_rules.h"
#include "io/links/refusal_log.h"
#include "io/links/tcp_rail.h"
#include "io/liveness/liveness.h"
#include "io/sockets/listener.h"
#include "io/sockets/newcomers.h"
#include "io/sockets/poller.h"

namespace hoplite {

class Links {
 public:
  // Listens on every rail. Tokens start at `first_token`. REQUIRES: poller and arena outlive this.
  [[nodiscard]] static Result<Links> open(Identity identity, const LinkLimits& limits,
                                          const std::vector<std::string>& rails, Poller& poller,
                                          const Arena& arena, std::uint64_t first_token);
  [[nodiscard]] const std::vector<std::string>& rails() const { return rails_; }
  // ---- deeds ----
  void connect(const Member& member, Instant now);
  void disconnect(NodeId node);  // says GOODBYE
  void send(const SendMessage& action);
  void send(const SendBlock& action);  // on another rail if that one isn't open
  void open_receive(const OpenReceive& action);
  void close_receive(const CloseReceive& action);  // once nothing writes there: ReceiveClosed
  void send_goodbye();  // to all peers, as far as the kernel takes it at once
  // ---- a turn ----
  void handle_ready(std::span<const Ready> ready, Budget& blocks, Instant now);
  void handle_timeout(Instant now);
  void flush(Budget& blocks, Instant now);  // what the turn's actions have queued
  [[nodiscard]] std::optional<Instant> poll_timeout() const;
  [[nodiscard]] std::vector<IoEvent> take_events();
  [[nodiscard]] bool has_events() const { return !events_.empty(); }
  // A LinkDown is among the events. The caller first performs what was decided before it.
  [[nodiscard]] bool has_lost_link() const { return has_lost_link_; }
  [[nodiscard]] LinkCounters counters() const;  // cost: O(connections)
  [[nodiscard]] const std::string& last_refusal() const { return refusals_.last(); }

 private:
  enum class Phase : std::uint8_t { kDialling, kProbing, kHandshake, kClosing, kOpen };
  struct Connection {
    RailConnection wire;
    Phase phase = Phase::kHandshake;
    ConnectionKind kind = ConnectionKind::kControl;
    RailId rail;
    NodeId peer;            // kNoNode until its Hello names the node
    std::string peer_name;  // for refusals: the node dialled, or the address that dials
    std::uint32_t attempt = 0;
    Instant deadline;     // for the handshake; once open, for the kernel to take of a long queue
    Handshake handshake;  // the listening side's until this node dials; meaningless once open
    Interest interest = Interest::kNone;
    bool is_dirty = false;  // in dirty_
  };
  using Rail = Link::Rail;

  Links(Identity identity, const LinkLimits& limits, Poller& poller, const Arena& arena,
        Liveness liveness, BulkPorts bulk, std::uint64_t first_token);
  void set_timer(Instant at);
  void close(std::uint64_t token);
  void fail_connection(std::uint64_t token, const Error& why, Instant now);
  void report_end(std::uint64_t token, NodeId node, RailId rail, const Error& why, Instant now);
  void begin_to_read(std::uint64_t token, Instant now);
  void end_bulk(const BulkEnd& end, Instant now);
  void collect_bulk_news(Budget& came);
  void end_failed_bulk(Instant now);
  void write_out(std::uint64_t token, Budget& budget, Instant now);
  void mark_dirty(std::uint64_t token, Connection& connection);
  void watch(std::uint64_t token, Connection& connection);
  void end_late_handshakes(Instant now);
  void perform_actions(Instant now);  // of the rules, after each call of them
  void perform(const SayGoodbye& action, Instant now);
  void perform(const CloseConnection& action, Instant now);
  void perform(const ForgetPeer& action, Instant now);
  void perform(const ReportUp& action, Instant now);
  void perform(const ReportDown& action, Instant now);
  void perform(const ReportDead& action, Instant now);
  void perform(const ReportRail& action, Instant now);
  void serve(const Ready& ready, Budget& budget, Instant now);
  void receive(std::uint64_t token, Connection& connection, Budget& budget, Instant now);
  [[nodiscard]] Result<void> receive_frames(Connection& connection, Budget& budget);
  void read_last_words(NodeId peer, std::uint64_t ended, Instant now);
  [[nodiscard]] Result<void> handle_frame(Connection& connection, FrameIn frame);
  // links_liveness.cc
  void hand_over(std::uint64_t token, Connection& connection, Instant now);
  void handle_liveness(const LivenessEvent& event, Instant now);
  // links_meeting.cc
  void accept_all(Listener& listener, Instant now);
  void perform(const DialRail& action, Instant now);
  void perform(const ProbeRail& action, Instant now);
  [[nodiscard]] Dial start_dial(NodeId node, RailId rail, const SocketAddress& to, Instant now);
  void finish_connect(std::uint64_t token, Connection& connection, Instant now);
  void shake_hands(std::uint64_t token, Connection& connection, Budget& budget, Instant now);
  void send_handshake(Connection& connection);
  void adopt(std::uint64_t token, Connection& connection, Instant now);
  [[nodiscard]] Result<void> join_life(std::uint64_t token, Connection& connection, Instant now);
  void log_refusal(const Error& why, Instant now);
  std::uint64_t add(UniqueFd fd, Phase phase, Interest interest, Instant now);

  std::unique_ptr<Identity> identity_;
  LinkLimits limits_;
  LinkRules rules_;
  Poller* poller_;
  const Arena* arena_;
  Liveness liveness_;
  std::unique_ptr<SharedReceives> receives_;  // a pointer: connections have it, and a Links moves
  std::unique_ptr<LinkCounters> counters_;
  BulkPorts bulk_;                 // the connections for blocks of links that are up
  std::deque<BulkEnd> bulk_ends_;  // to handle
  std::vector<std::string> rails_;
  std::vector<SocketAddress> addresses_;
  std::map<std::uint64_t, Listener> listeners_;  // by token
  std::map<std::uint64_t, Connection> connections_;
  std::vector<std::uint64_t> dirty_;
  std::vector<IoEvent> events_;
  bool has_lost_link_ = false;  // see has_lost_link()
  std::uint64_t liveness_token_, next_token_;
  Newcomers newcomers_;
  std::optional<Instant> timer_;  // of handshakes and orders to the liveness thread
  RefusalLog refusals_;
};

}  // namespace hoplite
