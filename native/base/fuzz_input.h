// SPDX-License-Identifier: Apache-2.0
// The input of a fuzzer, consumed piece by piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hoplite {

class FuzzInput {
 public:
  explicit FuzzInput(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool is_empty() const { return bytes_.empty(); }
  std::uint8_t number() {
    const auto first = take(1);
    return first.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(first[0]);
  }
  std::span<const std::byte> take(std::size_t count) {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace hoplite
