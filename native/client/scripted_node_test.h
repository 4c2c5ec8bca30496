// SPDX-License-Identifier: Apache-2.0
// A node whose answers a test chooses, behind a real LocalPort in a thread of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/must_test.h"
#include "io/local_port.h"
#include "io/memory/arena.h"
#include "io/sockets/poller.h"

namespace hoplite {

inline constexpr Duration kSoon = 10_s;

using OneBuffer = std::array<std::span<const std::byte>, 1>;

inline ObjectId object_id(std::uint8_t number) {
  ObjectId id;
  id.bytes.fill(number);
  return id;
}

// Answers each command as `script` says; by default not at all.
class ScriptedNode {
 public:
  using Script = std::function<std::optional<Reply>(const Command&)>;
  explicit ScriptedNode(std::string path)
      : poller_(must(Poller::open())),
        arena_(must(Arena::open(128_MiB))),
        port_(must(LocalPort::open(path, NodeId{7}, Incarnation{2}, {}, poller_, arena_, 1))) {
    thread_ = std::thread([this] { run(); });
  }
  ~ScriptedNode() {
    resume();
    is_stopping_ = true;
    poller_.wake();
    thread_.join();
  }
  void script(Script script) {
    const std::lock_guard guard(mutex_);
    script_ = std::move(script);
  }
  // Reads and answers nothing until resume(), as a process that is stopped.
  void pause() {
    std::unique_lock guard(mutex_);
    is_to_pause_ = true;
    poller_.wake();
    news_.wait(guard, [&] { return is_paused_; });
  }
  void resume() {
    const std::lock_guard guard(mutex_);
    is_to_pause_ = false;
    news_.notify_all();
  }
  template <typename T>
  std::vector<Command> commands() {
    const std::lock_guard guard(mutex_);
    std::vector<Command> found;
    for (const Command& each : received_) {
      if (std::holds_alternative<T>(each.body)) found.push_back(each);
    }
    return found;
  }
  // Waits until `count` commands of the kind have come.
  template <typename T>
  bool wait_for(std::size_t count) {
    std::unique_lock guard(mutex_);
    return news_.wait_for(guard, std::chrono::nanoseconds(kSoon.ns), [&] {
      return static_cast<std::size_t>(
                 std::count_if(received_.begin(), received_.end(), [](const Command& each) {
                   return std::holds_alternative<T>(each.body);
                 })) >= count;
    });
  }
  Arena& arena() { return arena_; }

 private:
  void run() {
    while (!is_stopping_) {
      const auto patience = port_.has_commands() ? std::optional(Duration{0}) : std::nullopt;
      const auto events = poller_.wait(patience);
      pause_if_requested();
      for (const Ready& ready : events) port_.handle_ready(ready);
      for (const Command& command : port_.take_commands(1000)) {
        const std::lock_guard guard(mutex_);
        received_.push_back(command);
        news_.notify_all();
        const auto reply = script_ ? script_(command) : std::nullopt;
        if (reply) port_.reply({command.client, command.request, *reply});
      }
      port_.flush();
    }
  }
  void pause_if_requested() {
    std::unique_lock guard(mutex_);
    is_paused_ = is_to_pause_;
    if (is_paused_) news_.notify_all();
    news_.wait(guard, [&] { return !is_to_pause_; });
    is_paused_ = false;
  }
  Poller poller_;
  Arena arena_;
  LocalPort port_;
  std::mutex mutex_;
  std::condition_variable news_;
  Script script_;
  std::vector<Command> received_;
  bool is_to_pause_ = false;
  bool is_paused_ = false;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

inline Fetched large(std::uint64_t offset, std::uint64_t size) {
  Fetched fetched;
  fetched.incarnation = Incarnation{3};
  fetched.meta.size_bytes = size;
  if (size > 0) fetched.meta.parts = {{DType::kOpaque, size}};
  fetched.meta.layout = "layout";
  fetched.extent = {offset, size};
  fetched.mapped = true;
  return fetched;
}

inline Fetched small(std::uint64_t offset, std::uint64_t size) {
  Fetched fetched = large(offset, size);
  fetched.mapped = false;
  return fetched;
}

}  // namespace hoplite
