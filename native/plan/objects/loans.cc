// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/loans.h"

#include <algorithm>

#include "base/check.h"

namespace hoplite {
namespace {

bool overlap(const Extent& a, const Extent& b) {
  return a.offset < b.offset + b.size_bytes && b.offset < a.offset + a.size_bytes;
}

// Stripes of one cut of one range share no byte.
bool overlap(const Place& a, const Place& b) {
  const bool is_same_cut = a.range.offset == b.range.offset && a.block_bytes == b.block_bytes &&
                           a.stripe_count == b.stripe_count;
  return overlap(a.range, b.range) && (!is_same_cut || a.stripe == b.stripe);
}

}  // namespace

void Loans::add(TransferId transfer, const Place& place) {
  const bool is_new = closed_.emplace(transfer, place).second;
  HOPLITE_CHECK(is_new);
}

std::optional<Extent> Loans::remove(TransferId transfer) {
  const auto closed = closed_.extract(transfer);
  HOPLITE_CHECK(!closed.empty());
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const auto& each) {
    return overlap(each.second, closed.mapped().range);
  });
  if (kept == kept_.end() || is_written(kept->second)) return std::nullopt;
  const Extent range = kept->second;
  kept_.erase(kept);
  return range;
}

bool Loans::keep(Extent range) {
  if (!is_written(range)) return false;
  const bool is_new = kept_.emplace(range.offset, range).second;
  HOPLITE_CHECK(is_new);
  return true;
}

bool Loans::is_free(const Place& place) const {
  return std::none_of(closed_.begin(), closed_.end(),
                      [&](const auto& each) { return overlap(each.second, place); });
}

bool Loans::is_written(Extent range) const {
  return std::any_of(closed_.begin(), closed_.end(),
                     [&](const auto& each) { return overlap(each.second.range, range); });
}

void Loans::check_invariants() const {
  for (const auto& [offset, range] : kept_) HOPLITE_CHECK(is_written(range));
}

}  // namespace hoplite
