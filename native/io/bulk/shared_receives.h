// SPDX-License-Identifier: Apache-2.0
// The ReceiveTable for several threads, and the loans of its ranges. A thread that moves blocks
// borrows a transfer's range for one read of the kernel at a time. So the reactor closes a transfer
// without a wait, and learns when the last loan has ended: nothing writes there any more.
// All methods: any thread; open and close are the reactor's. The lock is held for a look-up and
// never over a system call. Decision 19e.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "io/links/receive_table.h"

namespace hoplite {

class SharedReceives {
 public:
  enum class Loan : std::uint8_t {
    kOpen,       // the transfer is open: its block goes on
    kClosed,     // it was closed during the read: the rest of the block is discarded
    kLastClosed  // the same, and nothing writes there any more: report ReceiveClosed
  };

  explicit SharedReceives(std::uint64_t arena_bytes) : table_(arena_bytes) {}

  // REQUIRES: as ReceiveTable::open, and the transfer was not closed.
  void open(const OpenReceive& receive);
  // Returns true if nothing writes into the range any more. Otherwise the last end_write says so.
  [[nodiscard]] bool close(NodeId from, TransferId transfer);
  // REQUIRES: no thread has a connection of that node.
  void close_all(NodeId from);

  [[nodiscard]] Placement place(NodeId from, const BlockHeader& header) const;
  [[nodiscard]] std::size_t senders() const;
  // Borrows the range of a transfer. Returns false if the transfer is closed.
  [[nodiscard]] bool begin_write(NodeId from, TransferId transfer);
  // Gives it back. The answer says how the thread goes on. REQUIRES: begin_write returned true.
  [[nodiscard]] Loan end_write(NodeId from, TransferId transfer);

 private:
  using Key = std::pair<NodeId, TransferId>;
  mutable std::mutex mutex_;
  ReceiveTable table_;
  std::vector<Key> written_;  // borrowed, once for each thread
  std::vector<Key> closed_;   // and closed: part of written_
};

}  // namespace hoplite
