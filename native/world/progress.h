// The one thread of a process that moves bytes of worlds when no caller does, and hears of peers
// that die: for all worlds, however many. Sleeps while nothing waits. Any thread may call it.
// Design decision 22. SPDX-License-Identifier: Apache-2.0
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
#include "io/liveness.h"
#include "io/poller.h"
#include "io/stream.h"
#include "world/completions.h"
#include "world/operation.h"

namespace hoplite::worlds {

class World;
class Pipe;

using WatchId = Id<struct WatchTag, std::uint64_t>;  // of a connection that sees a process die

struct WorldEvent {
  enum class Kind : std::uint8_t {
    kSuspect = 1,     // a member says nothing for a while
    kRecovered = 2,   // and again something
    kBroken = 3,      // the world, by `cause`
    kPeerLeft = 4,    // a member said Goodbye
    kWatchEnded = 5,  // by `cause`; 0: the other end said Goodbye
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
  // Takes over a connection of which the other end says the same. REQUIRES: a session of TLS that
  // it has is open.
  [[nodiscard]] Result<WatchId> watch(Stream connection);
  void forget(WatchId watch);  // says Goodbye; to be called of each, also when it has ended
  // From now on the end of the watch breaks the world; at once, if a death has ended it already.
  void depend(const std::shared_ptr<World>& world, Rank peer, WatchId watch);

  [[nodiscard]] int events_fd() const { return events_.fd(); }
  [[nodiscard]] std::vector<WorldEvent> take_events() { return events_.take(); }
  void close();  // idempotent
  // Whether this is a child of the process that started it: nothing here is the child's.
  [[nodiscard]] bool is_forked() const;

  // For World, which holds its own lock.
  [[nodiscard]] Result<std::uint64_t> enroll(const World& world, Rank peer, const Pipe& pipe);
  void change(const Pipe& pipe, std::uint64_t token, Interest interest);
  void strike_off(const Pipe& pipe, std::uint64_t token);
  void note_rest();                      // an edge is carried by its callers: look after it later
  void call_again(std::uint64_t token);  // there is more to do on this edge
  void remove(const World& world);
  void say(WorldEvent event);

 private:
  struct Dependent {
    std::weak_ptr<World> world;
    Rank peer;
  };
  struct Watch {
    std::vector<Dependent> dependents;
    std::optional<Cause> ended;  // by a death
  };
  using Lock = std::lock_guard<std::mutex>;

  Progress(Poller poller, Liveness liveness, Duration cut, UniqueFd doorbell);
  void run() noexcept;
  void visit(std::uint64_t token);
  void hear_liveness();
  void hear(const LivenessEvent& event);
  void look_after_rest();

  Poller poller_;
  Outbox<WorldEvent> events_;
  const pid_t pid_;
  const Duration cut_;

  std::mutex mutex_;  // of all below but the atomics; a world's lock may be held, not the reverse
  std::map<std::uint64_t, std::shared_ptr<World>> worlds_;
  std::map<std::uint64_t, std::pair<std::uint64_t, Rank>> edges_;  // token -> world, peer
  std::map<WatchId, Watch> watches_;
  std::deque<std::uint64_t> again_;
  std::uint64_t numbers_;
  bool is_closed_ = false;

  std::mutex liveness_mutex_;
  std::unique_ptr<Liveness> liveness_;

  std::atomic<bool> has_rest_ = false;
  std::atomic<bool> is_running_ = true;
  std::thread thread_;
};

}  // namespace hoplite::worlds
