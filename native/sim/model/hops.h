// SPDX-License-Identifier: Apache-2.0
// Counts the links that the bytes in an arena have crossed since their put. A folded or forwarded
// range has the highest count of the ranges that it was made of. Single-threaded.
#pragma once

#include <cstdint>
#include <map>

#include "plan/messages/types.h"

namespace hoplite::sim {

class Hops {
 public:
  void set(const Extent& extent, std::uint32_t hops);
  // Returns the most of any byte there; 0 where nothing has come.
  [[nodiscard]] std::uint32_t of(const Extent& extent) const;

 private:
  struct Range {
    std::uint64_t end = 0;
    std::uint32_t hops = 0;
  };
  std::map<std::uint64_t, Range> ranges_;  // by where they begin; none overlap
};

}  // namespace hoplite::sim
