// SPDX-License-Identifier: Apache-2.0
// Checks that one life of a node obeys no outdated message. The engine takes in no message of an
// earlier view, a lease replaces only an older one, and a block lands only in the receive that it
// was sent for. The check compares what the wire brought with what the engine then did. Plain and
// single-threaded; owned by ClusterNode.
#pragma once

#include <map>
#include <optional>
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
  [[nodiscard]] Breach check_block(NodeId from, const BlockHeader& block) const;
  void end_turn();

 private:
  // A stripe of an attempt's or an epoch's bytes of an object, cut into so many.
  using StripeName = std::tuple<ObjectId, Incarnation, TargetEpoch, std::uint16_t, StripeIndex>;
  struct Receive {
    OpenReceive opened;
    std::optional<LeaseId> lease;  // by which it comes in; none for a fold, or by an unheard grant
  };
  template <typename T>
  static StripeName name_of(const T& message, StripeIndex stripe) {
    return {message.object, message.incarnation, message.target_epoch, message.stripe_count,
            stripe};
  }

  Epoch view_;
  std::map<std::pair<NodeId, TransferId>, Receive> open_;
  // State of this turn: the engine closes a receive before it opens another in its place.
  std::map<StripeName, LeaseId> granted_;
  std::map<StripeName, LeaseId> ended_;
};

}  // namespace hoplite::sim
