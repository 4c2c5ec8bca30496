// SPDX-License-Identifier: Apache-2.0
// The only way out of the reactor to other threads: events for the control plane, and counters as
// they were last published. Owns both under a mutex; only the reactor writes, any thread reads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "io/links/links.h"
#include "io/local_port.h"
#include "node/node_event.h"
#include "plan/engine/engine.h"

namespace hoplite {

struct TurnCounters {
  std::uint64_t turns = 0, longest_turn_us = 0, turns_over_10ms = 0;
};
struct NodeStats {
  std::uint64_t arena_bytes = 0;
  EngineStats engine;
  LinkCounters links;
  LocalCounters clients;
  TurnCounters turns;
};
// Every counter under its own name; those of io/ begin with "link_" or "client_".
[[nodiscard]] std::map<std::string, std::uint64_t> counters_by_name(const NodeStats& stats);

class Completion {
 public:
  // 1024. If the control plane takes no events, the oldest are lost. The peers stay dead, so the
  // other members report them again.
  static constexpr std::size_t kEventsWaitingMax = 1024;

  // Reactor only.
  void publish(const NodeStats& stats);
  void push_event(const NodeEvent& event);
  void finish_list(RequestId list, Listing listing);

  // Any thread.
  void close();  // wakes all threads that wait here
  [[nodiscard]] std::optional<NodeEvent> next_event(Duration timeout);
  [[nodiscard]] NodeStats stats() const;
  [[nodiscard]] RequestId begin_list();
  // Waits for the answer to `list`; returns nothing after close(). REQUIRES: `list` comes from
  // begin_list() and is taken once.
  [[nodiscard]] Listing take_list(RequestId list);

 private:
  mutable std::mutex mutex_;
  std::condition_variable has_event_;
  std::condition_variable has_list_;
  std::deque<NodeEvent> events_;
  bool is_closed_ = false;
  NodeStats stats_;
  std::uint64_t last_list_ = 0;
  std::map<RequestId, std::optional<Listing>> lists_;  // asked for
};

}  // namespace hoplite
