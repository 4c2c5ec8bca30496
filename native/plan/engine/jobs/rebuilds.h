// SPDX-License-Identifier: Apache-2.0
// Objects that this node makes of others, once for all that want them: of a base that it has and
// deltas that it fetches (decision 42), or of runs of a source that it has (an excerpt, decision
// 48). A rebuild pins the base, gets the deltas or the source as a client of its own node, waits
// for a range, and gives jobs to a helper thread, step by step. The object is then claimed as a
// copy that may be evicted. Wherever a rebuild fails, the node gets the object whole instead; for
// an excerpt it tells those that asked. While a rebuild goes on, the object's home hears nothing of
// it, so it leases no sender.
// Invariants: an object that is rebuilt is wanted or an excerpt, is not complete, and is pulled
// from no node; the base, each delta that came, and the target of a step have a pin of this node.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/messages.h"
#include "plan/objects/local_object.h"

namespace hoplite {

struct Owners;

class Rebuilds {
 public:
  explicit Rebuilds(Owners& engine) : engine_(engine) {}

  void handle_rebuild(const Waiter& waiter, const RebuildCommand& command);
  void handle_rebuild_done(const RebuildDone& event);
  // The answer to a get of this node itself. It is handled later, by settle_one().
  void note_answer(RequestId request, Reply reply);
  bool settle_one();  // returns false if nothing is to be done
  // True if this node has all of the source, or a client here writes it, and nothing of the excerpt
  // is here or on its way.
  [[nodiscard]] bool may_make(const Excerpt& excerpt) const;
  // Begins to make an excerpt, for a node that asked or (kNoNode) for clients here. REQUIRES:
  // may_make(excerpt).
  void make(const Excerpt& excerpt, NodeId asker);
  void note_asker(const ObjectId& id, NodeId asker);  // REQUIRES: makes(id)
  [[nodiscard]] std::size_t count() const { return all_.size(); }
  void handle_timeout();

  // True while the object is rebuilt here.
  [[nodiscard]] bool makes(const ObjectId& id) const { return by_object_.contains(id); }
  void begin_steps(const ObjectId& id);  // its range has come. REQUIRES: makes(id)
  // Gives up the rebuild, and asks the home for the object, or tells those that asked for an
  // excerpt. REQUIRES: makes(id).
  void fall_back(ObjectId id, Code code = Code::kObjectLost, std::string why = {});
  // Ends the rebuild, if there is one, because the object's bytes go. Erases no object.
  void end(const ObjectId& id);

  [[nodiscard]] std::optional<Instant> next_deadline() const;
  void check_invariants() const;

 private:
  struct Rebuild {
    ObjectId object;
    Incarnation incarnation;
    std::uint32_t crc32c = 0;
    Instant until;
    Extent base;
    std::vector<std::optional<Extent>> deltas;  // those that came
    std::optional<Extent> target;
    bool is_under_way = false;    // True if a step is: then all its ranges stay
    std::vector<Attempt> pinned;  // the base, deltas that came, and the object once it has a range
    std::vector<StridedRuns> runs = {};  // of an excerpt: then `deltas` is its source
    Attempt source = {};
    std::set<NodeId> askers = {};
  };
  struct Asked {  // a get of this node itself that is not answered
    RebuildId rebuild;
    std::size_t index = 0;  // among its deltas
    Attempt delta;
  };
  using ById = std::map<RebuildId, Rebuild>;

  [[nodiscard]] bool may_begin(const RebuildCommand& command) const;
  void begin(const RebuildCommand& command, Extent base);
  void fetch(RebuildId id, std::size_t index, const Attempt& delta);
  void take_answer(const Asked& asked, const Reply& reply);
  void order_step(RebuildId id, Rebuild& rebuild);
  void finish(ById::iterator it);
  void release(ById::iterator it);
  [[nodiscard]] bool is_live(ById::const_iterator it) const;

  Owners& engine_;
  ById all_;                                 // also those that ended amid a step
  std::map<ObjectId, RebuildId> by_object_;  // that go on
  std::map<RequestId, Asked> asked_;         // until the answer
  std::deque<std::pair<RequestId, Reply>> answers_;
  std::deque<RequestId> withdrawn_;                    // to be cancelled
  std::set<std::pair<Instant, RebuildId>> deadlines_;  // of those that go on
  RebuildId last_;
  RequestId last_request_;
};

}  // namespace hoplite
