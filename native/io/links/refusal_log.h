// SPDX-License-Identifier: Apache-2.0
// The log lines about refused connections, for operators: the reason, at once. The number of lines
// per minute is bounded, so a stranger can't fill a disk with attempts. Counters count every
// refusal. Plain state; time enters as an argument.
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

  // Returns the line to write now, if any: a new reason, or the number of refusals since the last
  // line.
  std::optional<std::string> handle_refusal(const std::string& why, Instant now);

  [[nodiscard]] const std::string& last() const { return last_; }

 private:
  std::string last_;
  std::optional<Instant> minute_;  // start of the current minute
  std::size_t lines_ = 0;          // of it
  std::uint64_t unlogged_ = 0;     // refusals since the last line
};

}  // namespace hoplite
