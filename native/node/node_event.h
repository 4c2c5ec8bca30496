// SPDX-License-Identifier: Apache-2.0
// An event that a node reports to the control plane. Plain data.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace hoplite {

enum class NodeEventKind : std::uint8_t { kPeerDead = 0, kDrained = 1 };
constexpr const char* event_name(NodeEventKind kind) {
  return kind == NodeEventKind::kPeerDead ? "peer_dead" : "drained";
}

struct NodeEvent {
  NodeEventKind kind = NodeEventKind::kPeerDead;
  NodeId node;
  Incarnation incarnation;
};

}  // namespace hoplite
