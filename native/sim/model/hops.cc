// SPDX-License-Identifier: Apache-2.0
#include "sim/model/hops.h"

#include <algorithm>

namespace hoplite::sim {

void Hops::set(const Extent& extent, std::uint32_t hops) {
  const std::uint64_t end = extent.offset + extent.size_bytes;
  auto at = ranges_.lower_bound(extent.offset);
  if (at != ranges_.begin() && std::prev(at)->second.end > extent.offset) {
    --at;
    const Range cut = at->second;
    at->second.end = extent.offset;
    if (cut.end > end) ranges_.emplace(end, cut);
    ++at;
  }
  while (at != ranges_.end() && at->first < end) {
    if (at->second.end > end) ranges_.emplace(end, at->second);
    at = ranges_.erase(at);
  }
  if (extent.size_bytes > 0) ranges_[extent.offset] = {end, hops};
}

std::uint32_t Hops::of(const Extent& extent) const {
  auto at = ranges_.upper_bound(extent.offset);
  if (at != ranges_.begin() && std::prev(at)->second.end > extent.offset) --at;
  std::uint32_t most = 0;
  for (; at != ranges_.end() && at->first < extent.offset + extent.size_bytes; ++at) {
    most = std::max(most, at->second.hops);
  }
  return most;
}

}  // namespace hoplite::sim
