// SPDX-License-Identifier: Apache-2.0
// Where arriving blocks go: the places that OpenReceive has allowed, per sender and transfer. Pure.
// The one place that decides whether a peer's offset may touch the arena.
#pragma once

#include <cstddef>
#include <map>
#include <utility>

#include "plan/messages.h"

namespace hoplite {

enum class Arrival : std::uint8_t {
  kLand,     // at `extent`
  kDiscard,  // no transfer waits for it: read it and throw it away
  kHostile,  // the transfer is open, but the block is not one of its blocks: close the connection
};
struct Placement {
  Arrival arrival = Arrival::kDiscard;
  BlockIndex block;
  Extent extent;
};

class ReceiveTable {
 public:
  explicit ReceiveTable(std::uint64_t arena_bytes) : arena_bytes_(arena_bytes) {}
  // REQUIRES: every range that the transfer may write lies inside the arena.
  void open(const OpenReceive& receive);
  void close(NodeId from, TransferId transfer);
  void close_all(NodeId from);
  [[nodiscard]] Placement place(NodeId from, const BlockHeader& header) const;
  [[nodiscard]] bool is_open(NodeId from, TransferId transfer) const {
    return receives_.contains({from, transfer});
  }
  [[nodiscard]] std::size_t size() const { return receives_.size(); }
  // Nodes that may send blocks here now.
  [[nodiscard]] std::size_t senders() const { return senders_; }

 private:
  [[nodiscard]] bool has_receive_from(NodeId from) const;

  std::uint64_t arena_bytes_;
  std::size_t senders_ = 0;
  std::map<std::pair<NodeId, TransferId>, OpenReceive> receives_;
};

}  // namespace hoplite
