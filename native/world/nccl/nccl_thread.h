// SPDX-License-Identifier: Apache-2.0
// The one thread of a process that calls NCCL. It issues all operations of a device in one order,
// and no caller waits for the library. It sleeps while nothing is in flight; an operation that ends
// on the device wakes it. Any thread may call it. Design decision 22c.
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

// The state that bonds share with the thread. It may outlive the thread.
class NcclQueue {
 public:
  void add(std::shared_ptr<NcclBond> bond);  // makes the thread call its step() until it is over
  void wake();
  void begin_teardown();
  void end_teardown();
  // Waits until all ended bonds are taken down, for as long as an abort may take. Returns whether
  // they are.
  [[nodiscard]] bool settle();

 private:
  friend class NcclThread;
  std::vector<std::shared_ptr<NcclBond>> wait(std::optional<Duration> timeout);
  void forget(const std::vector<std::shared_ptr<NcclBond>>& bonds);

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
