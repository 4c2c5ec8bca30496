// SPDX-License-Identifier: Apache-2.0
// The link to one peer: its rails, and whether it is wanted and up. Plain data; LinkRules changes
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

struct Link {
  struct Slot {               // of one connection
    std::uint64_t token = 0;  // 0: none
    bool is_open = false;     // True if the peer has proven itself on it; never for liveness
  };
  struct Rail {
    Slot control, bulk, liveness;
    Slot& slot(ConnectionKind kind) {
      if (kind == ConnectionKind::kLiveness) return liveness;
      return kind == ConnectionKind::kControl ? control : bulk;
    }
    [[nodiscard]] bool is_whole() const { return control.is_open && bulk.is_open; }
    [[nodiscard]] bool has_liveness() const { return liveness.token != 0 || is_watched; }
    [[nodiscard]] bool has_none() const {
      return control.token == 0 && bulk.token == 0 && !has_liveness();
    }
    Instant redial_at;
    Duration backoff;
    bool is_refused = false, is_watched = false;  // by the last dial; by the liveness thread
  };

  // Transitions:
  //
  //   from               event                                               to
  //   kUnwanted          Connect                                             kNeverUp
  //   kNeverUp, kDown    Connect of another life of the peer                 kNeverUp
  //   kNeverUp, kDown    control and bulk of one rail are open: LinkUp       kUp
  //   kUp                the engine takes LinkUp, and no LinkDown waits      kAnnounced
  //   kUp, kAnnounced    an open connection ends, or another life proves
  //                      itself or is named by Connect: LinkDown             kDown
  //   all but kUnwanted  Disconnect, or the peer is declared dead            kUnwanted
  enum class State : std::uint8_t {
    kUnwanted,   // a peer may dial, and its connections wait
    kNeverUp,    // since Connect
    kDown,       // was up since Connect
    kUp,         // the engine does not know it
    kAnnounced,  // the engine knows it; only now messages and blocks leave
  };

  [[nodiscard]] bool is_wanted() const { return state != State::kUnwanted; }
  [[nodiscard]] bool is_up() const { return state == State::kUp || state == State::kAnnounced; }
  // True if the last dial of each rail of the member was refused. Further rails are those of an
  // earlier life of the peer, and are never dialled.
  [[nodiscard]] bool is_refused() const {
    const auto dialled = std::span(rails).first(std::min(rails.size(), member.rails.size()));
    return !dialled.empty() && std::ranges::all_of(dialled, &Rail::is_refused);
  }

  Member member;
  State state = State::kUnwanted;
  bool has_said_goodbye = false;
  std::uint32_t attempt = 0;
  std::uint64_t control = 0;     // the life's one connection for messages
  Incarnation incarnation;       // of the life in `rails`
  Incarnation dead_incarnation;  // the last one declared dead: no older one comes back
  Instant down_since;
  std::vector<Rail> rails;
};

}  // namespace hoplite
