// SPDX-License-Identifier: Apache-2.0
// Policy only: the number of stripes of a broadcast, and the holder that feeds each receiver in
// each stripe. The object's home plans the tree with it for all receivers that wait at publish
// time. Lease by lease, the home also grows and repairs the tree with it (decision 4; Hoplite,
// section 4; stripes after SplitStream, Castro et al. 2003).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "plan/messages.h"

namespace hoplite {

// Facts from which the home decides the number of stripes of an object.
struct BroadcastSize {
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;
  std::size_t waiting = 0;                          // receivers that are known
  std::size_t members = 0;                          // nodes that may still ask, with the known ones
  std::uint64_t link_bytes_per_s = kLinkBytesPerS;  // of each node
};

// Returns the block size that all nodes use for an object: block_bytes_min times a power of two. A
// core handles size / block blocks, and a chain fills in hops x block / rate; the block is near the
// least sum of both.
std::uint32_t choose_block_bytes(std::uint64_t size_bytes, const EngineConfig& config);

// Returns the number of stripes with which the last receiver finishes first. The deepest path costs
// a hop's latency per level, and `k` blocks per level below the first, because a node sends each
// block on `k` times.
std::uint16_t choose_stripes(const BroadcastSize& size);

// True if a receiver with `ready` of `total` blocks has next to nothing yet. While that holds for
// all receivers, a forest may still move their places; a move delays each by at most an eighth.
// Always false for a stripe so short that the message of its beginning does not pay.
constexpr bool is_beginning(std::uint32_t ready, std::uint32_t total) {
  return total >= 64 && ready < total / 8;
}

// The trees of `stripes` stripes over receivers 0..receivers-1. Each receiver is fed every stripe
// once. Receiver s is interior in stripe s mod k; its spare edges there serve stripes with too few
// interiors of their own. A receiver feeds at most k stripes and the origin exactly k, so each
// uploads at most one copy.
class ForestPlan {
 public:
  static constexpr std::uint32_t kOrigin = UINT32_MAX;

  ForestPlan(std::uint32_t receivers, std::uint16_t stripes);  // cost: O(receivers * stripes)

  // Returns the sender of this stripe to `receiver`: another receiver, or kOrigin.
  [[nodiscard]] std::uint32_t sender(std::uint32_t receiver, StripeIndex stripe) const {
    return senders_[std::size_t{receiver} * stripes_ + stripe.value];
  }

 private:
  void grow(std::uint16_t stripe, const std::vector<std::uint32_t>& edges);

  std::uint32_t receivers_;
  std::uint16_t stripes_;
  std::vector<std::uint32_t> senders_;
};

// A node that has or receives the stripe in question and does not depend on the receiver.
struct SenderCandidate {
  NodeId node;
  bool complete = false;    // True if it has all of the stripe
  bool origin = false;      // True if it made the object: its upload is the scarcest
  bool failed = false;      // True if this receiver has just lost it as a sender
  bool slow = false;        // too slow for too long: serves only if no other node can
  bool behind = false;      // True if it has less of the stripe than the receiver
  bool preferred = false;   // True if it is interior for this stripe
  std::uint32_t depth = 0;  // edges between it and a complete copy
  std::uint32_t edges = 0;  // stripes of this object that it already sends
};

// Returns how many edges may lie between a sender and a complete copy of an object with this many
// stripes. That depth takes as long to fill as one stripe takes, which is the price of one edge too
// many at a sender. No limit where a chain of all members is at most twice as long, because the
// chain is faster.
std::uint32_t choose_depth(const BroadcastSize& size, std::uint16_t stripes);

// Room of a sender: edges to receivers, and edges between the sender and a complete copy.
struct SenderRoom {
  std::uint32_t edges = 1;  // one copy's worth: as many as the object has stripes
  std::uint32_t depth = UINT32_MAX;
};

// Returns the candidate to lease. Candidates with room come first; with one stripe this is
// Hoplite's chain, cut where it gets too deep. Without room, the candidate with the fewest edges
// too many is chosen; each `room.depth` of depth counts as one edge. The origin overflows only if
// there is no other. Cost: O(candidates).
std::optional<NodeId> choose_sender(std::span<const SenderCandidate> candidates,
                                    const SenderRoom& room);

// Returns the median, of two in the middle the upper one; nothing if there are no rates. Cost:
// O(rates).
std::optional<std::uint64_t> median_of(std::vector<std::uint64_t> rates);

// True if `rate` is under 0.6 of the median of the others; false if there are no others. Rates
// count, not bytes, because a newcomer has few bytes and is not slow.
bool is_slow(std::uint64_t rate, std::optional<std::uint64_t> median_of_others);

}  // namespace hoplite
