// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/pace.h"

#include "base/check.h"

namespace hoplite {

void FoldPace::begin(TransferId transfer, std::uint32_t ready) {
  HOPLITE_CHECK(transfers_.emplace(transfer, Transfer{ready}).second);
  ++at_[ready];
  ++count_;
}

void FoldPace::advance(TransferId transfer, std::uint32_t ready, std::uint32_t credits) {
  Transfer& known = transfers_.at(transfer);
  if (const auto held = held_.find({known.ready, transfer}); held != held_.end()) {
    credits += held->second;
    held_.erase(held);
  }
  uncount(known);
  known = {ready};
  ++at_[ready];
  ++count_;
  if (credits > 0) held_.emplace(std::pair(ready, transfer), credits);
}

void FoldPace::end(TransferId transfer) {
  const auto it = transfers_.find(transfer);
  held_.erase({it->second.ready, transfer});
  uncount(it->second);
  transfers_.erase(it);
}

void FoldPace::handle_window() {
  for (auto& [id, transfer] : transfers_) {
    if (!transfer.has_moved && !held_.contains({transfer.ready, id})) uncount(transfer);
    transfer.has_moved = false;
  }
}

std::optional<std::pair<TransferId, std::uint32_t>> FoldPace::poll_credit() {
  if (held_.empty()) return std::nullopt;
  const auto [last, credits] = *held_.begin();
  if (!is_in_step(last.first)) return std::nullopt;
  held_.erase(held_.begin());
  return std::pair(last.second, credits);
}

bool FoldPace::is_in_step(std::uint32_t ready) const {
  std::size_t behind = count_ / 4;  // the slow quarter, which holds no other transfer up
  for (const auto& [pace, transfers] : at_) {
    if (transfers > behind) return ready < pace + lead_;
    behind -= transfers;
  }
  return true;
}

void FoldPace::uncount(Transfer& transfer) {
  if (!transfer.counts) return;
  transfer.counts = false;
  const auto it = at_.find(transfer.ready);
  if (--it->second == 0) at_.erase(it);
  --count_;
}

}  // namespace hoplite
