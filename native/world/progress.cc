// SPDX-License-Identifier: Apache-2.0
#include "world/progress.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "io/read_clock.h"
#include "io/signals_blocked.h"
#include "io/sockets/system_error.h"
#include "io/sockets/tcp_socket.h"
#include "world/pipes/pipe.h"
#include "world/world.h"

namespace hoplite::worlds {
namespace {

constexpr std::uint64_t kLivenessToken = 1;
constexpr Incarnation kOnlyLife{1};  // each watch has its own node number, so one life is enough
constexpr RailId kOnlyRail{0};
// How long an edge stays with its callers after their last use. Then the progress thread reads it
// again. It costs a process that moves messages a hundred looks a second at most. Design decision
// 22g.
constexpr Duration kRestEvery = 10_ms;

std::uint8_t cause_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kDead:
      return static_cast<std::uint8_t>(Cause::kPeerDied);
    case Verdict::kUnreachable:
    case Verdict::kRailLost:
    case Verdict::kRailCut:  // a watch has only one rail
      return static_cast<std::uint8_t>(Cause::kUnreachable);
    case Verdict::kFrozen:
      return static_cast<std::uint8_t>(Cause::kFrozen);
    default:
      return 0;
  }
}

bool is_tcp(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain != AF_UNIX;
}

}  // namespace

Result<std::unique_ptr<Progress>> Progress::start(const LivenessLimits& limits) {
  auto poller = Poller::open();
  if (!poller) return poller.error();
  auto doorbell = Doorbell::open();
  if (!doorbell) return doorbell.error();
  auto liveness = Liveness::start(limits);
  if (!liveness) return liveness.error();
  if (auto added = poller->add(liveness->fd(), kLivenessToken, Interest::kRead); !added) {
    return added.error();
  }
  auto progress = std::unique_ptr<Progress>(
      new Progress(std::move(*poller), std::move(*liveness), limits.cut, std::move(*doorbell)));
  const SignalsBlocked guard;
  progress->thread_ = std::thread(&Progress::run, progress.get());
  return progress;
}

Progress::Progress(Poller poller, Liveness liveness, Duration cut, UniqueFd doorbell)
    : poller_(std::move(poller)),
      events_(std::move(doorbell)),
      pid_(::getpid()),
      cut_(cut),
      numbers_(kLivenessToken),
      liveness_(std::make_unique<Liveness>(std::move(liveness))) {}

Progress::~Progress() { close(); }

bool Progress::is_forked() const { return ::getpid() != pid_; }

void Progress::close() {
  if (is_forked()) {  // the threads and their resources belong to the parent
    if (thread_.joinable()) thread_.detach();
    [[maybe_unused]] const Liveness* const theirs = liveness_.release();
    return;
  }
  std::map<std::uint64_t, std::shared_ptr<World>> worlds;
  {
    const Lock lock(mutex_);
    if (std::exchange(is_closed_, true)) return;
    worlds = worlds_;
  }
  for (const auto& [number, world] : worlds) world->close();
  is_running_ = false;
  poller_.wake();
  thread_.join();
  const Lock lock(liveness_mutex_);
  liveness_.reset();
}

Result<std::shared_ptr<World>> Progress::open_world(std::string name, std::uint64_t epoch,
                                                    Rank rank, std::uint32_t size) {
  const Lock lock(mutex_);
  if (is_closed_) return Error{Code::kCancelled, "the manager of worlds was closed"};
  const std::uint64_t number = ++numbers_;
  auto world =
      std::make_shared<World>(*this, number, WorldName{std::move(name), epoch, rank, size});
  worlds_.emplace(number, world);
  return world;
}

// ---- watches ----

Result<WatchId> Progress::watch(Stream connection) {
  const int flags = ::fcntl(connection.fd(), F_GETFL);
  if (flags < 0 || ::fcntl(connection.fd(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_error("fcntl of a watch");
  }
  if (is_tcp(connection.fd())) {
    if (auto set = set_liveness_options(connection.fd(), cut_); !set) return set.error();
  }
  const Lock liveness_lock(liveness_mutex_);
  if (liveness_ == nullptr) return Error{Code::kCancelled, "the manager of worlds was closed"};
  WatchId watch;
  {
    const Lock lock(mutex_);  // its entry comes before its first event
    watch = WatchId{++numbers_};
    watches_[watch];
  }
  liveness_->watch(NodeId{watch.value}, kOnlyLife, kOnlyRail, std::move(connection));
  return watch;
}

void Progress::forget(WatchId watch) {
  {
    const Lock lock(mutex_);
    if (watches_.erase(watch) == 0) return;
  }
  const Lock lock(liveness_mutex_);
  if (liveness_ != nullptr) liveness_->forget(NodeId{watch.value}, kOnlyLife);
}

void Progress::add_dependent(const std::shared_ptr<World>& world, Rank peer, WatchId watch) {
  std::optional<Cause> ended;
  {
    const Lock lock(mutex_);
    const auto found = watches_.find(watch);
    if (found == watches_.end()) return;
    Watch& watched = found->second;
    std::erase_if(watched.dependents, [](const Dependent& each) { return each.world.expired(); });
    watched.dependents.push_back({world, peer});
    ended = watched.ended;
  }
  if (ended) world->handle_peer_end(peer, *ended);
}

void Progress::handle_liveness() {
  std::vector<LivenessEvent> events;
  {
    const Lock lock(liveness_mutex_);
    if (liveness_ == nullptr) return;
    events = liveness_->take_events();
  }
  for (const LivenessEvent& event : events) handle_liveness_event(event);
}

void Progress::handle_liveness_event(const LivenessEvent& event) {
  const WatchId watch{event.node.value};
  const std::uint8_t cause = cause_of(event.verdict);
  std::vector<Dependent> dependents;
  {
    const Lock lock(mutex_);
    const auto found = watches_.find(watch);
    if (found == watches_.end()) return;  // forget() came first
    dependents = found->second.dependents;
    if (cause != 0) found->second.ended = static_cast<Cause>(cause);
  }
  for (const Dependent& dependent : dependents) {
    const auto world = dependent.world.lock();
    if (world == nullptr) continue;
    if (cause != 0) {
      world->handle_peer_end(dependent.peer, static_cast<Cause>(cause));
    } else if (!is_final(event.verdict)) {
      push_event({.kind = event.verdict == Verdict::kSuspect ? WorldEvent::Kind::kSuspect
                                                             : WorldEvent::Kind::kRecovered,
                  .world = world->number(),
                  .rank = dependent.peer});
    }
  }
  if (is_final(event.verdict) || cause != 0) {
    push_event({.kind = WorldEvent::Kind::kWatchEnded, .watch = watch, .cause = cause});
  }
}

// ---- edges ----

Result<std::uint64_t> Progress::register_edge(const World& world, Rank peer, const Pipe& pipe) {
  std::uint64_t token = 0;
  {
    const Lock lock(mutex_);
    if (is_closed_) return Error{Code::kCancelled, "the manager of worlds was closed"};
    token = ++numbers_;
    edges_.emplace(token, std::pair(world.number(), peer));
  }
  auto added = poller_.add(pipe.fd(), token, Interest::kRead);
  if (added) return token;
  const Lock lock(mutex_);
  edges_.erase(token);
  return added.error();
}

void Progress::change_interest(const Pipe& pipe, std::uint64_t token, Interest interest) {
  poller_.change(pipe.fd(), token, interest);
}

void Progress::unregister_edge(const Pipe& pipe, std::uint64_t token) {
  poller_.remove(pipe.fd());  // closing is not enough when a forked child holds it open
  const Lock lock(mutex_);
  edges_.erase(token);
}

void Progress::schedule_rest_visit() {
  if (!has_rest_.exchange(true)) poller_.wake();
}

void Progress::revisit(std::uint64_t token) {
  {
    const Lock lock(mutex_);
    again_.push_back(token);
  }
  poller_.wake();
}

void Progress::remove(const World& world) {
  std::shared_ptr<World> last;
  const Lock lock(mutex_);
  const auto found = worlds_.find(world.number());
  if (found == worlds_.end()) return;
  last = std::move(found->second);
  worlds_.erase(found);
}

void Progress::push_event(WorldEvent event) {
  event.at = read_clock();
  events_.push(std::move(event));
}

// ---- the thread ----

void Progress::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "hoplite-world");
  std::optional<Instant> look_at;
  bool has_more = false;
  while (is_running_) {
    if (has_rest_ && !look_at) look_at = read_clock() + kRestEvery;
    std::optional<Duration> timeout;
    if (look_at) timeout = std::max(*look_at - read_clock(), Duration{0});
    if (has_more) timeout = Duration{0};
    for (const Ready& ready : poller_.wait(timeout)) {
      if (ready.token == kLivenessToken) {
        handle_liveness();
      } else {
        visit(ready.token);
      }
    }
    std::deque<std::uint64_t> again;
    {
      const Lock lock(mutex_);
      again.swap(again_);
    }
    for (const std::uint64_t token : again) visit(token);
    if (look_at && read_clock() >= *look_at) {
      look_at.reset();
      visit_resting();
    }
    {
      const Lock lock(liveness_mutex_);
      if (liveness_ != nullptr && !liveness_->flush()) has_rest_ = true;
    }
    const Lock lock(mutex_);
    has_more = !again_.empty();
  }
}

void Progress::visit(std::uint64_t token) {
  std::shared_ptr<World> world;
  Rank peer;
  {
    const Lock lock(mutex_);
    const auto edge = edges_.find(token);
    if (edge == edges_.end()) return;
    peer = edge->second.second;
    const auto found = worlds_.find(edge->second.first);
    if (found == worlds_.end()) return;
    world = found->second;
  }
  if (!world->handle_ready(peer)) return;
  const Lock lock(mutex_);
  again_.push_back(token);
}

void Progress::visit_resting() {
  has_rest_ = false;
  std::vector<std::shared_ptr<World>> worlds;
  {
    const Lock lock(mutex_);
    for (const auto& [number, world] : worlds_) worlds.push_back(world);
  }
  bool is_used = false;
  for (const auto& world : worlds) is_used = world->handle_rest() || is_used;
  if (is_used) has_rest_ = true;
}

}  // namespace hoplite::worlds
