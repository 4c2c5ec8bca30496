// SPDX-License-Identifier: Apache-2.0
// The newest moments of one sort, in a fixed number of places. Reactor thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

static_assert(sizeof(Moment) <= 128, "keep() fetches its two ends");

class MomentRing {
 public:
  explicit MomentRing(std::size_t places) { kept_.reserve(places); }

  void keep(const Moment& moment) {  // REQUIRES: places
    if (kept_.size() < kept_.capacity()) {
      kept_.push_back(moment);
    } else {
      kept_[next_] = moment;
      ++forgotten_;
    }
    if (++next_ == kept_.capacity()) next_ = 0;
    // By its turn no cache holds the next place, and to fetch it then would take the longest.
    const char* next = reinterpret_cast<const char*>(kept_.data() + next_);
    __builtin_prefetch(next, 1);
    __builtin_prefetch(next + sizeof(Moment) - 1, 1);
  }

  // Appends the moments that match. Cost: O(places).
  template <typename Predicate>
  void append_to(Predicate matches, Remembered& remembered) const {
    std::copy_if(kept_.begin(), kept_.end(), std::back_inserter(remembered.moments), matches);
    remembered.kept_max += kept_.capacity();
    remembered.forgotten += forgotten_;
    if (forgotten_ > 0) remembered.oldest = std::max(remembered.oldest, kept_[next_].at);
  }

 private:
  std::vector<Moment> kept_;
  std::size_t next_ = 0;  // once full: the oldest
  std::uint64_t forgotten_ = 0;
};

}  // namespace hoplite
