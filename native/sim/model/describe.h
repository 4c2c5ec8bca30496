// SPDX-License-Identifier: Apache-2.0
// Events, messages and actions as lines of a trace. Only for people: nothing decides by these
// texts.
#pragma once

#include <string>

#include "plan/messages.h"

namespace hoplite::sim {

[[nodiscard]] std::string describe(const Message& message);
[[nodiscard]] std::string describe(const Action& action);
[[nodiscard]] std::string describe(const IoEvent& event);
[[nodiscard]] std::string describe(const Command& command);
[[nodiscard]] std::string describe(const Reply& reply);

}  // namespace hoplite::sim
