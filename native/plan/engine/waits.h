// SPDX-License-Identifier: Apache-2.0
// One node's share of the cluster's wait-for graph: its unfinished stripes, and the block that each
// waits for. The simulator joins the shares of all nodes and proves that no wait depends on itself
// (design decision 13). Plain data.
#pragma once

#include <cstdint>

#include "plan/messages.h"

namespace hoplite {

// The bytes that an object's stripe is about.
struct ObjectBytes {
  ObjectId object;
  BytesName bytes;
  bool operator==(const ObjectBytes&) const = default;
};

// A stripe of a copy that is received here, or of a result that is folded here, goes on when
// `sender` (this node itself, for a member that it fetches whole) has `block` of `needed`.
struct Wait {
  ObjectBytes name;
  std::uint16_t stripe_count = 1;
  StripeIndex stripe;
  std::uint32_t ready = 0;  // its leading blocks, which others can have from here
  NodeId sender;
  ObjectBytes needed;  // target epoch 0: whichever is committed
  BlockIndex block;
};

}  // namespace hoplite
