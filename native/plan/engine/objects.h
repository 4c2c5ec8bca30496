// SPDX-License-Identifier: Apache-2.0
// The objects of this node: what it has and wants of each, and the clients that put, get and map
// them. Ranges of the arena are requested, granted, voided and evicted here. Transfers, Folds and
// Spills advance one object's entry, which find(), at() and make() return. Only Objects erases
// entries.
// Invariants: an object with a range does not wait for one, and its rank of eviction in the
// inventory follows from its state; extents of objects, of ranges without a name and of folds never
// overlap; a closed receive writes into one of them only.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "plan/broadcast/sender.h"
#include "plan/messages.h"
#include "plan/objects/inventory.h"
#include "plan/objects/local_object.h"

namespace hoplite {

struct Owners;

enum class Pins : std::uint8_t { kOne, kAll };        // of one client
enum class Cause : std::uint8_t { kDeleted, kLost };  // of an object's end here

struct Retired {  // bytes without a name that are still mapped, sent or written
  Extent extent;
  std::map<ClientId, std::uint32_t> pins;
  std::optional<Waiter> writer;  // of a dropped put whose client does not know yet
};

class Objects {
 public:
  using RetiredRanges = std::multimap<std::pair<ObjectId, Incarnation>, Retired>;

  explicit Objects(Owners& engine) : engine_(engine) {}

  // ---- from clients (commands.cc) ----
  void handle_put(const Waiter& waiter, PutCommand put);
  void handle_wrote(const Waiter& waiter, const WroteCommand& wrote);
  void handle_get(const Waiter& waiter, const GetCommand& get);
  void handle_release(ClientId client, const ReleaseCommand& release);
  void handle_cancel(const Waiter& waiter, const CancelCommand& cancel);
  void handle_client_lost(ClientId client);
  // ---- from the home, or the sender of a pull ----
  void handle_lost(NodeId from, const Lost& lost);

  // ---- the table ----
  [[nodiscard]] const LocalObjects& all() const { return objects_; }
  [[nodiscard]] LocalObject* find(const ObjectId& id);  // nullptr: nothing is known of it
  [[nodiscard]] const LocalObject* find(const ObjectId& id) const;
  [[nodiscard]] LocalObject& at(const ObjectId& id) { return objects_.at(id); }
  [[nodiscard]] bool contains(const ObjectId& id) const { return objects_.contains(id); }
  [[nodiscard]] LocalObject& make(const ObjectId& id) { return objects_[id]; }
  void forget_if_empty(const ObjectId& id);
  [[nodiscard]] const RetiredRanges& retired_ranges() const { return retired_; }

  // ---- what the home hears ----
  void claim(const ObjectId& id);
  void repeat_claims(std::optional<NodeId> only_to);

  // ---- ranges ----
  // Admission may evict, drop or refuse ANY object: after admit(), admit_for(), reserve_at_once()
  // and store_small() a reference into the table may be void. ask_range() only joins the line, and
  // settle() admits.
  bool ask_range(const ObjectId& id, std::uint64_t size_bytes, Line line);
  bool reserve_at_once(const ObjectId& id, std::uint64_t size_bytes);
  void admit();
  void admit_for(const ObjectId& id);
  void refuse_range(const ObjectId& id, std::uint64_t size_bytes);
  void fail_without_room(const ObjectId& name, const std::string& text);
  void release_range(Extent range);  // once no closed receive may write there
  void note_use(const ObjectId& id);
  // Pins all bytes of an attempt for this node, and returns their range; nullopt if they are not
  // here. Bytes that were deleted are here as long as a client maps them.
  [[nodiscard]] std::optional<Extent> pin_whole(const Attempt& attempt, std::uint64_t size_bytes);
  void unpin(const ObjectId& id, Incarnation incarnation, ClientId client, Pins which);
  [[nodiscard]] bool is_evictable(const ObjectId& id, const LocalObject& object) const;
  [[nodiscard]] std::optional<Rank> eviction_rank(const ObjectId& id,
                                                  const LocalObject& object) const;

  // ---- bytes ----
  void forget_sums();  // of all objects, and of all that is being written
  [[nodiscard]] ObjectMeta cut(ObjectMeta meta) const;
  void store_small(const ObjectId& id, LocalObject& object, Bytes payload);
  // More leading bytes are here: answers the gets that wait for no more. Cost: O(1) if none does.
  void grow(const ObjectId& id, LocalObject& object) {
    if (object.next_upto_bytes != kAllBytes) answer_early(id, object);
  }
  void complete(const ObjectId& id, LocalObject& object);
  void fail_waiters(const ObjectId& id, LocalObject& object, Code code, const std::string& text);
  // Bytes are lost in five ways: these four, and fail_without_room(). That one and the last two
  // may erase the entry.
  void void_bytes(const ObjectId& id, LocalObject& object);  // all of them; what is wanted stays
  void end_put(const ObjectId& id, LocalObject& object, const char* what_happened);  // and its put
  void drop_unwanted(const ObjectId& id);  // a part that no request here wants
  void drop_object(const ObjectId& id, Incarnation upto, Cause cause);
  [[nodiscard]] const ObjectMeta* meta_here(const ReduceSource& source) const;
  void check_invariants() const;

 private:
  void cancel_request(ObjectId id, LocalObject& object, const Waiter& waiter);
  void answer_get(const ObjectId& id, LocalObject& object, const Waiter& waiter);
  void answer_early(const ObjectId& id, LocalObject& object);
  [[nodiscard]] std::optional<std::uint64_t> early_bytes(const LocalObject& object) const;
  void take_range(const Admitted& admitted);
  void evict(const ObjectId& id);
  void free_retired(const ObjectId& id, Incarnation incarnation);

  Owners& engine_;
  LocalObjects objects_;
  RetiredRanges retired_;
  std::optional<ObjectId> granting_;  // object whose range is requested for its grant
};

}  // namespace hoplite
