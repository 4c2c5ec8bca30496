// SPDX-License-Identifier: Apache-2.0
// One shard of the object directory: for each object whose home is this node, which nodes hold
// what, how far, which wait, and which sends to which. Soft state, rebuilt from claims after a
// change of view or a broken link; until then it grants on what it knows and calls nothing lost
// (decision 3). Queries may come before the object. Per stripe the edges form a forest.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/broadcast/broadcast.h"
#include "plan/directory/deletions.h"
#include "plan/directory/directory_entry.h"
#include "plan/links/membership.h"
#include "plan/messages.h"

namespace hoplite {

class Directory {
 public:
  explicit Directory(const EngineConfig& config) : config_(config), deletions_(config) {}

  // `epoch` is that of the message: a claim older than the grant it doesn't know is stale news.
  // `copy`: what this node says of the copy that it made of the claim's payload.
  void handle_claim(NodeId from, const Claim& claim, Epoch epoch, Instant now,
                    const std::optional<Claim>& copy = std::nullopt);
  void handle_progress(NodeId from, const Progress& progress, Instant now);
  void handle_delete(NodeId from, const Delete& request, Instant now);
  void handle_orphan(const Orphan& orphan, Instant now);
  void handle_locate(NodeId from, const Locate& locate, Instant now);
  void handle_resync_done(NodeId from, Instant now);
  void handle_draining(NodeId node, bool draining, Instant now);
  void handle_view(const Membership& view, Instant now);
  void handle_newer_view(NodeId from, Epoch epoch) { newer_[from] = epoch; }  // `from` has it
  void handle_link_down(NodeId node);
  void handle_unreachable(NodeId node);  // `node` is out of reach until its ResyncDone
  void handle_node_dead(NodeId node, Instant now);
  void handle_timeout(Instant now);
  // A new target epoch voids older blocks, a commit lets gets resolve, a failure answers them.
  void handle_reduce_state(const ReduceState& state, Instant now);

  [[nodiscard]] std::optional<Parcel> poll_parcel();
  [[nodiscard]] std::optional<Instant> poll_timeout() const;

  [[nodiscard]] std::size_t entry_count() const;  // and deletions under way
  [[nodiscard]] const Deletions& deletions() const { return deletions_; }
  [[nodiscard]] bool is_recovering() const { return !unheard_.empty(); }
  [[nodiscard]] bool is_up_to_date() const { return unheard_.empty() && newer_.empty(); }
  [[nodiscard]] bool may_say_lost() const { return is_up_to_date() && unreachable_.empty(); }
  [[nodiscard]] bool awaits(NodeId member) const { return awaited_.contains(member); }
  [[nodiscard]] bool is_deleted(const ObjectId& object) const {
    return !entries_.contains(object) && deletions_.contains(object);
  }
  [[nodiscard]] const DirectoryStats& stats() const { return stats_; }
  void check_invariants() const;

 private:
  using Entry = DirectoryEntry;
  using Edge = Entry::Edge;
  using Holder = Entry::Holder;
  // claims (directory.cc)
  void apply_claim(NodeId from, const Claim& claim, Epoch epoch, Instant now);
  bool end_silence(NodeId node, Instant now);
  [[nodiscard]] Instant grace_end(Instant since) const;
  bool adopt_identity(NodeId from, const Claim& claim, Entry& entry);
  void merge_stripes(const Claim& claim, Epoch epoch, Entry& entry, Holder& holder, Instant now);
  void merge_stripe(const StripeClaim& claim, Epoch epoch, const Entry& entry, Edge& edge,
                    Instant now);
  void note_adopter(NodeId from, const Claim& claim, Entry& entry, Instant now) const;
  void break_cycles(Entry& entry, NodeId node);
  void remove_node(NodeId node, Instant now);
  void begin_deletion(NodeId from, const Delete& request, Entry& entry, Instant now);
  void forget(const ObjectId& object);
  void send_of_deletions();

  // service (directory_service.cc): all that an entry owes any node, after any change
  void serve_claims();
  void service(const ObjectId& object, Instant now);
  void service_all(Instant now);
  void decide_stripes(Entry& entry) const;
  [[nodiscard]] SenderRoom room_of(const Entry& entry) const;
  [[nodiscard]] std::optional<std::string> why_lost(const Entry& entry) const;
  void answer_lost(const ObjectId& object, Entry& entry);
  // keeping (directory_keeping.cc)
  [[nodiscard]] bool is_kept(const Entry& entry) const;
  [[nodiscard]] std::size_t count_missing(const Entry& entry) const;
  void expire_waits(const ObjectId& object, Entry& entry, Instant now);
  void watch_owner(Entry& entry, Instant now);
  void tell_standing(const ObjectId& object, Entry& entry);
  void find_adopter(const ObjectId& object, Entry& entry, Instant now);
  void expire_pushes(Entry& entry, Instant now);
  void push_small(const ObjectId& object, Entry& entry, Instant now);
  void grant_stripes(const ObjectId& object, Entry& entry, Instant now);
  void answer_locates(const ObjectId& object, Entry& entry, Instant now);
  bool grant_whole_plan(const ObjectId& object, Entry& entry, Instant now);
  void join_as_interior(const ObjectId& object, Entry& entry, NodeId node, Instant now);
  void grant(const ObjectId& object, Entry& entry, NodeId node, std::size_t stripe, NodeId sender,
             Instant now);
  void send_lease(const ObjectId& object, const Entry& entry, NodeId to, StripeLease lease);
  [[nodiscard]] bool counts(const Entry& entry, NodeId receiver, Instant now) const;
  [[nodiscard]] SenderEdges edges_by_sender(const Entry& entry, Instant now) const;
  [[nodiscard]] std::vector<SenderCandidate> find_candidates(const Entry& entry, NodeId receiver,
                                                             std::size_t stripe,
                                                             const SenderEdges& edges) const;
  [[nodiscard]] std::optional<std::uint32_t> depth_of(const Entry& entry, NodeId node,
                                                      NodeId receiver, std::size_t stripe) const;
  // repair (directory_repair.cc): edges that are silent or slow
  enum class Capacity : std::uint8_t { kMayOverflow, kMustHave };
  bool judge(const ObjectId& object, Entry& entry, NodeId node, Instant now);
  bool move_edge(const ObjectId& object, Entry& entry, NodeId node, std::size_t stripe,
                 Capacity capacity, Instant now);
  void make_leaf(const ObjectId& object, Entry& entry, NodeId node, Instant now);
  [[nodiscard]] bool feeds(const Entry& entry, NodeId node, std::size_t stripe) const;
  [[nodiscard]] std::vector<std::uint64_t> rates_beside(const Entry& entry, NodeId node,
                                                        std::optional<std::size_t> stripe,
                                                        Instant since) const;
  [[nodiscard]] Duration period_of(const Entry& entry, Instant now) const;
  [[nodiscard]] bool is_mute(const Entry& entry, NodeId node, Instant now) const;
  [[nodiscard]] bool is_sound(const Entry& entry, NodeId node, std::size_t stripe,
                              Instant now) const;
  void wake_at(Entry& entry, Instant at);
  void schedule(const ObjectId& object, Entry& entry);
  void send(NodeId to, PeerMessage body, bool with_payload = false);

  EngineConfig config_;
  Deletions deletions_;
  Epoch epoch_;
  std::map<NodeId, Epoch> newer_;  // views that members have and this node lacks
  std::map<ObjectId, Entry> entries_;
  std::set<std::pair<Instant, ObjectId>> timers_;
  std::set<NodeId> live_;
  std::set<NodeId> draining_;
  std::set<NodeId> unheard_;      // members whose resync is not done
  std::set<NodeId> unreachable_;  // likewise since their link broke; they may have put more
  std::set<NodeId> awaited_;      // both, and members whose link is up again
  Instant heard_at_;              // when the last of them was heard
  std::set<ObjectId> unserved_;   // claimed since the last service; the last claim came at
  Instant claimed_at_;
  std::deque<Parcel> parcels_;
  std::uint64_t parcels_polled_ = 0;
  std::map<NodeId, std::uint64_t> open_grants_;  // grant that further leases of a node join
  DirectoryStats stats_;
};

}  // namespace hoplite
