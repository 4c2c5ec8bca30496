// SPDX-License-Identifier: Apache-2.0
// The free ranges of one part of the arena, or of the file of spilled objects: best fit in O(log
// n), so that large ranges stay whole; neighbours grow together again when they come back.
// Invariants: ranges never touch; both indices hold the same ranges. SPDX-License-Identifier:
// Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace hoplite {

class FreeRanges {
 public:
  FreeRanges(std::uint64_t offset, std::uint64_t bytes);

  // The offset of a range of `bytes`, taken from the smallest that is large enough.
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes);
  void release(std::uint64_t offset, std::uint64_t bytes);

  [[nodiscard]] std::uint64_t free_bytes() const { return free_bytes_; }
  void check_invariants() const;

 private:
  void insert(std::uint64_t offset, std::uint64_t bytes);
  void erase(std::map<std::uint64_t, std::uint64_t>::iterator range);

  std::map<std::uint64_t, std::uint64_t> by_offset_;            // -> bytes
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_bytes_;  // (bytes, offset)
  std::uint64_t free_bytes_ = 0;
};

}  // namespace hoplite
