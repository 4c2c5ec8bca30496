// SPDX-License-Identifier: Apache-2.0
// All decisions of one node, and none of its effects. Single-threaded; the same inputs give the
// same actions, in the simulator and on sockets (design decision 1).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "plan/engine/waits.h"
#include "plan/messages.h"

namespace hoplite {

// Counters that node/ publishes and tests read. Monotonic, except the sizes.
struct EngineStats {
  std::uint64_t objects = 0, arena_bytes_used = 0, arena_bytes_pinned = 0;
  std::uint64_t arena_bytes_orphaned = 0, waiters = 0;
  std::uint64_t draining = 0, sole_copies = 0;
  // Bytes in the file of spilled objects; bytes written and read there; its errors.
  std::uint64_t spill_bytes = 0, spill_bytes_written = 0, spill_bytes_read = 0, spill_errors = 0;
  std::uint64_t rebuilds = 0;         // objects made here of a base and deltas
  std::uint64_t rebuilds_failed = 0;  // that were fetched whole in the end, or made elsewhere
  std::uint64_t excerpts = 0;         // parts of objects that were made here
  std::uint64_t excerpts_wanted = 0;  // that clients here wait for, and questions what sources are
  std::uint64_t directory_entries = 0, view_epoch = 0, members = 0;
  std::uint64_t blocks_sent = 0, blocks_received = 0, blocks_folded = 0, bytes_sent = 0;
  std::uint64_t blocks_combined = 0;    // of several sources, sent as one
  std::uint64_t members_looked_at = 0;  // of reduces by their owners: a few times each
  std::uint64_t grants = 0, regrants = 0, edges_moved = 0, pushes = 0, evictions = 0,
                reduces_committed = 0;
  // Reduces whose tree has more than one level; their branches; members per node of the last tree.
  std::uint64_t reduces_branched = 0, reduce_branches = 0, reduce_degree = 0;
  std::uint64_t messages_parked = 0, messages_stale = 0;
  // Sizes of the tables that peers and clients make grow (docs/internals/growth.md).
  std::uint64_t parked_messages = 0, parked_bytes = 0;
  std::uint64_t deletions_open = 0;        // asked for here, or under way in this shard
  std::uint64_t deletions_remembered = 0;  // by this node and by its shard
  std::uint64_t objects_recent = 0;        // whose bytes went, or whose owners died, lately
  std::uint64_t questions = 0;             // to homes, and not answered yet
  std::uint64_t reduces = 0;               // planned, called, folded or remembered here
  std::uint64_t channels = 0;              // whose newest version or term is kept here
  std::uint64_t channel_requests = 0;      // of clients here, and not answered yet
  std::uint64_t actions = 0;               // decided and not done yet
};

class Engine {
 public:
  Engine(const EngineConfig& config, std::uint64_t seed);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Node::run calls these on the reactor thread and then performs the actions; so does the
  // simulator. The engine decides once what follows from all blocks of a turn, before it handles
  // or performs anything else.
  void handle_command(Command command, Instant now);
  void handle_io(IoEvent event, Instant now);
  void handle_timeout(Instant now);
  [[nodiscard]] std::optional<Action> poll_action();  // call until empty after every handle_*
  [[nodiscard]] std::optional<Instant> poll_timeout() const;

  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] std::vector<Wait> waits() const;
  // Aborts when the tables contradict each other. Cost: O(everything); for tests and debug builds.
  void check_invariants() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace hoplite
