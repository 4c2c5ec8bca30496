// SPDX-License-Identifier: Apache-2.0
// Receives that are closed and may still write: a thread of io/ may be amid a block when
// CloseReceive is performed, and says ReceiveClosed when it is not (decision 6f). Until then
// nothing else is put into their places, and a range that was given back is kept for them. An open
// receive needs no entry, because the engine closes it before it gives the range back.
// Pure; owned by the engine. Invariant: each range that is kept has a place of such a receive.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "plan/messages.h"

namespace hoplite {

// Where a receive may write: all of `range`, or the blocks of one stripe of it.
struct Place {
  Extent range;
  std::uint32_t block_bytes = 0;  // and stripe_count: how the range is cut
  std::uint16_t stripe_count = 1;
  StripeIndex stripe;
};

class Loans {
 public:
  // A receive into `place` is closed. REQUIRES: `transfer` is not among them yet.
  void add(TransferId transfer, const Place& place);
  // The receive writes no more. Returns the range that was kept for it alone, which is free now.
  // REQUIRES: `transfer` is among them.
  [[nodiscard]] std::optional<Extent> remove(TransferId transfer);
  // Keeps a range that is given back, and returns true, if a receive may still write there.
  [[nodiscard]] bool keep(Extent range);
  // True if no such receive writes there. Cost of this and the others: O(receives among them).
  [[nodiscard]] bool is_free(const Place& place) const;

  [[nodiscard]] const std::map<TransferId, Place>& places() const { return closed_; }
  [[nodiscard]] const std::map<std::uint64_t, Extent>& ranges() const { return kept_; }
  void check_invariants() const;

 private:
  [[nodiscard]] bool is_written(Extent range) const;

  std::map<TransferId, Place> closed_;
  std::map<std::uint64_t, Extent> kept_;  // by offset
};

}  // namespace hoplite
