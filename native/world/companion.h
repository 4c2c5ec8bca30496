// What carries operations of a world beside its edges, as NCCL does. The world's lock is held when
// it is called, so it returns at once and calls nothing of the world.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hoplite::worlds {

class Companion {
 public:
  enum class Ending : std::uint8_t { kLeft, kBroken };

  Companion() = default;
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;
  virtual ~Companion() = default;

  // The world is over: everything under way is to be stopped, and then ended by
  // World::end_beside. Idempotent.
  virtual void handle_end(Ending ending) = 0;
};

}  // namespace hoplite::worlds
