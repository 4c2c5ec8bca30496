// SPDX-License-Identifier: Apache-2.0
// Messages of peers whose view is newer than this node's: kept until this node has that view.
// Bounded for each peer and in all. Beyond a bound everything of one peer is dropped, never a part
// of it: a ResyncDone whose claims are missing would say that the peer holds nothing. The engine
// asks such a peer to say everything again (design decision 2). Owned by the engine's tables.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

class Parked {
 public:
  Parked(std::size_t messages_max, std::uint64_t bytes_max)
      : messages_max_(messages_max), bytes_max_(bytes_max) {}

  // Keeps a message, or drops all of its sender's. Cost: O(peers) when a bound is reached.
  void park(const MessageIn& event);
  // Returns and forgets all that is kept, in order of arrival.
  [[nodiscard]] std::deque<MessageIn> take();
  // True if messages of `peer` were dropped that this node must hear in view `epoch`.
  // Forgets the drop: the caller asks the peer to repeat everything.
  [[nodiscard]] bool take_dropped(NodeId peer, Epoch epoch);
  // Forgets the messages of `peer`, whose link is lost. The peer repeats everything over its next
  // link.
  void forget(NodeId peer);

  [[nodiscard]] std::size_t size() const { return kept_.size(); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  void check_invariants() const;

 private:
  struct Weight {
    std::size_t messages = 0;
    std::uint64_t bytes = 0;
  };
  Epoch drop(NodeId peer);  // returns the newest view of what was kept

  const std::size_t messages_max_;  // of one peer
  const std::uint64_t bytes_max_;   // of all peers
  std::deque<MessageIn> kept_;
  std::map<NodeId, Weight> weights_;  // of what is kept
  std::uint64_t bytes_ = 0;
  std::map<NodeId, Epoch> dropped_;  // the newest view of which a message was dropped
};

}  // namespace hoplite
