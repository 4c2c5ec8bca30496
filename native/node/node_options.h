// SPDX-License-Identifier: Apache-2.0
// The options of a node. Node::start validates them once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/turn_limits.h"
#include "io/liveness/link_limits.h"
#include "io/sockets/tls.h"
#include "plan/messages.h"

namespace hoplite {

struct NodeOptions {
  NodeId node;  // 1..2^64-1
  Incarnation incarnation{1};
  std::string socket_path;          // of the clients' Unix socket, in a directory of mode 0700
  std::vector<std::string> listen;  // one "address:port" per rail; port 0: any
  std::uint64_t arena_bytes = 0;
  std::string spill_directory;  // set if the option when_full says that objects are spilled
  std::string secret;           // of the cluster; never leaves the process
  TlsFiles tls;                 // for the option data_tls
  // EngineConfig fields and the node's own limits by name, durations as *_ms; see option_ranges().
  std::map<std::string, std::int64_t> overrides;
};

// The configuration of the parts of a node.
struct NodeConfig {
  EngineConfig engine;
  LinkLimits limits;
  TurnLimits turn;
  std::int64_t moments_max = 16'384;  // that ObjectTrace keeps: 2 MB
  std::int64_t trace = 0;             // 1: it prints them as well
  std::int64_t data_tls = 0;          // 1: connections between nodes are encrypted
  std::size_t fold_threads = 0;       // beside the reactor
  std::int64_t prefault_bytes = 0;    // of the arena, that get pages when no thread needs a core
};

// Returns the configuration, or kInvalidArgument that names the option and what is allowed.
[[nodiscard]] Result<NodeConfig> configure(const NodeOptions& options);
// Returns the least and the largest value of each option.
[[nodiscard]] std::map<std::string, std::pair<std::int64_t, std::int64_t>> option_ranges();

}  // namespace hoplite
