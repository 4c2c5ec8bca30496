// SPDX-License-Identifier: Apache-2.0
// One world as one member sees it: an edge to each other member, the operations in flight, and how
// the world ended. It breaks as a whole at the first end of a member that it notices, and tells the
// other members. Other worlds are not affected. Any thread: one lock, held for a turn at most and
// never while waiting. The caller's thread carries an operation first, then the progress thread.
//  - An operation has succeeded if and only if its state is kDone. Nothing succeeds after the end.
//  - The caller's memory is not touched once the operation's state is not kPending.
// MultiWorld; design decision 22.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "world/companion.h"
#include "world/edges/edge.h"
#include "world/edges/operation.h"
#include "world/pipes/completions.h"
#include "world/progress.h"

namespace hoplite::worlds {

// One operation that a caller waits for. Shared by the caller and the world.
struct Operation {
  enum class State : std::uint8_t { kPending, kDone, kBroken, kCancelled };
  OperationId id;
  Rank peer;
  std::atomic<State> state = State::kPending;
  bool had_moved = false;  // once it is kCancelled: has_moved() at that moment
  // Set when a receive is done.
  Content content;
  std::unique_ptr<std::byte[]> data;
  // Queues that get the paired token at the operation's end. Guarded by the world's lock.
  std::vector<std::pair<std::shared_ptr<Completions>, std::uint64_t>> waiters;
};
using OperationHandle = std::shared_ptr<Operation>;

struct WorldName {
  std::string name;
  std::uint64_t epoch = 0;
  Rank rank;
  std::uint32_t size = 0;
};

class World {
 public:
  World(Progress& progress, std::uint64_t number, WorldName name);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Adds the edge to `peer`. Returns an error for this member's own rank, or a rank that has an
  // edge.
  [[nodiscard]] Result<void> add_edge(Rank peer, std::unique_ptr<Pipe> pipe);

  // Returns null if the operation is done already. An error means that the caller's arguments are
  // wrong, or that this member has left the world.
  [[nodiscard]] Result<OperationHandle> send(Rank peer, Content content,
                                             std::span<const std::byte> bytes);
  [[nodiscard]] Result<OperationHandle> receive(Rank peer, Wanted wanted);
  // Returns whether it cancelled the operation. A pending operation of a companion breaks the world
  // instead.
  bool cancel(Operation& operation);
  [[nodiscard]] bool wait(const Operation& operation, Duration timeout);
  // Returns false if the operation has ended; `completions` then gets nothing.
  [[nodiscard]] bool notify(Operation& operation, std::shared_ptr<Completions> completions,
                            std::uint64_t token);
  // True if any bytes of the operation have moved. A cancelled operation keeps the answer that it
  // had when it was cancelled.
  [[nodiscard]] bool has_moved(const Operation& operation);

  // Operations that a companion carries and ends. Cancelling one breaks the world.
  void attach(std::shared_ptr<Companion> companion);
  [[nodiscard]] OperationHandle begin_companion_operation();
  // Ends the operation, except when `state` is kDone and the world has ended.
  void end_companion_operation(OperationId id, Operation::State state);

  void abort(Cause cause, const std::string& text);
  // Sends Goodbye to each member after all pending sends. It is done when each has received it.
  [[nodiscard]] OperationHandle leave();
  // Releases all descriptors and memory. Pending operations break.
  void close();

  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] const WorldName& name() const { return name_; }
  [[nodiscard]] std::optional<End> end();
  // True if each member has this one's last frame, or is gone. REQUIRES: leave() or an end came
  // first.
  [[nodiscard]] bool is_goodbye_delivered();
  [[nodiscard]] std::vector<Rank> departed_ranks();
  [[nodiscard]] const char* transport(Rank peer);  // nullptr if there is no edge

  // The progress thread calls the rest. Returns whether the edge has more to do at once.
  [[nodiscard]] bool handle_ready(Rank peer);
  // Gives resting edges back to the poller, except those that a caller has used since the last
  // call. Returns true if any was used.
  [[nodiscard]] bool handle_rest();
  void handle_peer_end(Rank peer, Cause cause);

 private:
  using Lock = std::lock_guard<std::mutex>;
  enum class Carrier : std::uint8_t { kCaller, kProgress };

  [[nodiscard]] Result<void> check(Rank peer) const;
  [[nodiscard]] OperationHandle begin(Edge* edge, OperationId id, Rank peer);
  [[nodiscard]] bool carry(Edge& edge, Carrier carrier);
  [[nodiscard]] Result<void> move_bytes(Edge& edge, Carrier carrier);
  void read_last_words(Edge& edge);
  bool settle(Edge& edge);  // returns whether an operation has ended
  [[nodiscard]] bool arm(Edge& edge, bool may_rest);
  [[nodiscard]] bool await_answer(Edge& edge, bool has_ended);
  [[nodiscard]] bool finish_goodbye(Edge& edge);
  void end_operation(Operation& operation, Operation::State state);
  void break_world(const Edge* by, End end);
  void handle_edge_error(Edge& edge, const Error& error);
  void handle_goodbye(Edge& edge);
  void break_pending();  // breaks all pending operations of the edges
  void unregister(Edge& edge);
  void check_drained();
  [[nodiscard]] std::string title() const;

  Progress& progress_;
  const std::uint64_t number_;
  const WorldName name_;

  std::mutex mutex_;
  std::condition_variable ended_;  // signalled at the end of any operation
  std::map<Rank, std::unique_ptr<Edge>> edges_;
  std::map<OperationId, OperationHandle> open_;
  std::map<OperationId, OperationHandle> companion_operations_;
  std::vector<std::shared_ptr<Companion>> companions_;
  std::optional<Outcome> carried_outcome_;  // of the operation that its caller carries right now
  OperationId carried_;
  std::uint64_t operations_ = 0;
  std::optional<End> end_;
  OperationHandle leaving_;
  bool is_closed_ = false;
};

}  // namespace hoplite::worlds
