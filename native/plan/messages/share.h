// SPDX-License-Identifier: Apache-2.0
// The range of its sources that a reduce combines, and the sources combined on the way. Plain data.
// Reached through messages.h.
#pragma once

#include <vector>

#include "plan/messages/types.h"

namespace hoplite {

// A reduce may combine the same range of each of its sources, as an object of its own
// (reduce-scatter): the range that begins here, of the result's size.
struct Share {
  std::uint64_t source_bytes = 0;  // size of each source; 0: no share, they are combined whole
  std::uint64_t offset = 0;
  std::uint32_t reader = 0;  // index of a source: the result is folded on the node which has it
  bool operator==(const Share&) const = default;

  [[nodiscard]] bool is_share() const { return source_bytes > 0; }
  // Do its parts, in a source of these parts, make a result of those?
  [[nodiscard]] bool fits(const ObjectMeta& source, const ObjectMeta& result) const {
    if (!is_share()) return source == result;
    if (source.size_bytes != source_bytes || offset > source_bytes ||
        result.size_bytes > source_bytes - offset) {
      return false;
    }
    std::vector<Part> parts;
    for (const Run& run : runs_of(source, {offset, result.size_bytes})) {
      parts.push_back({run.dtype, run.range.size_bytes});
    }
    return parts == result.parts;
  }
};

// Another source, of the same parts, that a node combines with one that it has as well.
struct Beside {
  ObjectId object;
  Incarnation incarnation;
  bool operator==(const Beside&) const = default;
};

// Can blocks of several objects be combined into one of the same width? Not of 16-bit floats, which
// would be rounded more than once.
inline bool can_combine_all(const std::vector<Part>& parts, ReduceOp op) {
  for (const Part& part : parts) {
    if (!can_reduce(part.dtype, op) || is_half(part.dtype)) return false;
  }
  return true;
}

}  // namespace hoplite
