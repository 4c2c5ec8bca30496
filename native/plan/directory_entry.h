// What a directory shard knows of one object, all of it from claims. Plain data; owned and changed
// by Directory. SPDX-License-Identifier: Apache-2.0
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
  struct Course {             // how one edge gets on, in blocks of its stripe, as its receiver says
    std::uint32_t ready = 0;  // leading ones that are there
    std::uint32_t mark = 0;   // and were when the period began that is judged next
    std::uint32_t first = 0;  // and when it was leased, at `begun`
    Instant begun;
    Instant judged;
    std::uint64_t rate_bytes_per_s = 0;  // in the last period judged
    std::uint8_t silent = 0, slow = 0;   // periods in a row
    std::uint8_t moves = 0;              // to another sender, each followed by a longer rest
    Instant rests_until;
  };
  struct Edge {  // one stripe at one holder
    StripeState state = StripeState::kIdle;
    bool orphan = false;  // its sender died, and the receiver has not said yet how far it got
    LeaseId lease;
    NodeId sender;
    Epoch granted;       // in which epoch the lease was sent; 0: over a link that broke since
    NodeId failed;       // who must not be granted again before `not_before`
    Instant not_before;  // also: when to push a small object again
    Course course;
  };
  struct Holder {
    bool wants = false, exists = false, pinned = false;
    NodeId owner;                              // of what it has adopted
    bool orphaned = false, elsewhere = false;  // as it says; and as it was told since
    std::optional<std::pair<bool, bool>> told;
    bool stale = false;      // not said again since its link broke or the view changed
    std::uint32_t slot = 0;  // order of arrival: decides which stripe it is interior for
    Instant since;
    Instant heard;           // its last progress
    Instant marked;          // the period that is judged next began
    std::uint8_t slow = 0;   // periods in a row in which nearly all of its stripes were
    bool leaf_only = false;  // too slow for others to depend on it
    std::vector<Edge> stripes;
  };
  struct Query {
    Locate locate;
    Instant since;
  };

  bool known = false;  // somebody has said what it is
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  bool committed = true, lost = false;
  Code lost_code = Code::kObjectLost;
  std::string lost_text;
  std::uint16_t stripe_count = 0;  // 0: not decided
  Instant interiors_until;         // receivers that ask by then may feed those before them
  bool has_begun = false;          // somebody has more than the beginning of a stripe
  LeaseId last_lease;
  std::uint32_t slots = 0;
  std::map<NodeId, Holder> holders;
  std::map<NodeId, Query> locates;
  std::optional<ReduceState> reduce;
  Incarnation orphaned_upto;  // attempts whose owner has died
  Instant orphan_until;       // the news is kept for claims that come later
  std::optional<std::pair<NodeId, Instant>> owner_gone;  // since when who tells of its end is away
  NodeId adopter;  // who was asked to keep it for draining nodes, and has not declined
  std::set<NodeId> declined;
  Instant declined_until;
  std::optional<Instant> deadline;
};

using SenderEdges = std::map<NodeId, std::uint32_t>;  // how many each node feeds

struct DirectoryStats {
  std::uint64_t grants = 0, regrants = 0, pushes = 0, losses = 0;
  std::uint64_t moves = 0;  // edges moved because they were silent or slow
};

}  // namespace hoplite
