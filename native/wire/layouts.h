// SPDX-License-Identifier: Apache-2.0
// The long layouts that one end of a connection has sent to the other. Sender and receiver keep
// equal tables, because the receiver reads frames in the order in which they were written. So a
// layout of some hundred kilobytes travels once, and later as its number in the table. A decoded
// layout shares the table's text, so its memory is bounded by the bytes received. Bound:
// kLayoutTableBytesMax; the oldest are evicted first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string_view>

#include "base/layout.h"
#include "base/limits.h"

namespace hoplite::wire {

class Layouts {
 public:
  // REQUIRES: `bytes_max` is that of the other end, and room for the longest layout.
  explicit Layouts(std::size_t bytes_max = kLayoutTableBytesMax) : bytes_max_(bytes_max) {}

  // 64 bytes: shorter layouts always travel whole.
  static constexpr std::size_t kBytesMin = 64;

  // Cost: some comparisons with layouts that are alike.
  [[nodiscard]] std::optional<std::uint32_t> number_of(const Layout& layout) const;
  // Returns null if there is no such number, or no longer.
  [[nodiscard]] const Layout* find(std::uint32_t number) const;
  // Adds a layout that was written or read whole. Does nothing for a short one.
  void add(const Layout& layout);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_max_;
  std::deque<Layout> kept_;                            // the oldest first; a deque moves no element
  std::map<std::string_view, std::uint32_t> numbers_;  // by the texts of kept_
  std::uint32_t first_ = 0;                            // number of kept_.front()
  std::size_t bytes_ = 0;
};

}  // namespace hoplite::wire
