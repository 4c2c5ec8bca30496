// One world as one member sees it: an edge to each other member, what is under way on them, and
// how it ended. It breaks as a whole, at the first end of a member that is noticed, and tells the
// others; no other world hears of it. Any thread: one lock, held for a turn at most, never while
// waiting. An operation is carried by its caller as far as it goes; then by the progress thread.
//  - An operation has succeeded if and only if its state says kDone; nothing succeeds after the
//  end.
//  - The caller's memory is not touched once the operation's state is not kPending.
// MultiWorld; design decision 22. SPDX-License-Identifier: Apache-2.0
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
#include "world/completions.h"
#include "world/edge.h"
#include "world/operation.h"
#include "world/progress.h"

namespace hoplite::worlds {

// What a caller waits for. Shared by the caller and the world.
struct Operation {
  enum class State : std::uint8_t { kPending, kDone, kBroken, kCancelled };
  OperationId id;
  Rank peer;
  std::atomic<State> state = State::kPending;
  bool had_moved = false;  // once it is kCancelled: has_moved() until then
  // Of a receive, once it is done.
  Content content;
  std::unique_ptr<std::byte[]> data;
  // Who is to be told, each by its token. Of the world, by its lock.
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

  // What a member is reached by. REQUIRES: every rank once, not our own.
  [[nodiscard]] Result<void> add_edge(Rank peer, std::unique_ptr<Pipe> pipe);

  // Nothing: it is done. An error is the caller's mistake.
  [[nodiscard]] Result<OperationHandle> send(Rank peer, Content content,
                                             std::span<const std::byte> bytes);
  [[nodiscard]] Result<OperationHandle> receive(Rank peer, Wanted wanted);
  // Returns whether it was still pending.
  bool cancel(Operation& operation);
  [[nodiscard]] bool wait(const Operation& operation, Duration timeout);
  // False: it has ended, and nothing will come.
  [[nodiscard]] bool notify(Operation& operation, std::shared_ptr<Completions> completions,
                            std::uint64_t token);
  // Whether any of its bytes have; of one that was taken back, whether any had. What had not moved
  // then never will.
  [[nodiscard]] bool has_moved(const Operation& operation);

  // What is carried beside the edges: a companion ends it. It can't be taken back.
  void attach(std::shared_ptr<Companion> companion);
  [[nodiscard]] OperationHandle begin_beside();
  void end_beside(OperationId id, Operation::State state);  // kDone: unless the world has ended

  void abort(Cause cause, const std::string& text);
  // Goodbye to all, after what is to be sent; done when it has reached them.
  [[nodiscard]] OperationHandle leave();
  // Gives all descriptors and memory back. What is pending is broken.
  void close();

  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] const WorldName& name() const { return name_; }
  [[nodiscard]] std::optional<End> end();
  // After leave or an end: whether all have our last word, or are gone.
  [[nodiscard]] bool is_seen_off();
  [[nodiscard]] std::vector<Rank> left();
  [[nodiscard]] const char* transport(Rank peer);  // nullptr: there is no edge

  // By the progress thread. Each returns whether it wants to be called again at once.
  [[nodiscard]] bool handle_ready(Rank peer);
  // Looks after edges that callers have carried. Returns whether any is still in use by them.
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
  [[nodiscard]] bool see_off(Edge& edge);
  void end_operation(Operation& operation, Operation::State state);
  void break_by(const Edge* by, End end);
  void hear_end(Edge& edge, const Error& error);
  void hear_goodbye(Edge& edge);
  void end_open();  // nothing of what is under way will come
  void retire(Edge& edge);
  void check_drained();
  [[nodiscard]] std::string title() const;

  Progress& progress_;
  const std::uint64_t number_;
  const WorldName name_;

  std::mutex mutex_;
  std::condition_variable ended_;  // of any operation
  std::map<Rank, std::unique_ptr<Edge>> edges_;
  std::map<OperationId, OperationHandle> open_;
  std::map<OperationId, OperationHandle> beside_;
  std::vector<std::shared_ptr<Companion>> companions_;
  std::optional<Outcome> mine_;  // of the operation that its caller carries right now
  OperationId carried_;
  std::uint64_t operations_ = 0;
  std::optional<End> end_;
  OperationHandle leaving_;
  bool is_closed_ = false;
};

}  // namespace hoplite::worlds
