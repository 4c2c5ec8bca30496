// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/free_ranges.h"

#include <iterator>

#include "base/check.h"

namespace hoplite {

FreeRanges::FreeRanges(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes > 0) insert(offset, bytes);
}

std::optional<std::uint64_t> FreeRanges::take(std::uint64_t bytes) {
  const auto best = by_bytes_.lower_bound({bytes, 0});
  if (best == by_bytes_.end()) return std::nullopt;
  const auto [found_bytes, offset] = *best;
  erase(by_offset_.find(offset));
  if (found_bytes > bytes) insert(offset + bytes, found_bytes - bytes);
  return offset;
}

void FreeRanges::release(std::uint64_t offset, std::uint64_t bytes) {
  const auto next = by_offset_.lower_bound(offset);
  HOPLITE_CHECK(next == by_offset_.end() || offset + bytes <= next->first);
  if (next != by_offset_.end() && offset + bytes == next->first) {
    bytes += next->second;
    erase(next);
  }
  const auto above = by_offset_.lower_bound(offset);
  if (above != by_offset_.begin()) {
    const auto previous = std::prev(above);
    HOPLITE_CHECK(previous->first + previous->second <= offset);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      erase(previous);
    }
  }
  insert(offset, bytes);
}

void FreeRanges::insert(std::uint64_t offset, std::uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_bytes_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void FreeRanges::erase(std::map<std::uint64_t, std::uint64_t>::iterator range) {
  free_bytes_ -= range->second;
  by_bytes_.erase({range->second, range->first});
  by_offset_.erase(range);
}

void FreeRanges::check_invariants() const {
  HOPLITE_CHECK(by_offset_.size() == by_bytes_.size());
  std::uint64_t total = 0;
  std::optional<std::uint64_t> end;
  for (const auto& [offset, bytes] : by_offset_) {
    HOPLITE_CHECK(bytes > 0);
    HOPLITE_CHECK(!end || offset > *end);  // else they would have grown together
    HOPLITE_CHECK(by_bytes_.contains({bytes, offset}));
    end = offset + bytes;
    total += bytes;
  }
  HOPLITE_CHECK(total == free_bytes_);
}

}  // namespace hoplite
