// SPDX-License-Identifier: Apache-2.0
#include "sim/model/network.h"

#include <algorithm>
#include <tuple>

namespace hoplite::sim {
namespace {

constexpr Duration kNoticeMax = 2_ms;  // until an end notices that its link is gone

Stream notice(NodeId to, NodeId about) { return {Stream::Kind::kNotice, about.value, to.value}; }

}  // namespace

Duration Network::some(Duration most) {
  return {static_cast<std::int64_t>(prng_.below(static_cast<std::uint64_t>(most.ns) + 1))};
}

// ---- lives of nodes ----

void Network::start_node(NodeId node, Incarnation incarnation) {
  Port& port = ports_[node];
  if (port.rate_bytes_per_s == 0) port.rate_bytes_per_s = config_.rate_bytes_per_s;
  port.incarnation = incarnation;
  port.alive = true;
  port.sending = false;
  port.last_served = node;  // starts each node's round robin at another peer
  port.ingress_free = timeline_.now();
  for (const auto& [pair, unused] : links_) {
    if (pair.first == node || pair.second == node) dial(pair.first, pair.second);
  }
}

void Network::crash_node(NodeId node) {
  Port& port = ports_[node];
  port.alive = false;
  port.queues.clear();
  for (auto& [pair, link] : links_) {
    if (pair.first != node && pair.second != node) continue;
    const NodeId peer = pair.first == node ? pair.second : pair.first;
    const std::uint64_t life = link.life++;
    End& own = link.ends[node];
    own = {};
    End& other = link.ends[peer];
    if (!other.wanted) continue;
    timeline_.after(
        some(kNoticeMax), [this, node, peer, life] { lower(peer, node, life); },
        notice(peer, node));
    if (other.peer == port.incarnation) report_death(peer, node, other.peer);
  }
}

void Network::report_death(NodeId node, NodeId peer, Incarnation incarnation) {
  const Incarnation life_of_node = ports_[node].incarnation;
  const Duration delay = config_.detection + some(config_.detection);
  timeline_.after(
      delay,
      [this, node, peer, incarnation, life_of_node] {
        const End& own = end(node, peer);
        if (!ports_[node].alive || ports_[node].incarnation != life_of_node) return;
        if (!own.wanted || own.peer != incarnation) return;
        if (own.up) lower(node, peer, own.life);
        user_.handle_peer_dead(node, peer, incarnation);
      },
      notice(node, peer));
}

// ---- lives of links ----

void Network::connect(NodeId node, NodeId peer, Incarnation incarnation) {
  End& own = end(node, peer);
  own.wanted = true;
  own.peer = incarnation;
  const Port& port = ports_[peer];
  const bool is_past =
      port.incarnation > incarnation || (port.incarnation == incarnation && !port.alive);
  if (is_past) {
    report_death(node, peer, incarnation);
  } else {
    dial(node, peer);
  }
}

void Network::disconnect(NodeId node, NodeId peer) {
  Link& both = link(node, peer);
  End& own = both.ends[node];
  const std::uint64_t life = both.life++;
  own.wanted = false;
  own.up = false;
  ports_[node].queues.erase(peer);
  timeline_.after(
      some(kNoticeMax), [this, node, peer, life] { lower(peer, node, life); }, notice(peer, node));
}

void Network::dial(NodeId a, NodeId b) {
  Link& both = link(a, b);
  const auto is_ready = [&](NodeId node, NodeId peer) {
    const End& own = both.ends[node];
    return own.wanted && !own.up && ports_[peer].alive && ports_[peer].incarnation == own.peer;
  };
  if (both.dialling || !is_ready(a, b) || !is_ready(b, a)) return;
  both.dialling = true;
  const std::uint64_t life = ++both.life;
  timeline_.after(
      config_.redial + some(config_.redial), [this, a, b, life] { establish(a, b, life); },
      notice(a, b));
}

void Network::establish(NodeId a, NodeId b, std::uint64_t life) {
  Link& both = link(a, b);
  const Instant moves = std::max(both.stalled_until[a], both.stalled_until[b]);
  if (moves > timeline_.now()) {
    timeline_.at(moves, [this, a, b, life] { establish(a, b, life); });
    return;
  }
  both.dialling = false;
  const bool still = both.life == life && both.ends[a].wanted && both.ends[b].wanted &&
                     ports_[a].alive && ports_[b].alive;
  if (!still) {
    dial(a, b);
    return;
  }
  for (End* own : {&both.ends[a], &both.ends[b]}) {
    own->last_arrival = {};
    for (std::size_t kind = 0; kind < 2; ++kind) {
      const Duration most = config_.late_max[kind];
      if (most.ns > 0) own->late[kind] = some(most);
    }
  }
  const auto raise = [this, life](NodeId node, NodeId peer) {
    Link& now = link(node, peer);
    End& own = now.ends[node];
    if (now.life != life || !own.wanted || own.up || !ports_[node].alive) return;
    own.up = true;
    own.life = life;
    user_.handle_link_up(node, peer, own.peer, life);
  };
  const bool is_first = prng_.chance(50);
  const NodeId first = is_first ? a : b;
  const NodeId second = is_first ? b : a;
  // Before anything that the first one sends can arrive.
  timeline_.after(
      config_.latency, [raise, first, second] { raise(second, first); }, notice(second, first));
  raise(first, second);
}

void Network::lower(NodeId node, NodeId peer, std::uint64_t life) {
  End& own = end(node, peer);
  if (own.up && own.life <= life) {
    own.up = false;
    ports_[node].queues.erase(peer);
    if (ports_[node].alive) user_.handle_link_down(node, peer);
  }
  dial(node, peer);
}

void Network::reset_link(NodeId a, NodeId b) {
  Link& both = link(a, b);
  if (!both.ends[a].up && !both.ends[b].up) return;
  const std::uint64_t life = both.life++;
  timeline_.after(some(kNoticeMax), [this, a, b, life] { lower(a, b, life); }, notice(a, b));
  timeline_.after(some(kNoticeMax), [this, a, b, life] { lower(b, a, life); }, notice(b, a));
}

void Network::stall_link(NodeId a, NodeId b, Duration duration) {
  stall_way(a, b, duration);
  stall_way(b, a, duration);
}

void Network::stall_way(NodeId from, NodeId to, Duration duration) {
  Instant& until = stalled_until(from, to);
  until = std::max(until, timeline_.now() + duration);
  timeline_.at(until, [this, from, to] {
    kick(from);
    let_in(from, to);
  });
}

void Network::set_rate(NodeId node, std::uint64_t rate_bytes_per_s) {
  ports_[node].rate_bytes_per_s = rate_bytes_per_s;
}

// ---- frames ----

std::optional<std::uint64_t> Network::life_to_send(NodeId node, NodeId to) {
  const End& own = end(node, to);
  return own.up && own.heard == own.life ? std::optional(own.life) : std::nullopt;
}

void Network::send(NodeId node, NodeId to, ByteVector frame, std::uint32_t hops) {
  Frame out{node, to, ConnectionKind::kControl, 0, std::move(frame), std::nullopt, hops};
  enqueue(std::move(out));
}

void Network::send_block(NodeId node, const SendBlock& block) {
  enqueue({node, block.to, ConnectionKind::kBulk, 0, {}, block, 0});
}

void Network::enqueue(Frame frame) {
  const auto life = life_to_send(frame.from, frame.to);
  if (!life) return;
  frame.life = *life;
  const NodeId from = frame.from;
  const auto kind = static_cast<std::size_t>(frame.kind);
  ports_[from].queues[frame.to][kind].push_back(std::move(frame));
  kick(from);
}

// Control before bulk; within a kind the links take turns. A stalled link is passed over.
std::deque<Network::Frame>* Network::next_queue(Port& port, NodeId node) {
  for (std::size_t kind = 0; kind < 2; ++kind) {
    auto at = port.queues.upper_bound(port.last_served);
    for (std::size_t i = 0; i < port.queues.size(); ++i, ++at) {
      if (at == port.queues.end()) at = port.queues.begin();
      if (at->second[kind].empty() || stalled_until(node, at->first) > timeline_.now()) continue;
      port.last_served = at->first;
      return &at->second[kind];
    }
  }
  return nullptr;
}

void Network::kick(NodeId node) {
  Port& port = ports_[node];
  if (!port.alive || port.sending) return;
  std::deque<Frame>* queue = next_queue(port, node);
  if (queue == nullptr) return;
  Frame frame = std::move(queue->front());
  queue->pop_front();
  const auto served = port.queues.find(port.last_served);
  if (served->second[0].empty() && served->second[1].empty()) port.queues.erase(served);
  port.sending = true;
  transmit(std::move(frame));
}

Duration Network::time_on_port(const Frame& frame, const Port& port) const {
  const std::uint64_t payload = frame.block ? frame.block->extent.size_bytes : 0;
  const std::uint64_t beside = frame.bytes.size() - payload / config_.stands_for;
  return {static_cast<std::int64_t>((payload + beside) * 1'000'000'000ULL / port.rate_bytes_per_s) +
          1 + config_.frame_time.ns};
}

void Network::transmit(Frame frame) {
  if (frame.block) std::tie(frame.bytes, frame.hops) = user_.read_block(frame.from, *frame.block);
  const Duration taken = time_on_port(frame, ports_[frame.from]);
  const Incarnation sender = ports_[frame.from].incarnation;
  ++frames_;
  timeline_.after(taken,
                  [this, taken, sender, moved = std::move(frame)]() mutable {
                    const Port& port = ports_[moved.from];
                    if (port.alive && port.incarnation == sender)
                      finish_transmission(std::move(moved), taken);
                  },
                  {Stream::Kind::kAtOnce});
}

void Network::finish_transmission(Frame frame, Duration taken) {
  const NodeId from = frame.from;
  ports_[from].sending = false;
  const End& own = end(from, frame.to);
  if (own.up && own.life == frame.life) {
    const auto sent =
        frame.block ? std::optional(BlockSent{frame.to, frame.block->rail,
                                              frame.block->extent.size_bytes, frame.block->ticket})
                    : std::nullopt;
    End& other = end(frame.to, from);
    Instant& last = other.last_arrival[static_cast<std::size_t>(frame.kind)];
    last = std::max(last, timeline_.now() + config_.latency +
                              other.late[static_cast<std::size_t>(frame.kind)] +
                              some(config_.jitter_max));
    timeline_.at(last,
                 [this, taken, moved = std::move(frame)]() mutable {
                   enter_ingress(std::move(moved), taken);
                 },
                 {Stream::Kind::kAtOnce});
    if (sent) user_.handle_block_sent(from, *sent);
  }
  kick(from);
}

// The last byte is here at the earliest; the receiver's port may still be busy with others.
void Network::enter_ingress(Frame frame, Duration taken) {
  Port& port = ports_[frame.to];
  const Instant now = timeline_.now();
  const Instant begin = std::max(Instant{now.ns - taken.ns}, port.ingress_free);
  const Instant finish = std::max(now, begin + time_on_port(frame, port) + config_.hearing_time);
  port.ingress_free = finish;
  const auto kind =
      frame.kind == ConnectionKind::kBulk ? Stream::Kind::kBulk : Stream::Kind::kControl;
  const Stream stream{kind, frame.from.value, frame.to.value};
  timeline_.at(
      finish, [this, moved = std::move(frame)]() mutable { arrive(std::move(moved)); }, stream);
}

// A frame stays behind those that are held, also where a stall has been prolonged.
void Network::arrive(Frame frame) {
  const NodeId from = frame.from;
  const NodeId to = frame.to;
  end(to, from).held.push_back(std::move(frame));
  let_in(from, to);
}

// Delivers the frames that are held, unless a stall holds them.
void Network::let_in(NodeId from, NodeId to) {
  End& own = end(to, from);
  while (!own.held.empty() && stalled_until(from, to) <= timeline_.now()) {
    Frame frame = std::move(own.held.front());
    own.held.pop_front();
    if (!ports_[to].alive || !own.up || own.life != frame.life) continue;
    user_.handle_frame(to, from, frame.kind, std::move(frame.bytes), frame.hops + 1);
  }
}

}  // namespace hoplite::sim
