// SPDX-License-Identifier: Apache-2.0
// Makes messages and commands that are well-formed and mostly untrue: any kind that the wire lets
// through. Their fields come from small pools, so that objects, lives, stripes and transfers often
// match. Used by lying members of the simulator and by the siege of one engine (siege.h).
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
  // The names that lies use. REQUIRES: no pool is empty.
  struct Pools {
    std::vector<ObjectId> objects;
    std::vector<ObjectMeta> metas;
    std::vector<TransferId> transfers;
  };

  Liar(Pools pools, Draw draw) : pools_(std::move(pools)), draw_(std::move(draw)) {}

  Pools& pools() { return pools_; }
  // Returns nothing if the drawn bytes are no frame, which would end the connection. The payload is
  // as long as the message says, or empty.
  [[nodiscard]] std::optional<MessageIn> message(NodeId from, Epoch epoch);
  [[nodiscard]] std::optional<CommandBody> command();

 private:
  Pools pools_;
  Draw draw_;
};

}  // namespace hoplite::sim
