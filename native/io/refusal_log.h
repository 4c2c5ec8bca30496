// What operators read of strangers and of nodes that don't meet: why, in time, and in so few lines
// that nobody can fill a disk by knocking. All refusals are counters as well. Plain state; time
// enters as an argument. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace hoplite {

class RefusalLog {
 public:
  static constexpr std::size_t kLinesPerMinute = 20;  // a cluster that is set up wrong has fewer

  // The line to write now, if any: a reason that is not the last one's, or what was refused since.
  std::optional<std::string> handle_refusal(const std::string& why, Instant now);

  [[nodiscard]] const std::string& last() const { return last_; }

 private:
  std::string last_;
  std::optional<Instant> minute_;  // when the present one began
  std::size_t lines_ = 0;          // of it
  std::uint64_t unsaid_ = 0;       // refusals since the last line
};

}  // namespace hoplite
