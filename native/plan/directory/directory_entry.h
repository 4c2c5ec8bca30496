// SPDX-License-Identifier: Apache-2.0
// The state of one object at its home's directory shard, built from claims alone. Plain data;
// Directory owns and changes it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

struct DirectoryEntry {
  struct Course {  // progress of one edge in blocks of its stripe, as its receiver reports
    std::uint32_t ready = 0;  // leading blocks that the receiver has
    std::uint32_t mark = 0;   // `ready` when the period began that is judged next
    std::uint32_t first = 0;  // `ready` when the edge was leased, at `begun`
    Instant begun;
    Instant judged;
    std::uint64_t rate_bytes_per_s = 0;  // in the last judged period
    std::uint8_t silent = 0, slow = 0;   // consecutive periods
    std::uint8_t moves = 0;              // to another sender; each is followed by a longer rest
    Instant rests_until;
  };
  struct Edge {  // one stripe at one holder
    StripeState state = StripeState::kIdle;
    bool orphan =
        false;  // True if it needs a new sender: its sender died, gave up, or is in a cycle
    LeaseId lease;
    NodeId sender;
    Epoch granted;       // epoch of the message with the lease; 0 if its link has broken
    NodeId failed;       // a sender that is not granted again until `not_before`
    Instant not_before;  // see `failed`; for a small object also the time of the next push
    Course course;
  };
  struct Holder {
    bool wants = false, exists = false, pinned = false;
    NodeId owner;                              // of the object, if this node has adopted it
    bool orphaned = false, elsewhere = false;  // as its claim says, and as the home has told it
    bool awaits_copies = false;                // likewise, and not told yet
    std::optional<std::pair<bool, bool>> told;
    bool stale = false;      // True if not claimed again after a broken link or a new view
    std::uint32_t slot = 0;  // order of arrival; slot mod k is the stripe it is interior for
    Instant since;
    Instant heard;           // time of its last progress
    Instant marked;          // start of the period that is judged next
    std::uint8_t slow = 0;   // consecutive periods in which nearly all of its stripes were slow
    bool leaf_only = false;  // True if too slow for others to depend on it
    std::vector<Edge> stripes;
  };
  struct Query {
    Locate locate;
    Instant since;
  };

  bool known = false;  // True if a claim has given its identity
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  bool committed = true, lost = false;
  bool is_excerpt = false;  // True if it can be made again, so it is never lost
  Code lost_code = Code::kObjectLost;
  std::string lost_text;
  std::uint16_t stripe_count = 0;  // 0 if not decided
  Instant interiors_until;         // a receiver that asks by then may feed earlier ones
  bool has_begun = false;          // True if a receiver has more than a stripe's beginning
  LeaseId last_lease;
  std::uint32_t slots = 0;
  std::map<NodeId, Holder> holders;
  std::map<NodeId, Query> locates;
  std::optional<ReduceState> reduce;
  Incarnation orphaned_upto;  // attempts whose owner has died
  Instant orphan_until;       // the mark above is kept for later claims until then
  // The node that would tell of the owner's end, and since when that node is away.
  std::optional<std::pair<NodeId, Instant>> owner_gone;
  std::uint8_t copies = 0;  // nodes that are to keep it, as any keeper has said; 0: it has an owner
  std::set<NodeId> adopters;  // asked to keep the object, and have neither all of it nor declined
  std::set<NodeId> declined;
  Instant declined_until;
  std::optional<Instant> deadline;
};

// Voids the bytes known so far: every node that wants them starts again.
void restart(DirectoryEntry& entry, bool keep_waiting);
void recut(DirectoryEntry& entry, std::uint16_t stripe_count);
// True if nothing of the object is in flight and no node has a part of it, so it may be cut anew.
[[nodiscard]] bool is_untouched(const DirectoryEntry& entry);
// True if any node has a stripe of the object, or makes one.
[[nodiscard]] bool is_held(const DirectoryEntry& entry);
[[nodiscard]] bool has_begun(const DirectoryEntry& entry);
[[nodiscard]] bool is_orphaned(const DirectoryEntry& entry);

using SenderEdges = std::map<NodeId, std::uint32_t>;  // number of edges that each node feeds

struct DirectoryStats {
  std::uint64_t grants = 0, regrants = 0, pushes = 0, losses = 0;
  std::uint64_t moves = 0;  // edges moved because they were silent or slow
};

}  // namespace hoplite
