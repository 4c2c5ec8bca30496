// SPDX-License-Identifier: Apache-2.0
// Messages about which node keeps an object (its owner has died, its holder drains, or it was
// deleted), about the progress of receivers, and those by which members resynchronize after a
// change of view or when their link is up again. Plain data. Reached through messages.h; bytes in
// docs/internals/wire.md.
#pragma once

#include <vector>

#include "plan/messages/job_messages.h"
#include "plan/messages/types.h"

namespace hoplite {

// Nodes that keep an object at a client's wish, at most (decision 50). More would cost more links
// and arenas than the deaths of so many nodes at once are likely.
inline constexpr std::uint8_t kCopiesMax = 3;

// ---- to the home ----

struct Orphan {  // its owner has died: it may be read until its memory is needed
  ObjectId object;
  Incarnation upto;  // as Delete's
  bool operator==(const Orphan&) const = default;
};
struct StripeProgress {
  StripeIndex stripe;
  LeaseId lease;  // under which it comes in
  std::uint32_t ready = 0;
  bool operator==(const StripeProgress&) const = default;
};
struct Progress {  // every window while stripes of `object` come in: how far each of them is
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  std::vector<StripeProgress> stripes;
  bool operator==(const Progress&) const = default;
};

// ---- from the home ----

struct Adopt {  // fetch it and keep it: only a draining node does, or too few nodes do
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  NodeId owner = kNoNode;   // the node that reports its last reference
  std::uint8_t copies = 0;  // as Claim's
  bool operator==(const Adopt&) const = default;
};
struct Deleted {  // answers Delete: no member keeps any of it
  ObjectId object;
  Incarnation upto;  // as asked for
  bool operator==(const Deleted&) const = default;
};
struct Standing {  // of the receiver's copy; answered by a claim that says the same
  ObjectId object;
  Incarnation incarnation;
  bool orphaned = false;
  bool elsewhere = false;
  bool copied = false;  // as many nodes keep it as are to; answers Claim's awaits_copies
  bool operator==(const Standing&) const = default;
};

// ---- to all members, or to one ----

struct ResyncDone {       // the sender's claims for this home under this epoch are complete
  bool draining = false;  // the sender adopts no more; the objects that only it has want adoption
  bool is_asked = false;  // it ends the answer to a ResyncWanted
  bool operator==(const ResyncDone&) const = default;
};
struct ResyncWanted {  // the sender has dropped messages of this view: the receiver repeats all
  bool operator==(const ResyncWanted&) const = default;
};

}  // namespace hoplite
