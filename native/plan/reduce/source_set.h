// SPDX-License-Identifier: Apache-2.0
// Sources of one reduce, by their index in the caller's list. A bitmap: small, ordered, cheap to
// count. Pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hoplite {

class SourceSet {
 public:
  // Returns false if it was in.
  bool insert(std::uint32_t index) {
    if (contains(index)) return false;
    if (words_.size() <= index / 64) words_.resize(index / 64 + 1);
    words_[index / 64] |= bit(index);
    return true;
  }
  void erase(std::uint32_t index) {
    if (contains(index)) words_[index / 64] &= ~bit(index);
    while (!words_.empty() && words_.back() == 0) words_.pop_back();  // for operator==
  }
  [[nodiscard]] bool contains(std::uint32_t index) const {
    return index / 64 < words_.size() && (words_[index / 64] & bit(index)) != 0;
  }
  [[nodiscard]] std::uint32_t count() const {
    int count = 0;
    for (const std::uint64_t word : words_) count += std::popcount(word);
    return static_cast<std::uint32_t>(count);
  }
  // Returns how many of the `span` indices from `first` on are in.
  [[nodiscard]] std::uint32_t count(std::uint64_t first, std::uint64_t span) const {
    int count = 0;
    const std::uint64_t end = first + span;
    for (std::uint64_t at = first; at < end && at / 64 < words_.size(); at = (at / 64 + 1) * 64) {
      std::uint64_t word = words_[at / 64] >> (at % 64);
      const std::uint64_t left = end - at;
      if (left < 64) word &= (std::uint64_t{1} << left) - 1;
      count += std::popcount(word);
    }
    return static_cast<std::uint32_t>(count);
  }
  bool operator==(const SourceSet&) const = default;

 private:
  static std::uint64_t bit(std::uint32_t index) { return std::uint64_t{1} << (index % 64); }
  std::vector<std::uint64_t> words_;
};

}  // namespace hoplite
