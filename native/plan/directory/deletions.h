// SPDX-License-Identifier: Apache-2.0
// The deletions of one directory shard (decision 24). Each awaits the members that may have some of
// the object; a member answers a Drop by a claim of nothing. When no member is awaited any more,
// every node that asked for the deletion gets `Deleted` and stops repeating it. The shard remembers
// the attempt for a life, to refuse late messages. It awaits a silent member for a life, or until
// there are too many deletions. Memory: about 300 bytes for each deletion in flight and 150 for
// each that has ended; both are bounded.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "plan/links/membership.h"
#include "plan/messages/engine_config.h"
#include "plan/messages/parcel.h"
#include "plan/objects/recent.h"

namespace hoplite {

inline constexpr const char* kLostAsOrphan =
    "its owner had died and its memory was needed; put it again";

class Deletions {
 public:
  using Awaited = std::map<NodeId, bool>;  // true: the member's resync repeats what it has

  explicit Deletions(const EngineConfig& config);

  // Begins the deletion that `request` asks for; it ends at once if no member is awaited. `upto`:
  // the newest attempt known here. `is_known`: the shard has heard of an attempt, so no later one
  // is meant. `from` is kNoNode for an orphan of which nothing is left.
  void begin(NodeId from, const Delete& request, Incarnation upto, bool is_known,
             const Awaited& awaited, Instant now);
  void answer(NodeId to, const Delete& request);  // it has ended, or came too late to matter

  // Returns false if the claim is of deleted bytes, or only says that they are gone or wanted.
  // `is_served`: the shard has an entry for a later attempt.
  [[nodiscard]] bool admit(NodeId from, const Claim& claim, bool is_served, Instant now);
  void refuse(NodeId to, const ObjectId& object);  // answers its question: why the object is gone

  void handle_link_down(NodeId node);
  void handle_resync_done(NodeId node, Instant now);
  void handle_view(const Membership& view, Instant now);
  void remove_node(NodeId node, Instant now);
  void handle_timeout(Instant now);

  [[nodiscard]] bool contains(const ObjectId& object) const;
  [[nodiscard]] bool covers(const Delete& request) const;  // begun with it, or before
  [[nodiscard]] std::size_t under_way_count() const { return under_way_.size(); }
  [[nodiscard]] std::size_t ended_count() const { return ended_.size() + orphans_.size(); }
  [[nodiscard]] std::optional<Parcel> poll_parcel();
  [[nodiscard]] std::optional<Instant> poll_timeout() const;
  void check_invariants() const;

 private:
  struct Deletion {
    Incarnation upto;
    bool is_undated = false;  // True if any attempt that the awaited members have is meant
    Awaited awaited;
    std::set<std::pair<NodeId, Incarnation>> requests;  // unanswered; at most two of a node
    Instant until;
    std::list<ObjectId>::iterator place;
  };
  using UnderWay = std::map<ObjectId, Deletion>;

  static void note_request(Deletion& deletion, NodeId from, Incarnation upto);
  UnderWay::iterator open(const ObjectId& object, Incarnation upto, Instant now);
  void end(UnderWay::iterator it, Instant now);
  void stop_awaiting(NodeId node, bool only_stale, Instant now);
  void drop(NodeId to, const ObjectId& object, Incarnation upto);

  EngineConfig config_;
  std::size_t members_ = 1;
  UnderWay under_way_;
  std::list<ObjectId> order_;  // of what is under way: the oldest first
  RecentObjects ended_;
  RecentObjects orphans_;  // of them
  std::deque<Parcel> parcels_;
};

}  // namespace hoplite
