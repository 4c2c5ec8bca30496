// SPDX-License-Identifier: Apache-2.0
// Programmer errors end the process, also in release builds. A peer's bytes or death never reach a
// check: those are values of error.h. Leaf header.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace hoplite {

// Called by a failed check before it aborts; node/ installs the printer of its trace ring.
using CheckHook = void (*)() noexcept;
inline CheckHook check_hook = nullptr;

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  if (check_hook != nullptr) check_hook();
  std::abort();
}

}  // namespace hoplite

#define HOPLITE_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::hoplite::check_failed(#condition, __FILE__, __LINE__))
