// SPDX-License-Identifier: Apache-2.0
// The only way into the reactor for other threads: commands of the control plane, and the order to
// stop. Owns a queue under a mutex; any thread may push, only the reactor takes. Pushing wakes the
// reactor.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "io/sockets/poller.h"
#include "plan/messages.h"

namespace hoplite {

class CommandQueue {
 public:
  // 64. Views are rare. If they arrive faster than turns, the oldest is dropped, because a later
  // view replaces it. Other commands are bounded by the callers that wait for their answers.
  static constexpr std::size_t kViewsMax = 64;

  explicit CommandQueue(const Poller& poller) : poller_(&poller) {}  // outlives this

  void push(Command command);
  void stop();

  // Reactor only.
  [[nodiscard]] std::vector<Command> take(std::size_t count_max);
  [[nodiscard]] bool is_stopping() const { return is_stopping_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_empty() const;

 private:
  const Poller* poller_;
  mutable std::mutex mutex_;
  std::deque<Command> waiting_;
  std::atomic<bool> is_stopping_{false};
};

}  // namespace hoplite
