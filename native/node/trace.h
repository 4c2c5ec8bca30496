// SPDX-License-Identifier: Apache-2.0
// The last actions of a reactor, for a failed check: a ring of fixed size. The reactor's thread
// writes it, and check_failed of that thread prints it. Costs one store per turn and per action.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace hoplite {

class Trace {
 public:
  static constexpr std::size_t kEntries = 256;  // some ten busy turns

  // Makes this the ring that a failed check of the calling thread prints.
  void install();
  // REQUIRES: `what` lives for ever.
  void record(Instant at, const char* what, std::uint64_t detail) {
    entries_[next_++ % kEntries] = {at, what, detail};
  }
  void print() const noexcept;

 private:
  struct Entry {
    Instant at;
    const char* what = nullptr;
    std::uint64_t detail = 0;
  };
  std::array<Entry, kEntries> entries_{};
  std::size_t next_ = 0;
};

}  // namespace hoplite
