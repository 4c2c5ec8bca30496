// How many links the bytes in an arena have crossed since they were put: who folds or passes them
// on is as deep as what it was made of, at most. Single-threaded.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "plan/types.h"

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
