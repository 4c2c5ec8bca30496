// Says anything that the wire lets through: every message and command, whose fields are drawn from
// small pools, so that objects, lives, stripes and transfers meet. What it says is well-formed and
// mostly untrue. For lying members of the simulator, and for one engine under siege (siege.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/messages.h"

namespace hoplite::sim {

class Liar {
 public:
  using Draw = std::function<std::uint8_t()>;  // any byte
  // What it names. REQUIRES: none is empty.
  struct Pools {
    std::vector<ObjectId> objects;
    std::vector<ObjectMeta> metas;
    std::vector<TransferId> transfers;
  };

  Liar(Pools pools, Draw draw) : pools_(std::move(pools)), draw_(std::move(draw)) {}

  Pools& pools() { return pools_; }
  // Nothing: what was drawn is no frame, and would cost its connection. The payload is as long as
  // the message says, or none.
  [[nodiscard]] std::optional<MessageIn> message(NodeId from, Epoch epoch);
  [[nodiscard]] std::optional<CommandBody> command();

 private:
  Pools pools_;
  Draw draw_;
};

}  // namespace hoplite::sim
