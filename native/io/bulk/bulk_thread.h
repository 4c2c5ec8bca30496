// SPDX-License-Identifier: Apache-2.0
// A thread that moves blocks: it owns a poller and a BulkPort, and a queue leads each way. The
// reactor's orders go in once a turn, and news come back with one wake-up of its poller. The thread
// decides nothing. It takes no signal and no Python, and holds no lock over a system call.
// All methods are of the reactor. Decision 19e.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "io/bulk/bulk_port.h"
#include "io/sockets/poller.h"

namespace hoplite {

class BulkThread {
 public:
  // Starts the thread. REQUIRES: the reactor's poller outlives this.
  BulkThread(const LinkLimits& limits, Poller poller, const Poller& reactor);
  ~BulkThread();  // ends all connections
  BulkThread(const BulkThread&) = delete;
  BulkThread& operator=(const BulkThread&) = delete;

  // Orders that flush() or end() hands over.
  void add(BulkConnection added);
  void queue_block(std::uint64_t token, const SendBlock& block);
  void flush();
  // Closes the connection. Waits until the thread does not use it any more: a turn of the thread.
  // Then take_news() has all news of it, and none comes later.
  void end(std::uint64_t token);

  [[nodiscard]] BulkNews take_news();
  [[nodiscard]] LinkCounters counters() const;  // at the end of the thread's last turn

 private:
  struct Orders {  // in this order
    std::vector<BulkConnection> added;
    std::vector<std::pair<std::uint64_t, SendBlock>> blocks;
    std::vector<std::uint64_t> ended;
    [[nodiscard]] bool is_empty() const { return added.empty() && blocks.empty() && ended.empty(); }
  };
  void run() noexcept;
  // Returns false if the thread stops. Marks the thread as asleep if it has nothing to do.
  [[nodiscard]] bool take_orders(Orders& orders);
  void obey(Orders& orders);
  void publish(std::uint64_t ended);

  Poller poller_;
  const Poller* reactor_;
  BulkPort port_;     // the thread's
  Orders collected_;  // the reactor's: of this turn
  std::uint64_t ends_ordered_ = 0;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable has_ended_;
  Orders orders_;
  BulkNews news_;
  LinkCounters counters_;
  std::uint64_t ends_obeyed_ = 0;
  bool is_asleep_ = false;  // True if an order must wake the thread
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace hoplite
