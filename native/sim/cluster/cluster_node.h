// SPDX-License-Identifier: Apache-2.0
// One simulated node: its engine, and what io/ and the operating system would know of it. Plain
// data; owned and changed by Cluster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/engine/engine.h"
#include "sim/check/fences.h"
#include "sim/model/hops.h"
#include "sim/model/inbox.h"
#include "sim/model/lazy_arena.h"
#include "wire/layouts.h"

namespace hoplite::sim {

struct OpenedReceive {
  OpenReceive opened;
  std::vector<bool> landed;            // per block of the object
  std::optional<std::uint32_t> first;  // of the stripe, that was asked for; none: nothing comes
};
using Receives = std::map<std::pair<NodeId, TransferId>, OpenedReceive>;

// The layouts that each end of a connection has sent to the other, in one life of their link.
struct LinkLayouts {
  std::uint64_t life = 0;
  wire::Layouts sent, received;
};

// The work of a node, over all its lives.
struct NodeLoad {
  std::uint64_t turns = 0;
  std::uint64_t messages_sent = 0, messages_heard = 0;
  std::uint64_t message_bytes_sent = 0;  // without the small objects that travel in them
  Instant last_heard;                    // any message of a peer
};

struct ClusterNode {
  std::size_t index = 0;
  NodeId id;
  Incarnation life{1};
  bool alive = false;
  // True if it has been a member from the beginning, and no other has taken it for dead or leaving.
  bool is_steady = false;
  Instant paused_until{};
  Duration clock_ahead{};  // of virtual time
  std::unique_ptr<Engine> engine;
  LazyArena arena;
  std::map<NodeId, LinkLayouts> layouts;  // by peer
  Receives receives;
  Receives closing;  // closed, and may still write
  // Blocks that the node has asked for and no sender has sent, over all its lives: a paused sender
  // may not have heard that a life has ended.
  std::map<TransferId, std::int64_t> credits;
  std::map<std::uint64_t, std::vector<std::byte>> disk;  // by offset, as it was written
  std::uint64_t disk_used = 0;
  Instant disk_free_at{};                      // of the jobs that it was given
  std::map<RebuildId, std::uint64_t> rebuilt;  // bytes that its helper has made
  Instant helper_free_at{};
  std::deque<std::function<void()>> deferred;  // while it is paused
  // Used by real turns only.
  Inbox inbox;
  bool is_busy = false;            // True from the start of a turn until its time is over
  std::optional<Instant> turn_at;  // when the next one begins
  std::size_t actions_left = 0;    // that the turn may still perform
  std::uint64_t bytes_left = 0;
  bool has_acted = false;  // True if the last turn has performed anything

  std::optional<Instant> timer;  // when the next handle_timeout is posted for
  std::uint64_t drained = 0;     // how often its engine has said so
  Epoch known_epoch;             // epoch of the newest view that it has
  Fences fences;
  NodeLoad load;
  bool waits_differ = false;  // True if it has had a turn since the wait-for graph asked it
  Hops hops;
  std::uint32_t hops_in = 0;  // links that the payload of the turn's message has crossed
  Instant last_turn{};
  std::uint64_t turns_now = 0;  // turns at the same instant; too many mean a spinning engine
};

}  // namespace hoplite::sim
