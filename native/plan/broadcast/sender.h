// SPDX-License-Identifier: Apache-2.0
// The sending end of pulls: which receivers this node serves, how far each is, and which block goes
// out next. The order of blocks:
// - The object with the fewest bytes left to send goes first (design decision 19).
// - Its receivers take turns, a block each, so that the stripes of a reduce get along evenly.
// - Each node begins with the receiver after itself, so that not all send to the same one.
// Blocks of several objects that one receiver folds together are combined here, and sent as one.
// Invariant: a block is sent only with a credit and when it is here.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/links/rails.h"
#include "plan/objects/inventory.h"
#include "plan/objects/local_object.h"

namespace hoplite {

using LocalObjects = std::map<ObjectId, LocalObject>;

class Sender {
 public:
  Sender(NodeId node, std::uint64_t combined_bytes_max)
      : node_(node), combined_bytes_max_(combined_bytes_max) {}

  // Returns false if this node can't serve the pull, or if the peer pulls too much at once. The
  // caller then answers PullRefused.
  bool handle_start(NodeId to, TransferId transfer, const PullStart& start,
                    const LocalObjects& objects);
  void handle_credit(NodeId to, TransferId transfer, std::uint32_t blocks);
  // Returns the objects that the pull was served from.
  std::vector<ObjectId> handle_stop(NodeId to, TransferId transfer);
  std::vector<ObjectId> handle_link_down(NodeId to);
  // A pull that this node can't serve, or can't serve any longer, and its objects.
  struct Unserved {
    NodeId to;
    TransferId transfer;
    std::vector<ObjectId> objects;
  };
  // Call when the object is gone or void. Returns the transfers to refuse.
  std::vector<Unserved> drop(const ObjectId& object);

  // Returns the blocks to send now, in their order and booked on their rails: all but those that
  // wait for bytes, credit or room. `fold_bytes_left`: what this turn may still fold; combined
  // blocks beyond it wait. Cost: one look at each pull, and for each block one at those that had
  // something to send.
  struct Next {
    SendBlock block;
    Extent range;                    // of the object, and of those beside it
    std::vector<ObjectId> combined;  // the caller folds these into the extent first; empty: the
                                     // extent is the object's own
    ReduceOp op = ReduceOp::kSum;
  };
  std::vector<Next> take_blocks(const LocalObjects& objects, Rails& rails, Inventory& inventory,
                                std::uint64_t fold_bytes_left, Instant now);
  // Returns a pull that found no memory to combine its objects in.
  std::optional<Unserved> poll_refused();
  // A block in flight pins its object's bytes, or owns a range borrowed for it alone.
  struct Sent {
    ObjectId object;
    Incarnation incarnation;
    std::optional<Extent> borrowed;
  };
  // Returns what the block with this ticket holds; nothing if the link broke meanwhile. Blocks may
  // leave in another order than they were booked in, even on one rail, because blocks of a rail
  // that isn't open yet go over another rail.
  std::optional<Sent> handle_sent(NodeId to, BlockTicket ticket);
  // Returns the blocks that were queued on a link that broke.
  std::vector<Sent> take_unsent(NodeId to);

  [[nodiscard]] bool serves(const ObjectId& object) const { return served_.contains(object); }
  [[nodiscard]] std::size_t edge_count() const { return edges_.size(); }

 private:
  struct Edge {
    PullStart want;
    std::uint32_t next = 0;  // in the stripe
    std::uint32_t credits = 0;
    std::uint64_t turn = 0;  // when it was served last
    bool is_early = false;   // its branch was not here when it began
  };
  // The load of one peer's pulls, bounded because the sender looks at each pull in every turn.
  struct Load {
    std::size_t objects = 0;  // that its pulls name
    std::size_t early = 0;
  };
  using Key = std::pair<NodeId, TransferId>;
  using Edges = std::map<Key, Edge>;
  static std::vector<ObjectId> objects_of(const Edge& edge);
  bool add(const Key& key, const PullStart& start, bool is_early);
  Edges::iterator remove(Edges::iterator at);
  // True if the block of `object` is here, and of every object that is combined with it.
  static bool has(const LocalObjects& objects, const LocalObject& object, const Edge& edge,
                  Extent range);
  // A pull whose next block may go out. One look finds them, and they are used up before anything
  // else changes.
  struct Candidate;
  using Candidates = std::vector<Candidate>;
  Candidates find_candidates(const LocalObjects& objects, const Rails& rails);
  [[nodiscard]] Candidates::iterator first_of(Candidates& candidates) const;
  Next send(Candidate& candidate, Extent block, std::optional<Extent> borrowed, Rails& rails,
            Instant now);
  // Bytes left to send of each object, to all of its receivers.
  using BytesLeft = std::map<ObjectId, std::uint64_t>;
  [[nodiscard]] BytesLeft bytes_left(const LocalObjects& objects) const;

  [[nodiscard]] bool can_combine(const PullStart& want, const LocalObjects& objects) const;

  NodeId node_;
  std::uint64_t combined_bytes_max_;  // of the blocks that are folded for one that is sent
  Edges edges_;
  std::map<NodeId, Load> loads_;
  std::map<ObjectId, std::size_t> served_;  // -> how many times pulls name it
  std::uint64_t turns_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::map<std::pair<NodeId, BlockTicket>, Sent> queued_;
  std::deque<Unserved> refused_;
};

}  // namespace hoplite
