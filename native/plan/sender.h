// The other end of pulls: which receivers this node serves, how far each is, and which block goes
// out next. First the object of which least is left to send (design decision 19), and of one object
// a block to each receiver in turn, so that the stripes of a reduce get along evenly, and their
// owners can pass on what they have folded. Each node begins with the receiver that comes after it,
// so that not all of them send to the same one at once.
// Blocks of several objects that one receiver folds together are combined here, and sent as one.
// Invariant: no block is sent without a credit, nor before it is here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/inventory.h"
#include "plan/local_object.h"
#include "plan/rails.h"

namespace hoplite {

using LocalObjects = std::map<ObjectId, LocalObject>;
enum class Folds : std::uint8_t { kNow, kLater };  // a turn folds so much and no more

class Sender {
 public:
  Sender(NodeId node, std::uint64_t combined_bytes_max)
      : node_(node), combined_bytes_max_(combined_bytes_max) {}

  // Returns false if what is here can't serve this, or if the peer pulls too much at once: the
  // caller answers PullRefused.
  bool handle_start(NodeId to, TransferId transfer, const PullStart& start,
                    const LocalObjects& objects);
  void handle_credit(NodeId to, TransferId transfer, std::uint32_t blocks);
  // What it was served, if anything.
  std::vector<ObjectId> handle_stop(NodeId to, TransferId transfer);
  std::vector<ObjectId> handle_link_down(NodeId to);
  // Whom this node can't or can no longer serve, and what it would have been served.
  struct Unserved {
    NodeId to;
    TransferId transfer;
    std::vector<ObjectId> objects;
  };
  // The object is gone or void: returns the transfers to refuse.
  std::vector<Unserved> drop(const ObjectId& object);

  // The next block to send, booked on its rail; nothing when all wait for blocks, credit or room.
  // One that several objects are combined for is to be folded into its extent first.
  struct Next {
    SendBlock block;
    Extent range;                    // of the object, and of those beside it
    std::vector<ObjectId> combined;  // empty: the extent is the object's own
    ReduceOp op = ReduceOp::kSum;
  };
  std::optional<Next> poll_block(const LocalObjects& objects, Rails& rails, Inventory& inventory,
                                 Folds folds, Instant now);
  // There was no memory for what was to be combined for it.
  std::optional<Unserved> poll_refused();
  // What a block that is on its way keeps: its object's bytes, or a range borrowed for it alone.
  struct Sent {
    ObjectId object;
    Incarnation incarnation;
    std::optional<Extent> borrowed;
  };
  // What the block with this ticket kept; nothing if the link broke since. Blocks may leave in
  // another order than they were booked in, even those of one rail: a rail that isn't open yet has
  // its blocks sent over another one.
  std::optional<Sent> handle_sent(NodeId to, BlockTicket ticket);
  // Blocks that were queued on a link that broke: whose they were.
  std::vector<Sent> take_unsent(NodeId to);

  [[nodiscard]] bool serves(const ObjectId& object) const;  // cost: O(edges)
  [[nodiscard]] std::size_t edge_count() const { return edges_.size(); }

 private:
  struct Edge {
    PullStart want;
    std::uint32_t next = 0;  // in the stripe
    std::uint32_t credits = 0;
    std::uint64_t turn = 0;  // when it was served last
    bool is_early = false;   // it is of a branch that was not here yet
  };
  // What a peer pulls at once, each of which is looked at for every block that is sent.
  struct Load {
    std::size_t objects = 0;  // that its pulls name
    std::size_t early = 0;
  };
  using Key = std::pair<NodeId, TransferId>;
  using Edges = std::map<Key, Edge>;
  static std::vector<ObjectId> objects_of(const Edge& edge);
  bool add(const Key& key, const PullStart& start, bool is_early);
  Edges::iterator remove(Edges::iterator at);
  // Is the block to be had, of all that it is combined from?
  static bool has(const LocalObjects& objects, const Edge& edge, Extent range);
  // Whose turn it is; end() when all wait.
  Edges::iterator choose(const LocalObjects& objects, const Rails& rails, Folds folds);

  // By which the receivers of an object take turns: the smallest is served.
  [[nodiscard]] auto rank(const Key& key, const Edge& edge) const {
    return std::pair(edge.turn, key.first.value - node_.value);
  }

  [[nodiscard]] bool can_combine(const PullStart& want, const LocalObjects& objects) const;

  NodeId node_;
  std::uint64_t combined_bytes_max_;  // of the blocks that are folded for one that is sent
  Edges edges_;
  std::map<NodeId, Load> loads_;
  std::uint64_t turns_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::map<std::pair<NodeId, BlockTicket>, Sent> queued_;
  std::deque<Unserved> refused_;
};

}  // namespace hoplite
