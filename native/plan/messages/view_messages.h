// Messages by which members resynchronize after a change of view, or when their link is up again.
// Plain data; reached through messages.h; bytes in docs/internals/wire.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hoplite {

struct ResyncDone {       // "my claims for you under this epoch are complete"
  bool draining = false;  // give me no more objects to keep, and adopt those that only I have
  bool is_asked = false;  // it ends the answer to a ResyncWanted
  bool operator==(const ResyncDone&) const = default;
};
struct ResyncWanted {  // "I dropped your messages of this view: repeat them all"
  bool operator==(const ResyncWanted&) const = default;
};

}  // namespace hoplite
