// SPDX-License-Identifier: Apache-2.0
// A helper thread that does jobs beside the reactor, one after the other in the order given. Owns
// the thread and both queues. submit() and take_done() are of the reactor. The engine keeps the
// ranges of the arena that a job names until it has the answer.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "io/signals_blocked.h"
#include "io/sockets/poller.h"

namespace hoplite {

template <typename Job, typename Done>
class Worker {
 public:
  // Does a job, on the helper thread. Returns its answer, or nothing if the engine waits for none.
  using Work = std::function<std::optional<Done>(const Job&)>;

  // `name`: of the thread, at most 15 characters. The poller and all that `work` uses outlive it.
  Worker(const char* name, const Poller& poller, Work work)
      : name_(name), poller_(&poller), work_(std::move(work)) {
    const SignalsBlocked guard;
    thread_ = std::thread(&Worker::run, this);
  }
  // Finishes the job that is under way, and no other.
  ~Worker() {
    {
      const std::lock_guard guard(mutex_);
      is_stopping_ = true;
    }
    has_job_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void submit(const Job& job) {
    {
      const std::lock_guard guard(mutex_);
      jobs_.push_back(job);
    }
    has_job_.notify_one();
  }
  // Wakes the poller when there is something to take.
  [[nodiscard]] std::vector<Done> take_done() {
    const std::lock_guard guard(mutex_);
    return std::exchange(done_, {});
  }

 private:
  void run() noexcept {
    ::pthread_setname_np(::pthread_self(), name_);
    std::unique_lock guard(mutex_);
    for (;;) {
      has_job_.wait(guard, [this] { return is_stopping_ || !jobs_.empty(); });
      if (is_stopping_) return;
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      guard.unlock();
      auto answer = work_(job);
      guard.lock();
      if (!answer) continue;
      done_.push_back(std::move(*answer));
      poller_->wake();
    }
  }

  const char* name_;
  const Poller* poller_;
  Work work_;
  std::mutex mutex_;
  std::condition_variable has_job_;
  std::deque<Job> jobs_;
  std::vector<Done> done_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace hoplite
