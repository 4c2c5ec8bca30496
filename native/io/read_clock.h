// SPDX-License-Identifier: Apache-2.0
// The clock that all native threads read. Any thread.
#pragma once

#include <time.h>

#include "base/clock.h"

namespace hoplite {

// Returns the time since an arbitrary origin. It never goes back, and stands still while the
// machine is suspended.
inline Instant read_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return Instant{std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec};
}

}  // namespace hoplite
