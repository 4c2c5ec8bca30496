// SPDX-License-Identifier: Apache-2.0
// Messages by which members resynchronize after a change of view, or when their link is up again.
// Plain data; reached through messages.h; bytes in docs/internals/wire.md.
#pragma once

namespace hoplite {

struct ResyncDone {       // the sender's claims for this home under this epoch are complete
  bool draining = false;  // the sender adopts no more; the objects that only it has want adoption
  bool is_asked = false;  // it ends the answer to a ResyncWanted
  bool operator==(const ResyncDone&) const = default;
};
struct ResyncWanted {  // the sender has dropped messages of this view: the receiver repeats all
  bool operator==(const ResyncWanted&) const = default;
};

}  // namespace hoplite
