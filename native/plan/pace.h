// How the transfers of one stripe's fold keep step. A block is worth nothing to its reader before
// all members are in it; each transfer by itself may be many blocks ahead of the slowest, for links
// and connections share by chance. So credit is given once three quarters of them are almost as
// far: a quarter may be slow or late and holds nobody up, nor does who stands still. Policy only.
// Invariant: whoever is not ahead has all its credit. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "plan/messages.h"

namespace hoplite {

class FoldPace {
 public:
  // `lead`: blocks that a transfer may be ahead and still is given credit. REQUIRES: lead > 0.
  explicit FoldPace(std::uint32_t lead) : lead_(lead) {}

  // `ready`: leading blocks of the stripe that it has delivered. Cost: O(log transfers).
  void begin(TransferId transfer, std::uint32_t ready);
  // Its leading blocks are so many now, and it is to have so much more credit.
  void advance(TransferId transfer, std::uint32_t ready, std::uint32_t credits);
  void end(TransferId transfer);

  // To be called once a window while it is holding: who has delivered nothing since the last one,
  // and could, waits for something else, perhaps for who is held. It counts again when it moves.
  void handle_window();
  [[nodiscard]] bool is_holding() const { return !held_.empty(); }

  // Credit that is to be given now, with what was held of it; call until there is none.
  // Cost: O(distinct `ready`), which the lead and a window bound, but for those that came late.
  std::optional<std::pair<TransferId, std::uint32_t>> poll_credit();

 private:
  struct Transfer {
    std::uint32_t ready = 0;
    bool counts = true;
    bool has_moved = true;  // in this window
  };
  // Whether three quarters of those that count are so far that `ready` is not ahead.
  [[nodiscard]] bool is_in_step(std::uint32_t ready) const;
  void uncount(Transfer& transfer);

  std::uint32_t lead_;
  std::map<TransferId, Transfer> transfers_;
  std::map<std::uint32_t, std::size_t> at_;  // `ready` -> how many that count
  std::size_t count_ = 0;                    // that count
  std::map<std::pair<std::uint32_t, TransferId>, std::uint32_t> held_;  // by `ready` -> credit
};

}  // namespace hoplite
