// SPDX-License-Identifier: Apache-2.0
// A message that a directory shard or a reduce's plan wants sent. Plain data.
#pragma once

#include "plan/messages/transfer_messages.h"

namespace hoplite {

// A message to send; `with_payload`: behind it go the bytes of our own copy of its object.
struct Parcel {
  NodeId to;
  PeerMessage body;
  bool with_payload = false;
};

}  // namespace hoplite
