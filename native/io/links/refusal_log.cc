// SPDX-License-Identifier: Apache-2.0
#include "io/links/refusal_log.h"

#include <utility>

namespace hoplite {

std::optional<std::string> RefusalLog::handle_refusal(const std::string& why, Instant now) {
  if (!minute_ || now - *minute_ >= 60_s) {
    minute_ = now;
    lines_ = 0;
  }
  const bool is_said = std::exchange(last_, why) == why;
  if (lines_ > 0 && (is_said || lines_ == kLinesPerMinute)) {
    ++unlogged_;
    return std::nullopt;
  }
  ++lines_;
  const std::uint64_t unlogged = std::exchange(unlogged_, 0);
  if (unlogged == 0) return why;
  return why + " (and " + std::to_string(unlogged) + " more were refused since the last line)";
}

}  // namespace hoplite
