// SPDX-License-Identifier: Apache-2.0
// The arena of a simulated node. Unwritten bytes are kMark, so that the checker finds values made
// of them. A page is filled with kMark at its first use, because most pages are never used.
// Single-threaded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"

namespace hoplite::sim {

class LazyArena {
 public:
  static constexpr std::byte kMark{0xee};

  LazyArena() = default;
  explicit LazyArena(std::size_t size_bytes)
      : bytes_(std::make_unique_for_overwrite<std::byte[]>(size_bytes)),
        size_bytes_(size_bytes),
        is_marked_((size_bytes + kPageBytes - 1) / kPageBytes) {}

  [[nodiscard]] std::size_t size() const { return size_bytes_; }

  // Returns a range, valid as long as the arena. REQUIRES: it lies in the arena.
  [[nodiscard]] std::span<std::byte> range(std::size_t offset, std::size_t size_bytes) {
    HOPLITE_CHECK(offset <= size_bytes_);
    HOPLITE_CHECK(size_bytes <= size_bytes_ - offset);
    const std::size_t end = offset + size_bytes;
    for (std::size_t page = offset / kPageBytes; page * kPageBytes < end; ++page) {
      if (is_marked_[page]) continue;
      is_marked_[page] = true;
      const std::size_t first = page * kPageBytes;
      std::fill_n(bytes_.get() + first, std::min(kPageBytes, size_bytes_ - first), kMark);
    }
    return {bytes_.get() + offset, size_bytes};
  }

 private:
  static constexpr std::size_t kPageBytes = 4096;
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_bytes_ = 0;
  std::vector<bool> is_marked_;
};

}  // namespace hoplite::sim
