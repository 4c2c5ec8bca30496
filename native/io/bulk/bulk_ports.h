// SPDX-License-Identifier: Apache-2.0
// All open bulk connections of a node, as the reactor sees them: one BulkPort on the reactor, or as
// many threads as the option io_threads says. A connection stays with its thread, which is the one
// that had the fewest. Reactor thread only. Design decision 19e.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "io/bulk/bulk_port.h"
#include "io/bulk/bulk_thread.h"

namespace hoplite {

class BulkPorts {
 public:
  // Starts limits.io_threads threads. REQUIRES: the poller outlives this; it is the reactor's.
  [[nodiscard]] static Result<BulkPorts> start(const LinkLimits& limits, Poller& poller);

  void add(BulkConnection added, Instant now);
  // True of a connection whose events the reactor's poller reports.
  [[nodiscard]] bool serves(std::uint64_t token) const { return port_->serves(token); }
  // Void if the connection has ended. It leaves with the next flush.
  void queue_block(std::uint64_t token, const SendBlock& block);
  // Closes the connection. Then take_news() has all news of it, and none comes later. Blocks that
  // are queued are void. Cost with threads: a turn of the connection's thread.
  void end(std::uint64_t token);

  // ---- a turn ----
  void handle_ready(std::span<const Ready> ready, Budget& budget, Instant now);
  void flush(Budget& budget, Instant now);
  [[nodiscard]] BulkNews take_news();
  [[nodiscard]] LinkCounters counters() const;

 private:
  struct Thread {
    std::unique_ptr<BulkThread> thread;
    std::size_t connections = 0;
  };
  explicit BulkPorts(std::unique_ptr<BulkPort> port) : port_(std::move(port)) {}

  std::unique_ptr<BulkPort> port_;  // of the reactor; without a connection if there are threads
  std::vector<Thread> threads_;
  std::map<std::uint64_t, std::size_t> thread_by_token_;
};

}  // namespace hoplite
