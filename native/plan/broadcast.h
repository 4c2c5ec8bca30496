// Policy only: which holder feeds which receiver, per stripe. The broadcast tree grows from this
// choice, made once per lease by the object's home (design decision 4; Hoplite, section 4).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.h"

namespace hoplite {

// A node that has, or is getting, the stripe in question and does not depend on the receiver.
struct SenderCandidate {
  NodeId node;
  bool complete = false;    // has all of the stripe
  bool origin = false;      // made the object: its upload is the scarcest
  bool failed = false;      // this receiver has just lost it as a sender
  bool preferred = false;   // this stripe is the one it is interior for
  std::uint32_t depth = 0;  // edges between it and a complete copy
  std::uint32_t edges = 0;  // stripes of this object that it already sends
};

// Returns the candidate to lease. Capacity comes first and is counted in stripe edges, `capacity`
// being one copy's worth; with k = 1 this is Hoplite's chain. Overflow goes to the least loaded
// node that is not the origin, unless there is no other. Cost: O(candidates).
std::optional<NodeId> choose_sender(std::span<const SenderCandidate> candidates,
                                    std::uint32_t capacity);

}  // namespace hoplite
