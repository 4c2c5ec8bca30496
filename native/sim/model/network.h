// SPDX-License-Identifier: Apache-2.0
// The simulated network: per pair of nodes one link with a control and a bulk stream each way, per
// node one egress and one ingress port. It cuts through: a frame takes size / rate of the sender's
// port, then the latency, then shares the receiver's port; streams are reliable and FIFO while the
// link lives. A reset loses what is under way, each end sees LinkDown at its own time, later
// LinkUp. Blocks are read from the arena when their transmission starts. Its user hears of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "plan/messages.h"
#include "sim/model/timeline.h"

namespace hoplite::sim {

using ByteVector = std::vector<std::byte>;

struct NetworkConfig {
  Duration latency = 30_us;
  std::array<Duration, 2> late_max{};  // of all frames of a kind, one way, in a life of a link
  Duration jitter_max{0};              // added to each frame's latency; a stream stays FIFO
  Duration detection = 5_ms;           // from a crash to PeerDead, doubled at random
  Duration redial = 3_ms;              // from LinkDown at both ends to LinkUp
  std::uint64_t rate_bytes_per_s = 1'250'000'000;  // both ports of a node, until set_rate()
  // Each byte of an object that is stored and moved stands for so many, all of which take their
  // time of a port. Objects are then large, and they and their blocks multiples of it.
  std::uint64_t stands_for = 1;
  Duration frame_time{0}, hearing_time{0};  // a core's, of a frame: at both ports; at its receiver
};

// The events that the network reports. `node` is the node that sees the event.
class NetworkUser {
 public:
  virtual ~NetworkUser() = default;
  // `hops`: the value that the sender gave to send().
  virtual void handle_frame(NodeId node, NodeId from, ConnectionKind kind, ByteVector frame,
                            std::uint32_t hops) = 0;
  // Returns header and bytes of a block, read from the arena now, and how many links they crossed.
  virtual std::pair<ByteVector, std::uint32_t> read_block(NodeId node, const SendBlock& block) = 0;
  virtual void handle_block_sent(NodeId node, const BlockSent& sent) = 0;
  // `life`: of the link, for note_life().
  virtual void handle_link_up(NodeId node, NodeId peer, Incarnation, std::uint64_t life) = 0;
  virtual void handle_link_down(NodeId node, NodeId peer) = 0;
  virtual void handle_peer_dead(NodeId node, NodeId peer, Incarnation incarnation) = 0;
};

class Network {
 public:
  Network(const NetworkConfig& config, Timeline& timeline, NetworkUser& user, std::uint64_t seed)
      : config_(config), timeline_(timeline), user_(user), prng_(seed) {}

  // ---- a node's own deeds ----
  void start_node(NodeId node, Incarnation incarnation);
  void crash_node(NodeId node);  // peers see LinkDown, then PeerDead
  void connect(NodeId node, NodeId peer, Incarnation incarnation);
  void disconnect(NodeId node, NodeId peer);
  // Control; dropped while the link is down. `hops`: links that its payload has crossed before.
  void send(NodeId node, NodeId to, ByteVector frame, std::uint32_t hops);
  void send_block(NodeId node, const SendBlock& block);  // bulk; likewise

  // The node has heard of that life of the link; a paused node hears later. Frames that it sends
  // earlier answer an older life, so the network drops them.
  void note_life(NodeId node, NodeId peer, std::uint64_t life) { end(node, peer).heard = life; }
  // Returns the link's life, or nothing while the network drops the node's frames.
  [[nodiscard]] std::optional<std::uint64_t> life_to_send(NodeId node, NodeId to);
  [[nodiscard]] std::uint64_t life_of(NodeId node, NodeId peer) { return end(node, peer).life; }

  // ---- faults ----
  void reset_link(NodeId a, NodeId b);
  void stall_link(NodeId a, NodeId b, Duration duration);     // nothing moves, nothing is lost
  void stall_way(NodeId from, NodeId to, Duration duration);  // likewise, in one direction
  void set_rate(NodeId node, std::uint64_t rate_bytes_per_s);
  void end_jitter() { config_.jitter_max = {0}; }
  [[nodiscard]] Instant busy_until(NodeId node) { return ports_[node].ingress_free; }
  [[nodiscard]] std::uint64_t frames() const { return frames_; }

 private:
  struct Frame {
    NodeId from, to;
    ConnectionKind kind = ConnectionKind::kControl;
    std::uint64_t life = 0;  // of the link; a frame of an older one is lost
    ByteVector bytes;        // of a block: filled in when its transmission starts
    std::optional<SendBlock> block;
    std::uint32_t hops = 0;
  };
  struct End {  // one node's view of a link
    bool wanted = false;
    bool up = false;
    Incarnation peer;  // the life that connect() named
    std::uint64_t life = 0;
    std::uint64_t heard = 0;                // the life that the node knows of
    std::array<Instant, 2> last_arrival{};  // per ConnectionKind, so that streams stay FIFO
    std::array<Duration, 2> late{};         // per ConnectionKind, of what arrives
    std::deque<Frame> held;                 // arrived while the way to here was stalled
  };
  struct Link {
    std::map<NodeId, End> ends;
    std::uint64_t life = 0;
    bool dialling = false;
    std::map<NodeId, Instant> stalled_until;  // by whose frames do not move
  };
  struct Port {
    std::uint64_t rate_bytes_per_s = 0;
    Incarnation incarnation;
    bool alive = false;
    bool sending = false;
    Instant ingress_free{};
    NodeId last_served;                                         // round robin over the links
    std::map<NodeId, std::array<std::deque<Frame>, 2>> queues;  // those not empty, per kind
  };

  static std::pair<NodeId, NodeId> key(NodeId a, NodeId b) {
    return a < b ? std::pair(a, b) : std::pair(b, a);
  }
  Link& link(NodeId a, NodeId b) { return links_[key(a, b)]; }
  End& end(NodeId node, NodeId peer) { return link(node, peer).ends[node]; }
  Instant& stalled_until(NodeId from, NodeId to) { return link(from, to).stalled_until[from]; }
  Duration some(Duration most);
  void dial(NodeId a, NodeId b);
  void establish(NodeId a, NodeId b, std::uint64_t life);
  void lower(NodeId node, NodeId peer, std::uint64_t life);
  void report_death(NodeId node, NodeId peer, Incarnation incarnation);
  void enqueue(Frame frame);
  void kick(NodeId node);
  std::deque<Frame>* next_queue(Port& port, NodeId node);
  [[nodiscard]] Duration time_on_port(const Frame& frame, const Port& port) const;
  void transmit(Frame frame);
  void finish_transmission(Frame frame, Duration taken);
  void enter_ingress(Frame frame, Duration taken);
  void arrive(Frame frame);
  void let_in(NodeId from, NodeId to);

  NetworkConfig config_;
  Timeline& timeline_;
  NetworkUser& user_;
  Prng prng_;
  std::map<std::pair<NodeId, NodeId>, Link> links_;
  std::map<NodeId, Port> ports_;
  std::uint64_t frames_ = 0;
};

}  // namespace hoplite::sim
