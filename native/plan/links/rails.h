// SPDX-License-Identifier: Apache-2.0
// Chooses the rail of a link that takes the next block. One admission rule gives cold start, hot
// start and the right split without tables (design decision 19; Nezha). A rail takes a block only
// if it is the fastest with room, or would finish it before the fastest would.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

class Rails {
 public:
  // `link_bytes_per_s`: what a node's link carries.
  Rails(std::uint64_t queue_bytes_max, std::uint64_t link_bytes_per_s)
      : queue_bytes_max_(queue_bytes_max), link_bytes_per_s_(link_bytes_per_s) {}

  void handle_link_up(NodeId peer, std::size_t rail_count);
  void handle_link_down(NodeId peer);
  void handle_sent(const BlockSent& event, Instant now);

  // Books `size_bytes` on the rail it returns; nothing while every queue is full.
  std::optional<RailId> take(NodeId peer, std::uint64_t size_bytes, Instant now);

  [[nodiscard]] bool has_room(NodeId peer, std::uint64_t size_bytes) const;
  void check_invariants() const;

 private:
  struct Rail {
    std::uint64_t queued_bytes = 0;
    std::uint64_t rate_bytes_per_s = 0;  // smoothed; 0: nothing sent yet
    Instant busy_since;
  };

  [[nodiscard]] std::optional<RailId> choose(const std::vector<Rail>& rails,
                                             std::uint64_t size_bytes) const;

  std::uint64_t queue_bytes_max_, link_bytes_per_s_;
  std::map<NodeId, std::vector<Rail>> links_;
};

}  // namespace hoplite
