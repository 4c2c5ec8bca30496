// One node of the cluster: the reactor thread that owns the Engine, the arena, all links and the
// clients' socket, and decides and moves everything (run() is the whole program on one screen).
// Other threads reach it through the methods below only: a command queue in, a completion out
// (house-style §3). Design §1, decisions 1 and 8.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "node/node_options.h"
#include "plan/messages.h"

namespace hoplite {

enum class NodeEventKind : std::uint8_t { kPeerDead = 0 };
constexpr const char* event_name(NodeEventKind) { return "peer_dead"; }

struct NodeEvent {
  NodeEventKind kind = NodeEventKind::kPeerDead;
  NodeId node;
  Incarnation incarnation;
};

class Node {
 public:
  // Opens the arena, the rails and the clients' socket and starts the reactor thread.
  [[nodiscard]] static Result<std::unique_ptr<Node>> start(const NodeOptions& options);
  ~Node();  // as stop()
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // All below: any thread.
  [[nodiscard]] const std::vector<std::string>& rails() const { return rails_; }
  [[nodiscard]] NodeId node_id() const { return node_; }
  [[nodiscard]] Incarnation incarnation() const { return incarnation_; }
  void set_view(Epoch epoch, std::vector<Member> members);  // oldest member first
  // Waits for the next event; nullopt when `timeout` ran out, and at once after stop().
  [[nodiscard]] std::optional<NodeEvent> next_event(Duration timeout);
  // Counters as the reactor last published them (at most 10 ms ago, or when it went to sleep).
  [[nodiscard]] std::map<std::string, std::uint64_t> stats() const;
  void
  stop();  // idempotent: says goodbye to all peers, joins the thread, closes the clients' socket

 private:
  class Reactor;
  Node(NodeId node, Incarnation incarnation, std::unique_ptr<Reactor> reactor);
  NodeId node_;
  Incarnation incarnation_;
  std::vector<std::string> rails_;
  std::unique_ptr<Reactor> reactor_;
};

}  // namespace hoplite
