// SPDX-License-Identifier: Apache-2.0
#include "io/log.h"

#include <array>
#include <cstdio>

namespace hoplite {

void log_warning(std::string_view logger, std::string_view text) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::string line = warning_line(logger, text, now);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string warning_line(std::string_view logger, std::string_view text, const timespec& at) {
  tm local{};
  ::localtime_r(&at.tv_sec, &local);
  std::array<char, sizeof "2026-11-28 09:50:00"> seconds{};
  std::strftime(seconds.data(), seconds.size(), "%Y-%m-%d %H:%M:%S", &local);
  const std::string milliseconds = std::to_string(1000 + at.tv_nsec / 1'000'000).substr(1);
  std::string line = std::string(seconds.data()) + "," + milliseconds;
  line.append(" level=WARNING logger=").append(logger).append(" ").append(text).append("\n");
  return line;
}

std::string node_name(NodeId node) {
  std::array<char, 2 * sizeof node.value + 1> hex{};
  std::snprintf(hex.data(), hex.size(), "%llx", static_cast<unsigned long long>(node.value));
  return "node " + std::string(hex.data());
}

}  // namespace hoplite
