// The one thread of a process that calls NCCL: so all operations of a device are issued in one
// order, and no caller waits for a library. Sleeps while nothing is under way; what runs on a
// device rings it when it is over. Any thread may call it. Design decision 22c.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace hoplite::worlds {

class NcclBond;

// What bonds share with the thread, and may outlive it.
class NcclQueue {
 public:
  void add(std::shared_ptr<NcclBond> bond);  // from now on its step() is called
  void wake();
  void note_ending();
  void note_over();
  // Returns whether all bonds that have ended are over, which takes as long as an abort may.
  [[nodiscard]] bool settle();

 private:
  friend class NcclThread;
  std::vector<std::shared_ptr<NcclBond>> wait(std::optional<Duration> timeout);
  void drop(const std::vector<std::shared_ptr<NcclBond>>& bonds);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<NcclBond>> bonds_;
  bool is_woken_ = false;
  bool is_running_ = true;
  int endings_ = 0;
};

class NcclThread {
 public:
  NcclThread();
  ~NcclThread();
  NcclThread(const NcclThread&) = delete;
  NcclThread& operator=(const NcclThread&) = delete;
  [[nodiscard]] const std::shared_ptr<NcclQueue>& queue() const { return queue_; }

 private:
  static void run(const std::shared_ptr<NcclQueue>& queue) noexcept;

  const std::shared_ptr<NcclQueue> queue_;
  const pid_t pid_;
  std::thread thread_;
};

// A thread that no signal of the process interrupts.
[[nodiscard]] std::thread quiet_thread(const char* name, std::function<void()> work);

}  // namespace hoplite::worlds
