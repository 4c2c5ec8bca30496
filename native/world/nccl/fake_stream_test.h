// SPDX-License-Identifier: Apache-2.0
// Streams and events of CUDA on the host: a stream is a thread that does one task after the other.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace hoplite::worlds {

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard guard(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void push(std::function<void()> task) {
    const std::lock_guard guard(mutex_);
    tasks_.push_back(std::move(task));
    ++left_;
    changed_.notify_all();
  }
  [[nodiscard]] bool is_idle() {
    const std::lock_guard guard(mutex_);
    return left_ == 0;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_over_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      --left_;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  int left_ = 0;
  bool is_over_ = false;
  std::thread thread_;
};

struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_passed = true;
};

struct Event {
  std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};

// The streams that every process has; nothing ever runs on them here.
inline bool is_default(const Stream* stream) {
  return reinterpret_cast<std::uintptr_t>(stream) <= 2;
}

}  // namespace hoplite::worlds
