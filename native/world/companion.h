// SPDX-License-Identifier: Apache-2.0
// A transport that carries operations of a world outside of its edges, for example NCCL. The world
// holds its lock during each call, so a companion returns at once and never calls the world.
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

  // The world has ended. Stops every operation in flight, and then ends each one by
  // World::end_companion_operation. Idempotent.
  virtual void handle_end(Ending ending) = 0;
};

}  // namespace hoplite::worlds
