// SPDX-License-Identifier: Apache-2.0
// Checks that one life of a node obeys no outdated message. The engine takes in no message of an
// earlier view, a lease replaces only an older one, and a block lands only in the receive that it
// was sent for. The check compares what the wire brought with what the engine then did. Plain and
// single-threaded; owned by ClusterNode.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "plan/messages.h"

namespace hoplite::sim {

class Fences {
 public:
  using Breach = std::optional<std::string>;  // a sentence, to be read after the node's name

  void note_view(Epoch epoch) { view_ = epoch; }
  // True if the message is void here: it is of a view before the node's own.
  [[nodiscard]] bool is_void(const Message& message) const;
  // The engine has been handed the message. `is_taken`: it took it in. Calls of check_open() for
  // the same turn follow.
  Breach check_message(const Message& message, bool is_taken);
  // If peers lie, a grant covers one receive: this node may be the home and open the next itself.
  Breach check_open(const OpenReceive& receive, bool do_peers_lie);
  void note_close(const CloseReceive& receive);
  // The engine has been handed the end of that receive, and opens the next one in its place.
  void note_receive_closed(const ReceiveClosed& receive);
  [[nodiscard]] Breach check_block(NodeId from, const BlockHeader& block) const;
  void end_turn();

 private:
  // A stripe of an attempt's or an epoch's bytes of an object, cut into so many.
  using StripeName = std::tuple<ObjectId, Incarnation, TargetEpoch, std::uint16_t, StripeIndex>;
  struct Receive {
    OpenReceive opened;
    std::optional<LeaseId> lease;  // by which it comes in; none for a fold, or by an unheard grant
  };
  struct Closing {  // a receive that may still write
    StripeName name;
    LeaseId lease;                      // by which it came in
    std::map<NodeId, LeaseId> waiting;  // by sender: the newest in its place, for its end
    bool is_of_this_turn = true;
  };
  void note_waiting(Closing& closing);
  template <typename T>
  static StripeName name_of(const T& message, StripeIndex stripe) {
    return {message.object, message.incarnation, message.target_epoch, message.stripe_count,
            stripe};
  }

  Epoch view_;
  std::map<std::pair<NodeId, TransferId>, Receive> open_;
  std::map<std::pair<NodeId, TransferId>, Closing> closing_;
  // State of this turn: the engine closes a receive before it opens another in its place.
  std::map<std::pair<StripeName, NodeId>, LeaseId> granted_;  // the newest that names the sender
  std::set<StripeName> opened_;                               // by such a lease
  std::map<StripeName, LeaseId> ended_;
};

}  // namespace hoplite::sim
