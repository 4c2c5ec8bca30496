// SPDX-License-Identifier: Apache-2.0
// All that leaves this node: the actions of the turn in their order, and the messages to this node
// itself. It knows which links are up, and drops a message to any other node: Peers repeats
// everything when the link is up. Replies and grants wait behind queued folds, so it also counts
// how many bytes a turn may still fold.
// Invariant: the bytes that are queued are those of the queued folds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "plan/messages.h"
#include "plan/objects/local_object.h"

namespace hoplite {

struct Owners;

class Outgoing {
 public:
  explicit Outgoing(Owners& engine) : engine_(engine) {}

  void begin_turn();
  void act(Action action) { actions_.push_back(std::move(action)); }
  void reply(const Waiter& waiter, Reply reply);
  void send(NodeId to, PeerMessage body, TransferId id = {}, std::optional<Extent> payload = {});
  template <typename T>
  void queue_fold(const T& fold) {  // Fold or Finish
    fold_bytes_queued_ += fold.from.size_bytes;
    act(fold);
  }

  // Folds may use so many bytes more in this turn.
  [[nodiscard]] std::uint64_t fold_bytes_left() const { return fold_bytes_left_; }
  void spend_fold_bytes(std::uint64_t bytes) {
    fold_bytes_left_ -= std::min(fold_bytes_left_, bytes);
  }

  void add_link(NodeId peer) { links_.insert(peer); }
  void remove_link(NodeId peer) { links_.erase(peer); }
  [[nodiscard]] bool is_up(NodeId peer) const { return links_.contains(peer); }
  [[nodiscard]] const std::set<NodeId>& links() const { return links_; }

  [[nodiscard]] std::optional<Action> poll_action();
  [[nodiscard]] std::optional<Message> poll_own_message();  // to this node itself
  [[nodiscard]] bool has_own_messages() const { return !loop_.empty(); }
  [[nodiscard]] std::size_t action_count() const { return actions_.size() - performed_; }
  void check_invariants() const;

 private:
  Owners& engine_;
  // A vector that keeps its memory: an action is larger than a chunk of a deque, which would
  // allocate one for each. The first `performed_` are gone.
  std::vector<Action> actions_;
  std::size_t performed_ = 0;
  std::deque<Message> loop_;             // to this node itself
  std::set<NodeId> links_;               // peers whose link is up
  std::uint64_t fold_bytes_left_ = 0;    // in this turn
  std::uint64_t fold_bytes_queued_ = 0;  // among `actions_`
};

}  // namespace hoplite
