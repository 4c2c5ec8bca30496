// SPDX-License-Identifier: Apache-2.0
// The open bulk connections that one thread serves: sends and receives their blocks, by turns and
// within budgets. Owns the connections from the hand-over to their end. It decides nothing: an end
// is reported, and the link's rules say what follows. One thread at a time. Design decision 19.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "io/links/link_counters.h"
#include "io/links/tcp_rail.h"
#include "io/liveness/link_limits.h"
#include "io/sockets/poller.h"
#include "plan/messages.h"

namespace hoplite {

// A connection for blocks whose peer has proven itself. REQUIRES: every byte that was read is used
// up, and no poller has its descriptor.
struct BulkConnection {
  std::uint64_t token = 0;  // also the poller's
  NodeId peer;
  RailId rail;
  RailConnection wire;
};

struct BulkEnd {  // the connection has failed: nothing is read or sent until end() closes it
  std::uint64_t token = 0;
  NodeId peer;
  RailId rail;
  Error why;
};

struct BulkNews {
  std::vector<IoEvent> events;  // before the ends
  std::vector<BulkEnd> ends;
  std::uint64_t came_bytes = 0;  // to threads other than the reactor
  [[nodiscard]] bool is_empty() const { return events.empty() && ends.empty(); }
  void append(BulkNews more) {
    std::ranges::move(more.events, std::back_inserter(events));
    std::ranges::move(more.ends, std::back_inserter(ends));
    came_bytes += more.came_bytes;
  }
};

class BulkPort {
 public:
  // REQUIRES: the poller outlives this.
  BulkPort(const LinkLimits& limits, Poller& poller) : limits_(limits), poller_(&poller) {}
  BulkPort(const BulkPort&) = delete;  // connections point to its counters
  BulkPort& operator=(const BulkPort&) = delete;

  void add(BulkConnection added, Instant now);
  // Closes the connection without a BulkEnd. Blocks that are queued are void.
  void end(std::uint64_t token);
  [[nodiscard]] bool serves(std::uint64_t token) const { return connections_.contains(token); }
  // Void if the connection has ended.
  void queue_block(std::uint64_t token, const SendBlock& block);

  // ---- a turn ----
  // Connections share the budget by turns, because the poller reports them in the same order each
  // time and the first could use up every turn.
  void handle_ready(std::span<const Ready> ready, Budget& budget, Instant now);
  void flush(Budget& budget, Instant now);  // what has been queued
  [[nodiscard]] bool must_flush() const { return !dirty_.empty(); }
  [[nodiscard]] BulkNews take_news() { return std::exchange(news_, {}); }
  [[nodiscard]] const LinkCounters& counters() const { return counters_; }

 private:
  struct Connection {
    RailConnection wire;
    NodeId peer;
    RailId rail;
    Instant deadline;  // for the kernel to take of a long queue
    Interest interest = Interest::kRead;
    bool is_dirty = false;    // in dirty_
    bool has_failed = false;  // and waits for end()
  };
  void fail(std::uint64_t token, Connection& connection, const Error& why);
  void write_out(std::uint64_t token, Budget& budget, Instant now);
  void mark_dirty(std::uint64_t token, Connection& connection);

  LinkLimits limits_;
  Poller* poller_;
  LinkCounters counters_;
  std::map<std::uint64_t, Connection> connections_;  // by token
  std::vector<std::uint64_t> dirty_;
  std::uint64_t next_read_ = 0, next_written_ = 0;  // tokens whose blocks come first next turn
  BulkNews news_;
};

}  // namespace hoplite
