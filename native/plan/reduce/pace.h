// SPDX-License-Identifier: Apache-2.0
// Keeps the transfers of one stripe's fold in step (decision 5j). A reader can use a block only
// when all members are in it, but links share bandwidth unevenly, and a transfer alone may run many
// blocks ahead. So a transfer gets credit once three quarters of the transfers are almost as far.
// The last quarter, and transfers that stand still, hold no other transfer up. Policy only.
// Invariant: a transfer that is not ahead has all its credit.
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
  // Sets its count of leading blocks to `ready`, and adds `credits` to the credit it is to get.
  void advance(TransferId transfer, std::uint32_t ready, std::uint32_t credits);
  void end(TransferId transfer);

  // Call once a window while is_holding(). A transfer that had credit and delivered nothing in the
  // window stops counting, because it may wait for a held one. It counts again when it delivers.
  void handle_window();
  [[nodiscard]] bool is_holding() const { return !held_.empty(); }

  // Returns credit to give now, held credit included; call until it returns nothing. Cost:
  // O(distinct `ready`), which the lead and a window bound, except for late transfers.
  std::optional<std::pair<TransferId, std::uint32_t>> poll_credit();

 private:
  struct Transfer {
    std::uint32_t ready = 0;
    bool counts = true;
    bool has_moved = true;  // in this window
  };
  // True if `ready` is not ahead of three quarters of the transfers that count.
  [[nodiscard]] bool is_in_step(std::uint32_t ready) const;
  void uncount(Transfer& transfer);

  std::uint32_t lead_;
  std::map<TransferId, Transfer> transfers_;
  std::map<std::uint32_t, std::size_t> at_;  // `ready` -> how many that count
  std::size_t count_ = 0;                    // that count
  std::map<std::pair<std::uint32_t, TransferId>, std::uint32_t> held_;  // by `ready` -> credit
};

}  // namespace hoplite
