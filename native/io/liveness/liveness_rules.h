// SPDX-License-Identifier: Apache-2.0
// Decides from the signs of each peer's process: dead, unreachable, frozen, or merely busy. One
// instance per node, fed by the liveness thread; no descriptor, no clock, no lock.
//  - A process has ended when all its connections have ended without Goodbye, because the kernel
//    closes them all. While one of them is open, the end of another is a fault of that rail.
//  - The network (a cut cable) ends a rail. After the last rail this node can't tell the peer from
//    a dead one. This node then ends the link; the view of the other members decides about the
//    peer.
//  - A process whose kernel acknowledges everything, but that sends nothing, is suspect and then
//    frozen. Silence counts only while this node runs itself: a stopped or starved node suspects no
//    peer.
//  - A busy peer is never dead, because its Pulse comes from a thread that has no other work.
// Design decision 7.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/ids.h"
#include "base/limits.h"
#include "io/liveness/link_limits.h"

namespace hoplite {

// Part of the protocol: both ends rely on it. It is a fifth of the shortest default timeout, 500
// ms, of which the kernel's retransmissions make 0.35 s.
inline constexpr Duration kPulseEvery = 100_ms;

enum class Verdict : std::uint8_t {
  kSuspect,      // silent for a while
  kRecovered,    // heard again
  kRailLost,     // one connection has ended, others are open
  kRailCut,      // the network has ended it: all connections on that rail lead nowhere
  kLeft,         // it said Goodbye: no death, and nothing more from it
  kDead,         // its connections have ended without Goodbye
  kUnreachable,  // the network has ended its last connection
  kFrozen,       // silent for too long
};
// True if no other verdict follows for this incarnation of the peer, unless it is watched anew.
[[nodiscard]] constexpr bool is_final(Verdict verdict) { return verdict >= Verdict::kLeft; }

struct LivenessEvent {
  NodeId node;
  Incarnation incarnation;
  RailId rail;  // of kRailLost and kRailCut
  Verdict verdict = Verdict::kSuspect;
  bool operator==(const LivenessEvent&) const = default;
};

enum class RailEnd : std::uint8_t {
  kClosed,  // FIN or RST: the process is gone
  kCut,     // ETIMEDOUT, EHOSTUNREACH, ...: nothing gets through
};

class LivenessRules {
 public:
  explicit LivenessRules(const LivenessLimits& limits) : limits_(limits) {}

  // Notes that a connection to the peer is open. A new incarnation replaces the older one.
  void handle_watch(NodeId node, Incarnation incarnation, RailId rail);
  void handle_forget(NodeId node);
  void handle_pulse(NodeId node);
  void handle_goodbye(NodeId node);
  void handle_end(NodeId node, RailId rail, RailEnd end);
  // REQUIRES: everything that arrived before `now` was handled. Cost: O(peers).
  void handle_tick(Instant now);
  [[nodiscard]] std::optional<LivenessEvent> poll_event();

  // Returns how long the peer has been silent at the last tick.
  [[nodiscard]] Duration silence(NodeId node) const;

 private:
  struct Peer {
    Incarnation incarnation;
    std::bitset<kRailsMax> rails;  // open
    Duration silence;
    bool was_heard = false;  // since the last tick
    bool is_suspect = false;
    bool was_closed = false;  // True if a rail was closed since the last one was opened
  };
  void report(NodeId node, const Peer& peer, Verdict verdict, RailId rail = RailId{0});

  LivenessLimits limits_;
  std::map<NodeId, Peer> peers_;
  std::deque<LivenessEvent> events_;
  std::optional<Instant> ticked_;
};

}  // namespace hoplite
