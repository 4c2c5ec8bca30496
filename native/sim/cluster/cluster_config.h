// SPDX-License-Identifier: Apache-2.0
// The options of a simulated cluster and of its clients' verbs. Plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/turn_limits.h"
#include "plan/messages/engine_config.h"
#include "plan/messages/types.h"
#include "sim/model/network.h"

namespace hoplite::sim {

// Engine borders that can be corrupted on purpose, to see the checker see it.
enum class Canary : std::uint8_t {
  kNone,
  kFoldTwice,
  kFlipByte,
  kLoseWrite,
  kForgetReply,
  kGrantInCircle,
  kSendTwice,
  kScribble,
  kForgetRelease,
  kForgetEarlyClaim,  // shows in some orders only
  kObeyOldView,       // this one and the next two need faults, which make messages void
  kRenewLease,
  kTakeOldBlock,
  kTrustBase,  // a helper skips the checksums; it shows where a recipe names another base
};

// Turns of a node. A plain turn takes no time: each event has its own turn, which performs all
// actions that follow at once.
struct TurnConfig {
  bool are_real = false;  // True if turns are like the reactor's; the fields below need it
  TurnLimits limits;
  Duration per_action{0};
  Duration per_frame{0};          // likewise, of an action that sends a message or a block
  std::uint64_t bytes_per_s = 0;  // folded or copied; 0: takes no time
  Duration stretch_max{0};        // for how long a peer may be heard before others, or alone
  bool is_fair = false;  // True if a turn hears what waits in the order of arrival, and all of it

  [[nodiscard]] Duration time_of(std::uint64_t bytes) const {
    if (bytes_per_s == 0) return {0};
    return {static_cast<std::int64_t>(bytes * 1'000'000'000 / bytes_per_s)};
  }
};

struct ClusterConfig {
  std::size_t nodes = 3;
  EngineConfig engine;  // node and incarnation are filled in
  NetworkConfig network;
  TurnConfig turns;
  std::uint64_t seed = 1;
  bool doubts_deaths = false;                       // True if only the network shows deaths
  Duration view_delay_max = 20_ms;                  // until a node hears of a new view
  Duration local_delay = 5_us;                      // client to node and back
  std::uint64_t write_bytes_per_s = 4'000'000'000;  // how fast clients fill a large put
  std::uint32_t blocks_per_write = 4;
  // Turns of a node between two checks of its engine's invariants and of the cluster's wait-for
  // graph; 0: no checks.
  std::uint32_t check_every = 1;
  Duration closing_max{0};  // for how long a receive may still write after its CloseReceive
  // The disk of each node, for spilled objects.
  std::uint64_t disk_bytes = 1ULL << 40;
  std::uint64_t disk_bytes_per_s = 500'000'000;
  std::uint32_t disk_faults_per_mille = 0;  // of its writes and reads
  // The helper thread of each node that makes objects of a base and deltas.
  std::uint64_t rebuild_bytes_per_s = 2'000'000'000;
  std::uint32_t rebuild_faults_per_mille = 0;  // of its steps
  std::uint32_t lies_per_mille = 0;  // frames that arrive as something else, as from a mad peer
  std::optional<std::size_t> liar;   // index of a member that lies in well-formed messages
  Duration lie_every = 1_ms;
  std::uint32_t withheld_per_mille = 0;  // payloads of messages, as from a link with a long queue
  std::size_t layout_table_bytes_max = kLayoutTableBytesMax;  // of each end of a connection
  bool clients_send_up_to_64_kib = false;  // the bytes with a put that is mapped when it is read
  Canary canary = Canary::kNone;
  bool trace = false;  // every event to stderr

  // By how much one frame may be late on its way to its node's engine, beside pauses and stalls.
  [[nodiscard]] Duration late_max() const {
    return turns.stretch_max + std::max(network.late_max[0], network.late_max[1]);
  }

  // Blocks of 1 KiB and payloads up to 256 bytes, so that a few KiB already make a large object.
  static ClusterConfig small(std::uint16_t stripes);
};

struct PutOptions {
  std::uint64_t size_bytes = 64_KiB;
  DType dtype = DType::kOpaque;
  std::vector<Part> parts = {};  // empty: all of it is `dtype`
  Incarnation incarnation{1};
  ClientId client{1};
  bool rough = false;  // floats whose sums are rounded: only one order has these bits
  bool maps = false;   // the writer keeps a mapping, as of empty(): the seal pins it
  Bytes bytes = {};    // empty: they follow from the name
};
struct ReduceOptions {
  std::uint32_t source_count = 0;
  std::uint32_t count = 0;
  ReduceOp op = ReduceOp::kSum;
  ClientId client{1};
  bool everywhere = false;
  bool deterministic = false;
  Share share = {};
  std::vector<Part> parts = {};  // of the result, if it is a share
};

struct ChannelOptions {
  Version version = {};  // to publish
  VersionNumber newer_than = {};
  bool wait = true;
  ClientId client{1};
};

}  // namespace hoplite::sim
