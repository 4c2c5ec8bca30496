// The other end of pulls: which receivers this node serves, how far each is, and which block goes
// out next. First the object of which least is left to send (design decision 19), and of one object
// a block to each receiver in turn, so that the stripes of a reduce get along evenly, and their
// owners can pass on what they have folded. Each node begins with the receiver that comes after it,
// so that not all of them send to the same one at once.
// Invariant: no block is sent without a credit, nor before it is here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/local_object.h"
#include "plan/rails.h"

namespace hoplite {

using LocalObjects = std::map<ObjectId, LocalObject>;

class Sender {
 public:
  explicit Sender(NodeId node) : node_(node) {}

  // Returns false if `object` can't serve this: the caller answers PullRefused.
  bool handle_start(NodeId to, TransferId transfer, const PullStart& start,
                    const LocalObject* object);
  void handle_credit(NodeId to, TransferId transfer, std::uint32_t blocks);
  // What it was served, if anything.
  std::optional<ObjectId> handle_stop(NodeId to, TransferId transfer);
  std::vector<ObjectId> handle_link_down(NodeId to);
  // The object is gone or void: returns the transfers to refuse.
  std::vector<std::pair<NodeId, TransferId>> drop(const ObjectId& object);

  // The next block to send, booked on its rail; nothing when all wait for blocks, credit or room.
  std::optional<SendBlock> poll_block(const LocalObjects& objects, Rails& rails, Instant now);
  // Whose block has left (blocks of one rail leave in order); nothing if the link broke since.
  std::optional<std::pair<ObjectId, Incarnation>> handle_sent(NodeId to, RailId rail);
  // Blocks that were queued on a link that broke: whose they were.
  std::vector<std::pair<ObjectId, Incarnation>> take_unsent(NodeId to);

  [[nodiscard]] bool serves(const ObjectId& object) const;  // cost: O(edges)
  [[nodiscard]] std::size_t edge_count() const { return edges_.size(); }

 private:
  struct Edge {
    PullStart want;
    std::uint32_t next = 0;  // in the stripe
    std::uint32_t credits = 0;
    std::uint64_t turn = 0;  // when it was served last
  };
  using Key = std::pair<NodeId, TransferId>;

  // By which the receivers of an object take turns: the smallest is served.
  [[nodiscard]] auto rank(const Key& key, const Edge& edge) const {
    return std::pair(edge.turn, key.first.value - node_.value);
  }

  NodeId node_;
  std::map<Key, Edge> edges_;
  std::uint64_t turns_ = 0;
  std::map<std::pair<NodeId, RailId>, std::deque<std::pair<ObjectId, Incarnation>>> queued_;
};

}  // namespace hoplite
