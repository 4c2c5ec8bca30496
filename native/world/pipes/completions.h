// SPDX-License-Identifier: Apache-2.0
// Hands finished operations to an event loop: their numbers, and a descriptor that is readable
// while any number is queued. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/sockets/unique_fd.h"

namespace hoplite::worlds {

// An eventfd that is readable between ring() and silence().
class Doorbell {
 public:
  [[nodiscard]] static Result<UniqueFd> open();
  static void ring(int fd);
  static void silence(int fd);
};

// A queue of values. Its descriptor is readable while the queue holds values.
template <typename Value>
class Outbox {
 public:
  explicit Outbox(UniqueFd doorbell) : doorbell_(std::move(doorbell)) {}
  [[nodiscard]] int fd() const { return doorbell_.value(); }

  void push(Value value) {
    const std::lock_guard guard(mutex_);
    values_.push_back(std::move(value));
    if (values_.size() == 1) Doorbell::ring(fd());
  }
  [[nodiscard]] std::vector<Value> take() {
    const std::lock_guard guard(mutex_);
    Doorbell::silence(fd());  // also when the queue is empty: a forked child may have rung it
    return std::exchange(values_, {});
  }

 private:
  UniqueFd doorbell_;
  std::mutex mutex_;
  std::vector<Value> values_;
};

using Completions = Outbox<std::uint64_t>;

}  // namespace hoplite::worlds
