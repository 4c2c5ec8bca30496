// What a node tells the control plane. Plain data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace hoplite {

enum class NodeEventKind : std::uint8_t { kPeerDead = 0 };
constexpr const char* event_name(NodeEventKind) { return "peer_dead"; }

struct NodeEvent {
  NodeEventKind kind = NodeEventKind::kPeerDead;
  NodeId node;
  Incarnation incarnation;
};

}  // namespace hoplite
