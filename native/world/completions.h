// The way out to an event loop: numbers of operations that have ended, and a descriptor that is
// readable while there are any. Any thread. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/unique_fd.h"

namespace hoplite::worlds {

// A queue of values, read by whoever polls its descriptor.
class Doorbell {
 public:
  [[nodiscard]] static Result<UniqueFd> open();
  static void ring(int fd);
  static void silence(int fd);
};

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
    Doorbell::silence(fd());  // which a forked child may have rung
    return std::exchange(values_, {});
  }

 private:
  UniqueFd doorbell_;
  std::mutex mutex_;
  std::vector<Value> values_;
};

using Completions = Outbox<std::uint64_t>;

}  // namespace hoplite::worlds
