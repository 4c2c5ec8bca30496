// The link to one peer: its rails, and whether it is wanted and up. Plain data; Links changes it.
// Reactor thread only. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

struct Link {
  struct Rail {
    std::uint64_t control = 0, bulk = 0, liveness = 0;  // tokens; 0: none
    std::uint64_t& slot(ConnectionKind kind) {
      if (kind == ConnectionKind::kLiveness) return liveness;
      return kind == ConnectionKind::kControl ? control : bulk;
    }
    Instant redial_at;
    Duration backoff;
    bool is_refused = false, is_watched = false;  // by the last dial; by the liveness thread
  };

  Member member;
  bool is_wanted = false;  // between Connect and Disconnect or death
  bool is_up = false, has_been_up = false, has_said_goodbye = false;
  bool is_announced = false;  // the engine has LinkUp, and no LinkDown is on its way to it
  std::uint32_t attempt = 0;
  std::uint64_t control = 0;     // the life's one connection for messages
  Incarnation incarnation;       // of the life in `rails`
  Incarnation dead_incarnation;  // the last one declared dead: no older one comes back
  Instant down_since;
  std::vector<Rail> rails;
};

}  // namespace hoplite
