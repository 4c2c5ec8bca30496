// SPDX-License-Identifier: Apache-2.0
#include "plan/broadcast.h"

#include <tuple>

namespace hoplite {
namespace {

// Smaller is better, field by field.
auto rank_of(const SenderCandidate& c, std::uint32_t capacity) {
  const bool full = c.edges >= capacity;
  return std::tuple(c.failed,                    // try anybody else first
                    full,                        // one copy's worth of upload per node
                    full && c.origin,            // the origin overflows last
                    full ? c.edges : 0U,         // spread what overflows
                    !c.complete,                 // a complete copy never stalls
                    !c.preferred, c.depth,       // interior for this stripe; close to the source
                    c.origin, c.edges, c.node);  // spare the origin; then any fixed order
}

}  // namespace

std::optional<NodeId> choose_sender(std::span<const SenderCandidate> candidates,
                                    std::uint32_t capacity) {
  const SenderCandidate* best = nullptr;
  for (const SenderCandidate& candidate : candidates) {
    if (best == nullptr || rank_of(candidate, capacity) < rank_of(*best, capacity)) {
      best = &candidate;
    }
  }
  if (best == nullptr) return std::nullopt;
  return best->node;
}

}  // namespace hoplite
