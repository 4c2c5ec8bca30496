// SPDX-License-Identifier: Apache-2.0
// This node's state of one object: the bytes that it has and wants. Plain state with questions that
// follow from it; the engine changes it. Invariant: `extent` is set before the first byte, and
// blocks below a stripe's `ready` are in the arena.
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

// The client of pins for blocks being sent and for spills, and of the gets and pins of rebuilds.
inline constexpr ClientId kThisNode{0};

struct Waiter {
  ClientId client;
  RequestId request;
  std::uint64_t upto_bytes = kAllBytes;  // of a get: the leading bytes that it waits for
  bool operator==(const Waiter& other) const {
    return client == other.client && request == other.request;
  }
};

// Why this node keeps its copy. Transitions:
//
//   from          event                                                      to
//   any           its bytes are replaced by a copy, voided or dropped        kCopy
//   any           a client puts it here, or a fold makes it here             kMade
//   kCopy         this node drains, and the other keeper has gone            kMade
//   kCopy, kMade  its home asked this node to keep it, and it is all here    kAdopted
enum class Keep : std::uint8_t {
  kCopy,     // to be read; evictable
  kMade,     // until it is deleted
  kAdopted,  // until it is deleted, for a node that drained or as one of several copies
};

// Whether others may read its bytes. A fold makes kTentative or kBranch; the commit of a reduce
// makes kTentative to kFinal; other bytes begin anew.
enum class Finality : std::uint8_t {
  kFinal,      // of a put, or of a committed reduce
  kTentative,  // the result of a reduce whose members may still change
  kBranch,     // of a reduce, in this view; its parent reads it as it is
};

// A copy of a reduce's result is tentative until this node hears of the commit.
constexpr Finality finality_of_copy(TargetEpoch epoch) {
  return epoch.value == 0 ? Finality::kFinal : Finality::kTentative;
}

struct LocalObject {
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  Keep keep = Keep::kCopy;
  Finality finality = Finality::kFinal;
  NodeId owner;             // of an adopted object: the node that reports its last reference
  std::uint8_t copies = 0;  // nodes that are to keep it, this one too; 0: it has an owner
  // The last word of its home:
  bool orphaned = false;    // its owner has died: it may be read, and is evicted first
  bool elsewhere = false;   // this node drains, and another one keeps it
  bool is_excerpt = false;  // True if it can be made again of another object (decision 48)
  // Why it is wanted, besides `waiters`:
  bool exists = false;                // some waiter knows that it was put
  bool adopting = false;              // to be kept here, as its home asks
  bool wanted_by_fold = false;        // whole, by a fold here that pulls no blocks of it
  bool wanted_by_all = false;         // by an owner of a result that all nodes will read
  std::uint64_t written_bytes = 0;    // how far it is written, or read back
  std::optional<Waiter> put_request;  // a put whose bytes are not all here
  std::optional<Bytes> inbound;       // a small object's bytes that wait for their range
  std::optional<Extent> extent;
  std::optional<Extent> spilled;     // its place in the file, which has all of it
  std::optional<SpillId> spilling;   // being written there, or read back
  std::string fault;                 // why it could not be read back
  std::vector<LocalStripe> stripes;  // empty: nothing is known of it
  std::vector<std::uint32_t> sums;   // CRC-32C by block; 0, or none: not known
  bool takes_sums = true;            // of its writer
  std::vector<Waiter> waiters;
  std::uint64_t next_upto_bytes = kAllBytes;  // no waiter waits for fewer; some may have gone
  std::map<ClientId, std::uint32_t> pins;     // mappings per client; client 0: blocks being sent

  // Other bytes take the place of those that were here. REQUIRES: their range is given back.
  void begin(const BytesName& name, const ObjectMeta& described, Keep why, Finality how);

  // The checksum of a block, so that no node makes it twice. REQUIRES: it is of the bytes here.
  void keep_sum(BlockIndex block, std::uint32_t crc32c);
  [[nodiscard]] std::uint32_t sum_of(BlockIndex block) const {
    return block.value < sums.size() ? sums[block.value] : 0;
  }

  void end_wishes() { wanted_by_fold = wanted_by_all = adopting = false; }   // but those of waiters
  [[nodiscard]] bool is_writing() const { return put_request && !inbound; }  // by its client
  [[nodiscard]] bool is_pinned() const { return keep != Keep::kCopy && !orphaned && !elsewhere; }
  [[nodiscard]] bool is_final() const { return finality == Finality::kFinal; }
  [[nodiscard]] bool is_complete() const;  // in the arena
  [[nodiscard]] bool is_whole() const { return spilled || is_complete(); }
  [[nodiscard]] bool is_here() const { return extent || spilled; }  // or some of it
  // True if all of another node's object has come and waits for its range. While a waiter is left
  // the node wants it, so that the home tells this node of a deletion.
  [[nodiscard]] bool is_late_copy() const { return inbound && !put_request; }
  [[nodiscard]] bool has_bytes() const { return is_here() || put_request || inbound; }
  [[nodiscard]] bool is_read_back() const { return spilled && spilling; }
  [[nodiscard]] std::uint64_t orphaned_bytes() const {  // of the arena
    return orphaned && extent ? extent->size_bytes : 0;
  }
  [[nodiscard]] bool is_wanted() const {
    return !waiters.empty() || wanted_by_fold || wanted_by_all || adopting;
  }
  [[nodiscard]] bool has_block(BlockIndex block) const;
  // Returns how many leading bytes are here. Cost: O(stripes).
  [[nodiscard]] std::uint64_t ready_bytes() const;
  [[nodiscard]] bool spans(Extent range) const {
    return range.offset <= meta.size_bytes && range.size_bytes <= meta.size_bytes - range.offset;
  }
  // True if it is a range of the object, and all of it is here. Cost: O(blocks of it).
  [[nodiscard]] bool has_range(Extent range) const;
  [[nodiscard]] bool is_idle() const;  // neither read nor written
  // True if it is evictable: the file has it as well, or it need not be here.
  [[nodiscard]] bool may_leave() const { return is_idle() && (!is_pinned() || spilled); }
  // Returns where a range of it lies in the arena. REQUIRES: extent.
  [[nodiscard]] Extent in_arena(Extent range) const {
    return {extent->offset + range.offset, range.size_bytes};
  }
};

// Returns everything a home needs to know, except what clients here await. `wants` is false while
// `waits`: the object is rebuilt here, or its range is not reserved. A node without a reservation
// can't pass bytes on (design decision 6).
Claim make_claim(const ObjectId& id, const LocalObject& object, bool waits);

}  // namespace hoplite
