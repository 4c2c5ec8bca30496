// SPDX-License-Identifier: Apache-2.0
// Lines of the node's log in the form of its Python half: time, level, logger, text. Any thread.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace hoplite {

inline constexpr std::string_view kLinksLogger = "hoplite_ray.links";
inline constexpr std::string_view kSpillLogger = "hoplite_ray.spill";
inline constexpr std::string_view kRebuildLogger = "hoplite_ray.rebuild";

// Writes a warning to standard error, which the starter of a node sends to node.log. Cost: one
// write; so a caller bounds how often it logs.
void log_warning(std::string_view logger, std::string_view text);

// Returns the line of a warning, with its end. `at` is wall-clock time; the line has local time.
[[nodiscard]] std::string warning_line(std::string_view logger, std::string_view text,
                                       const timespec& at);

// Returns "node 4d2f3dbf", with the id in hex, as the command and the Python half name nodes.
[[nodiscard]] std::string node_name(NodeId node);

}  // namespace hoplite
