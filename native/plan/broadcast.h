// Policy only: how many stripes a broadcast has, and which holder feeds which receiver in each. The
// broadcast tree is planned from this for all who wait at publish time, and grown and repaired from
// it, lease by lease, by the object's home (design decision 4; Hoplite, section 4; splitting into
// stripes after SplitStream, Castro et al. 2003). SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace hoplite {

// What the home knows when it decides how an object is striped.
struct BroadcastSize {
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;
  std::size_t waiting = 0;  // receivers that are known
  std::size_t members = 0;  // nodes that may still ask, with the known ones
};

// Returns how many stripes make the last receiver finish first: the deepest path is a hop's latency
// per level and `k` blocks per level below the first, for each block is sent on `k` times.
std::uint16_t choose_stripes(const BroadcastSize& size);

// Has a receiver of `ready` blocks of `total` next to nothing yet? As long as that is so of all of
// them, the places of a forest may change: each is late by an eighth at most for it. Never of a
// stripe so short that it isn't worth the message which says that it has begun.
constexpr bool is_beginning(std::uint32_t ready, std::uint32_t total) {
  return total >= 64 && ready < total / 8;
}

// The trees of `stripes` stripes over receivers 0..receivers-1. Each receiver is fed every stripe
// once; receiver s is interior in stripe s mod k, and what it does not need there serves stripes
// whose own interiors are too few. Nobody feeds more than k stripes, the origin exactly k: each
// uploads one copy at most.
class ForestPlan {
 public:
  static constexpr std::uint32_t kOrigin = UINT32_MAX;

  ForestPlan(std::uint32_t receivers, std::uint16_t stripes);  // cost: O(receivers * stripes)

  // Who feeds `receiver` this stripe: another receiver, or kOrigin.
  [[nodiscard]] std::uint32_t sender(std::uint32_t receiver, StripeIndex stripe) const {
    return senders_[std::size_t{receiver} * stripes_ + stripe.value];
  }

 private:
  void grow(std::uint16_t stripe, const std::vector<std::uint32_t>& edges);

  std::uint32_t receivers_;
  std::uint16_t stripes_;
  std::vector<std::uint32_t> senders_;
};

// A node that has, or is getting, the stripe in question and does not depend on the receiver.
struct SenderCandidate {
  NodeId node;
  bool complete = false;    // has all of the stripe
  bool origin = false;      // made the object: its upload is the scarcest
  bool failed = false;      // this receiver has just lost it as a sender
  bool slow = false;        // was slower than the others for too long: serves only if none else can
  bool behind = false;      // has less of the stripe than the receiver
  bool preferred = false;   // this stripe is the one it is interior for
  std::uint32_t depth = 0;  // edges between it and a complete copy
  std::uint32_t edges = 0;  // stripes of this object that it already sends
};

// How many edges may lie between a sender and a complete copy of an object of so many stripes. That
// many take as long to fill as one stripe takes, which is what a sender of one copy loses for one
// edge more. No limit where a chain of all members is at most twice as long: it is faster.
std::uint32_t choose_depth(const BroadcastSize& size, std::uint16_t stripes);

// What a sender has room for: edges to others, and edges between it and a complete copy.
struct SenderRoom {
  std::uint32_t edges = 1;  // one copy's worth: as many as the object has stripes
  std::uint32_t depth = UINT32_MAX;
};

// Returns the candidate to lease. Room comes first; with one stripe this is Hoplite's chain, cut
// where it gets too deep. Overflow goes to the node that is not the origin, unless there is no
// other, with the fewest edges too many, each `room.depth` of depth counting as one. Cost:
// O(candidates).
std::optional<NodeId> choose_sender(std::span<const SenderCandidate> candidates,
                                    const SenderRoom& room);

// The upper one of two in the middle; nothing where there are none. Cost: O(rates).
std::optional<std::uint64_t> median_of(std::vector<std::uint64_t> rates);

// True when `rate` is under 0.6 of the median of the others; false where there are none. Rates, not
// bytes: a newcomer has few bytes and is not slow.
bool is_slow(std::uint64_t rate, std::optional<std::uint64_t> median_of_others);

}  // namespace hoplite
