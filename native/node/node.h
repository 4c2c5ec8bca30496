// SPDX-License-Identifier: Apache-2.0
// One node of the cluster: the reactor thread, which decides and moves everything (run() is the
// whole program on one screen), and what it owns: the Engine, the arena, all links, the clients'
// socket. Other threads reach it only through the command queue (in) and the completion (out).
// Design decision 1.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "io/links/links.h"
#include "io/local_port.h"
#include "io/memory/arena.h"
#include "io/sockets/poller.h"
#include "node/command_queue.h"
#include "node/completion.h"
#include "node/fold_crew.h"
#include "node/jobs/rebuilder.h"
#include "node/jobs/spiller.h"
#include "node/node_event.h"
#include "node/node_options.h"
#include "node/object_trace.h"
#include "node/pages.h"
#include "node/trace.h"
#include "plan/engine/engine.h"

namespace hoplite {

class Node {
 public:
  // Opens the arena, the rails and the clients' socket and starts the reactor thread.
  [[nodiscard]] static Result<std::unique_ptr<Node>> start(const NodeOptions& options);
  ~Node();  // as stop()
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // ---- any thread ----
  [[nodiscard]] const std::vector<std::string>& rails() const { return rails_; }
  [[nodiscard]] NodeId node_id() const { return config_.engine.node; }
  [[nodiscard]] Incarnation incarnation() const { return config_.engine.incarnation; }
  void set_view(Epoch epoch, std::vector<Member> members);  // oldest member first
  // Waits for the next event; nullopt when `timeout` ran out, and at once after stop().
  [[nodiscard]] std::optional<NodeEvent> next_event(Duration timeout);
  // Counters as the reactor last published them: at most 10 ms ago, or when it went to sleep.
  [[nodiscard]] std::map<std::string, std::uint64_t> stats() const;
  // Hands over the objects that only this node keeps. The event kDrained follows, and again after
  // later puts.
  void drain();
  // Returns the objects on this node, the largest first; empty after stop().
  [[nodiscard]] Listing list(const ListCommand& command);
  // Says GOODBYE to all peers, joins the thread, closes the clients' socket. Idempotent.
  void stop();

 private:
  // The parts that open system resources. Links and LocalPort point to poller and arena.
  struct Parts {
    std::unique_ptr<Poller> poller;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<Pages> pages;
    std::unique_ptr<FoldCrew> crew;
    std::unique_ptr<Spiller> spiller;  // if this node spills
    std::unique_ptr<Rebuilder> rebuilder;
    std::unique_ptr<Links> links;
    std::unique_ptr<LocalPort> port;
  };
  [[nodiscard]] static Result<Parts> open_parts(const NodeOptions& options,
                                                const NodeConfig& config);
  Node(const NodeConfig& config, Parts parts);

  // ---- reactor thread only ----
  void run() noexcept;
  [[nodiscard]] std::optional<Duration> wait_max() const;  // of the next wait; nullopt: for ever
  void handle_ready(std::span<const Ready> ready, Budget& blocks, Instant now);
  void decide(Instant now);
  void perform_some(Budget& budget, Instant now);
  void perform_all(Instant now);
  void perform(Action& action, Budget& budget, Instant now);
  void end_turn(Instant started);

  NodeConfig config_;
  Parts parts_;
  std::vector<std::string> rails_;
  CommandQueue commands_;
  Completion completion_;
  Engine engine_;
  Trace trace_;
  ObjectTrace object_trace_;
  TurnCounters turns_;
  Instant turn_started_;
  Instant turn_ended_;
  Instant published_;
  bool has_actions_left_ = false;
  Waiting waiting_ = Waiting::kAsleep;
  std::once_flag stopped_;
  std::thread thread_;
};

}  // namespace hoplite
