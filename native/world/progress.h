// SPDX-License-Identifier: Apache-2.0
// The one thread of a process that moves bytes of all its worlds when no caller does, and that
// learns of peers' deaths. It sleeps while nothing waits. Any thread may call it.
// Design decision 22g.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/liveness/liveness.h"
#include "io/sockets/poller.h"
#include "io/sockets/stream.h"
#include "world/edges/operation.h"
#include "world/pipes/completions.h"

namespace hoplite::worlds {

class World;
class Pipe;

using WatchId = Id<struct WatchTag, std::uint64_t>;  // names a connection that shows a death

struct WorldEvent {
  enum class Kind : std::uint8_t {
    kSuspect = 1,     // a member has sent nothing for a while
    kRecovered = 2,   // a suspected member sends again
    kBroken = 3,      // the world has broken by `cause`
    kPeerLeft = 4,    // a member has sent Goodbye
    kWatchEnded = 5,  // a watch has ended by `cause`; 0: the other end has sent Goodbye
  };
  Kind kind = Kind::kBroken;
  std::uint64_t world = 0;
  WatchId watch{};
  std::optional<Rank> rank = std::nullopt;
  std::uint8_t cause = 0;
  std::string text{};
  Instant at{};
};

class Progress {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Progress>> start(const LivenessLimits& limits);
  ~Progress();  // closes all worlds
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  [[nodiscard]] Result<std::shared_ptr<World>> open_world(std::string name, std::uint64_t epoch,
                                                          Rank rank, std::uint32_t size);
  // Takes over a connection that both ends watch. REQUIRES: its TLS session, if it has one, is
  // open.
  [[nodiscard]] Result<WatchId> watch(Stream connection);
  // Sends Goodbye and forgets the watch. Call it for each watch, also after the watch has ended.
  void forget(WatchId watch);
  // Makes the end of the watch break the world; at once, if a death has ended the watch already.
  void add_dependent(const std::shared_ptr<World>& world, Rank peer, WatchId watch);

  [[nodiscard]] int events_fd() const { return events_.fd(); }
  [[nodiscard]] std::vector<WorldEvent> take_events() { return events_.take(); }
  void close();  // idempotent
  // True in a forked child of the process that started it. The parent owns everything here.
  [[nodiscard]] bool is_forked() const;

  // For World, which holds its own lock.
  [[nodiscard]] Result<std::uint64_t> register_edge(const World& world, Rank peer,
                                                    const Pipe& pipe);
  void change_interest(const Pipe& pipe, std::uint64_t token, Interest interest);
  void unregister_edge(const Pipe& pipe, std::uint64_t token);
  void schedule_rest_visit();         // an edge rests: visit it within kRestEvery
  void revisit(std::uint64_t token);  // visits the edge again: it has more to do
  void remove(const World& world);
  void push_event(WorldEvent event);

 private:
  struct Dependent {
    std::weak_ptr<World> world;
    Rank peer;
  };
  struct Watch {
    std::vector<Dependent> dependents;
    std::optional<Cause> ended;  // set if a death or a cut has ended it
  };
  using Lock = std::lock_guard<std::mutex>;

  Progress(Poller poller, Liveness liveness, Duration cut, UniqueFd doorbell);
  void run() noexcept;
  void visit(std::uint64_t token);
  void handle_liveness();
  void handle_liveness_event(const LivenessEvent& event);
  void visit_resting();

  Poller poller_;
  Outbox<WorldEvent> events_;
  const pid_t pid_;
  const Duration cut_;

  // Guards the members below, except for the atomics and liveness_. A thread may take it while it
  // holds a world's lock, but not the other way round.
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<World>> worlds_;
  std::map<std::uint64_t, std::pair<std::uint64_t, Rank>> edges_;  // token -> world, peer
  std::map<WatchId, Watch> watches_;
  std::deque<std::uint64_t> again_;
  std::uint64_t numbers_;
  bool is_closed_ = false;

  std::mutex liveness_mutex_;  // a thread may take mutex_ while it holds this one
  std::unique_ptr<Liveness> liveness_;

  std::atomic<bool> has_rest_ = false;
  std::atomic<bool> is_running_ = true;
  std::thread thread_;
};

}  // namespace hoplite::worlds
