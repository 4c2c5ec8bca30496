// This node's state of one object: the bytes that it has and wants. Plain state with questions that
// follow from it; the engine changes it. Invariant: `extent` is set before the first byte, and
// blocks below a stripe's `ready` are in the arena. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

struct LocalStripe {
  StripeState state = StripeState::kIdle;
  LeaseId lease;
  NodeId sender;  // receiving: the sender; idle: the last sender that failed
  TransferId transfer;
  std::uint32_t ready = 0;         // leading blocks of the stripe that are here
  std::set<std::uint32_t> beyond;  // blocks that came over another rail before their turn
};

struct Waiter {
  ClientId client;
  RequestId request;
  bool operator==(const Waiter&) const = default;
};

struct LocalObject {
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  bool committed = true;      // false: result of a reduce whose members may still change
  bool pinned = false;        // made here: stays until it is deleted
  bool orphaned = false;      // its owner has died: it may be read, and is evicted first
  bool is_branch = false;     // made here for the reduce that it is a branch of, in this view
  bool exists = false;        // some waiter knows that it was put
  bool adopting = false;      // fetched to be pinned here, for a node that drains
  bool adopted = false;       // pinned here, but not made here
  NodeId owner;               // of an adopted object: the node that reports its last reference
  bool elsewhere = false;     // this node drains, and another one keeps it
  bool whole_wanted = false;  // wanted without a waiter: by a fold that pulls no blocks of it, or
                              // by an owner of a result that all nodes will read
  bool writing = false;       // a client is still filling it
  ClientId writer;
  std::uint64_t written_bytes = 0;    // how far it is written, or read back
  std::optional<Waiter> put_request;  // answered when the range is reserved or the bytes are stored
  std::optional<Bytes> inbound;       // a small object's bytes that wait for their range
  std::optional<Extent> extent;
  std::optional<Extent> spilled;     // its place in the file, which has all of it
  std::optional<SpillId> spilling;   // being written there, or read back
  std::string fault;                 // why it could not be read back
  std::vector<LocalStripe> stripes;  // empty: nothing is known of it
  std::vector<Waiter> waiters;
  std::map<ClientId, std::uint32_t> pins;  // mappings per client; client 0: blocks being sent

  [[nodiscard]] bool is_complete() const;  // in the arena
  [[nodiscard]] bool is_whole() const { return spilled || is_complete(); }
  [[nodiscard]] bool is_here() const { return extent || spilled; }  // or some of it
  // True if all of another node's object has come and waits for its range. While a waiter is left
  // the node wants it, so that the home tells this node of a deletion.
  [[nodiscard]] bool is_late_copy() const { return inbound && !put_request; }
  [[nodiscard]] bool has_bytes() const { return is_here() || writing || inbound; }
  [[nodiscard]] bool is_read_back() const { return spilled && spilling; }
  [[nodiscard]] std::uint64_t orphaned_bytes() const {  // of the arena
    return orphaned && extent ? extent->size_bytes : 0;
  }
  [[nodiscard]] bool is_wanted() const { return !waiters.empty() || whole_wanted || adopting; }
  [[nodiscard]] bool has_block(BlockIndex block) const;
  [[nodiscard]] bool spans(Extent range) const {
    return range.offset <= meta.size_bytes && range.size_bytes <= meta.size_bytes - range.offset;
  }
  // True if it is a range of the object, and all of it is here. Cost: O(blocks of it).
  [[nodiscard]] bool has_range(Extent range) const;
  [[nodiscard]] bool is_idle() const;  // neither read nor written
  // True if it is evictable: the file has it as well, or it need not be here.
  [[nodiscard]] bool is_idle_copy() const { return is_idle() && (!pinned || spilled); }
  // Returns where a range of it lies in the arena. REQUIRES: extent.
  [[nodiscard]] Extent in_arena(Extent range) const {
    return {extent->offset + range.offset, range.size_bytes};
  }
};

// Returns everything a home needs to know. `wants` is false while the object's range is not
// reserved, because a node without a reservation can't pass bytes on (design decision 6).
Claim make_claim(const ObjectId& id, const LocalObject& object, bool waits_for_range);

}  // namespace hoplite
