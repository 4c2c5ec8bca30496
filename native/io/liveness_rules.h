// What is known of each peer's process, and what follows from it: dead, unreachable, frozen, or
// merely busy. One instance per node, fed by the liveness thread; no descriptor, no clock, no lock.
//  - A process has ended when its connections have, without Goodbye: the kernel closes them all. As
//    long as one of them is open, the end of another is a fault of that rail.
//  - What the network does (a cut cable) ends a rail. When it has ended the last one, the peer
//    can't be told from a dead one. We part from it; the others' view decides what it is to them.
//  - A process whose kernel takes everything and that says nothing is suspect, then frozen. Silence
//    is counted only while we run ourselves: who was stopped or starved accuses nobody of it.
//  - Who is busy is never dead: a Pulse comes from a thread that does nothing else.
// Design decision 7. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/ids.h"
#include "base/limits.h"
#include "io/link_limits.h"

namespace hoplite {

// Part of the protocol: both ends count on it. A fifth of the shortest patience (the kernel's
// retransmissions make it 0.35 s).
inline constexpr Duration kPulseEvery = 100_ms;

enum class Verdict : std::uint8_t {
  kSuspect,      // silent for a while
  kRecovered,    // heard again
  kRailLost,     // one connection has ended, others are open
  kRailCut,      // and the network has ended it: what else is open on that rail leads nowhere
  kLeft,         // it said Goodbye: no death, and nothing more from it
  kDead,         // its connections have ended without Goodbye
  kUnreachable,  // the network has ended its last connection
  kFrozen,       // silent for too long
};
// After these nothing more is said of this life of the peer, unless it is watched anew.
[[nodiscard]] constexpr bool is_final(Verdict verdict) { return verdict >= Verdict::kLeft; }

struct LivenessEvent {
  NodeId node;
  Incarnation incarnation;
  RailId rail;  // of kRailLost and kRailCut
  Verdict verdict = Verdict::kSuspect;
  bool operator==(const LivenessEvent&) const = default;
};

enum class RailEnd : std::uint8_t {
  kClosed,  // FIN or RST: nobody is there any more
  kCut,     // ETIMEDOUT, EHOSTUNREACH, ...: nothing gets there any more
};

class LivenessRules {
 public:
  explicit LivenessRules(const LivenessLimits& limits) : limits_(limits) {}

  // A connection to the peer is open. Of another incarnation than before: that one is forgotten.
  void handle_watch(NodeId node, Incarnation incarnation, RailId rail);
  void handle_forget(NodeId node);
  void handle_pulse(NodeId node);
  void handle_goodbye(NodeId node);
  void handle_end(NodeId node, RailId rail, RailEnd end);
  // REQUIRES: all that has come before `now` was handled. Cost: O(peers).
  void handle_tick(Instant now);
  [[nodiscard]] std::optional<LivenessEvent> poll_event();

  // How long it has said nothing, as of the last tick.
  [[nodiscard]] Duration silence(NodeId node) const;

 private:
  struct Peer {
    Incarnation incarnation;
    std::bitset<kRailsMax> rails;  // open
    Duration silence;
    bool is_heard = false;  // since the last tick
    bool is_suspect = false;
    bool was_closed = false;  // a rail, since the last one was opened
  };
  void say(NodeId node, const Peer& peer, Verdict verdict, RailId rail = RailId{0});

  LivenessLimits limits_;
  std::map<NodeId, Peer> peers_;
  std::deque<LivenessEvent> events_;
  std::optional<Instant> ticked_;
};

}  // namespace hoplite
