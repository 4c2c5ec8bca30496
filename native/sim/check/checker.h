// SPDX-License-Identifier: Apache-2.0
// Checks from outside what must hold. The checker knows the clients' requests and their answers,
// the lives of the nodes, and what io/ would see. It knows nothing of the engines' insides. A
// violation is a sentence in failures(); the run goes on, so that the trace shows what follows.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/check/fences.h"
#include "sim/model/request.h"

namespace hoplite::sim {

// How long a message may be in flight: longer than all pauses, stalls and view changes together.
inline constexpr Duration kUnderWayMax = 5_s;

// "get of 7f3a09c1..0001 on node 2 (request 17)".
[[nodiscard]] std::string name_of(const Request& request);

class Checker {
 public:
  // ---- the cluster reports each event as it happens ----
  void note_put(const Request& put);
  void note_seal(const Request& put, Instant now);  // its client has got Done
  void note_delete_request(const ObjectId& object, Instant now);
  void note_delete(const Request& erase);  // its client has got Done
  // A client has asked that several nodes keep an object; it has got Done. `members`: live ones of
  // the view in which it is decided, or fewer.
  void note_keep(const Request& keep, std::size_t members);
  void note_kept(const Request& keep, std::size_t members);
  void note_orphan(const ObjectId& object) { objects_[object].orphaned = true; }
  void note_drain(std::size_t node, Incarnation life) { draining_.emplace(node, life); }
  void note_node_loss(std::size_t node, Incarnation life, Instant now);
  void note_reduce(const Request& reduce);
  void check_get(const Request& get, Instant now);
  void check_error(const Request& request, Instant now);
  void check_result(const Request& reduce);
  void check_release(const Request& get, std::span<const std::byte> mapped);  // before the release
  // A node takes these bytes, which it has made of others, for the whole object.
  void check_rebuilt(const ObjectId& object, std::span<const std::byte> bytes, std::size_t node);
  void check_fence(std::size_t node, const Fences::Breach& breach) {
    if (breach) fail("not fenced: node " + std::to_string(node) + " " + *breach);
  }
  void fail(const std::string& text) {
    if (!is_muted_) failures_.push_back(text);
  }

  // ---- asked at the end ----
  // True if a live node holds the whole copy that a put made, or one of those that nodes keep, and
  // no client has deleted it.
  [[nodiscard]] bool has_live_copy(const ObjectId& object) const;
  [[nodiscard]] bool is_deleted(const ObjectId& object) const;
  // Compares each answer to a get of a target with the fold of the members that its reduce
  // reported. A result that its readers' nodes took along before the reduce was answered may have
  // had other members.
  void check_reduces(const std::deque<Request>& requests);
  [[nodiscard]] const std::vector<std::string>& failures() const { return failures_; }
  // The node could not read a copy back from its disk.
  void note_copy_loss(const ObjectId& object, std::size_t node, Incarnation life);
  // Peers lie: the checker judges no answer, only faults that no lie may cause.
  void expect_lies() { are_lies_told_ = true; }
  // One member lies: the checker judges answers about honest objects only.
  void expect_liar(std::function<bool(const ObjectId&)> is_honest) {
    is_honest_ = std::move(is_honest);
  }
  // Ignores failures while it is muted, because they happen on the lying node. Returns whether it
  // was muted.
  bool mute(bool is_muted) { return std::exchange(is_muted_, is_muted); }
  // Small arenas make kStoreFull a right answer.
  void allow_store_full() { store_full_is_right_ = true; }

 private:
  struct Copy {
    std::size_t node = 0;
    Incarnation life;
    Incarnation incarnation;
    Instant sealed;
  };
  struct Keepers {  // of an object that several nodes are to keep
    std::size_t least = 0;
    std::size_t losses_before = 0;  // in the cluster
    std::size_t losses = 0;         // of its copies on disks
    bool are_there = false;
  };
  using Value = std::pair<std::vector<Part>, std::shared_ptr<const Bytes>>;
  struct Folds {  // the possible values of a reduce's target, from that many puts and sources
    std::uint64_t puts = 0;
    std::size_t sources = 0;
    std::vector<Value> values;
  };
  struct Known {
    std::map<Incarnation, Value> puts;  // the value of each attempt
    std::vector<Copy> copies;           // sealed, on nodes that live
    std::optional<Instant> deleted;
    std::map<std::pair<std::size_t, Incarnation>, const Request*> erased;  // by a node's life
    bool orphaned = false;                                                 // it may be evicted
    Keepers keepers = {};
    const Request* reduce = nullptr;  // the object is its target
    std::optional<Folds> folds;       // the values that its last get was compared with
  };
  void judge(const ObjectId& object, const std::string& text) {
    if (!are_lies_told_ && (!is_honest_ || is_honest_(object))) fail(text);
  }
  static bool is_withdrawn(const Known& known);
  [[nodiscard]] std::size_t count_losses() const { return lost_.size() + draining_.size(); }
  // True if fewer nodes than keep the object have died, or drain, since a client asked for that.
  [[nodiscard]] bool has_keeper(const Known& known) const {
    const Keepers& all = known.keepers;
    return all.are_there && count_losses() - all.losses_before + all.losses < all.least;
  }
  [[nodiscard]] std::vector<Value> values_of(const ObjectId& object) const;
  [[nodiscard]] std::vector<Value> folds(const Request& reduce,
                                         const std::vector<std::uint32_t>& members) const;
  [[nodiscard]] bool has_equal_sources(const Request& reduce) const;
  [[nodiscard]] bool has_fit_sources(const Request& reduce) const;
  [[nodiscard]] std::vector<Value> all_folds(const Request& reduce) const;
  bool is_a_fold(Known& target, const Bytes& bytes) const;
  static bool is_one_of(const std::vector<Value>& values, const Bytes& bytes);
  void check_reduce_failure(const Request& reduce, const std::string& what);

  std::map<ObjectId, Known> objects_;
  std::map<std::pair<std::size_t, Incarnation>, Instant> lost_;  // nodes' lives, and their ends
  std::uint64_t puts_ = 0;
  std::set<std::pair<std::size_t, Incarnation>> draining_;  // their copies may be anywhere
  std::vector<std::string> failures_;
  bool store_full_is_right_ = false;
  bool are_lies_told_ = false;
  bool is_muted_ = false;
  std::function<bool(const ObjectId&)> is_honest_;
};

}  // namespace hoplite::sim
