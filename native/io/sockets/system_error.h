// SPDX-License-Identifier: Apache-2.0
// Turns a failed system call into an Error whose text has the call, its object and errno. Leaf
// header.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace hoplite {

// Reads errno, so it must be the first thing after the failed call.
[[nodiscard]] inline Error system_error(const std::string& what, Code code = Code::kSystem) {
  const int number = errno;
  return {code, what + ": " + std::strerror(number) + " (errno " + std::to_string(number) + ")"};
}

}  // namespace hoplite
