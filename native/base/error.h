// SPDX-License-Identifier: Apache-2.0
// Operating errors as values. One enum for the whole product; bindings/ maps each code to exactly
// one Python exception. Texts name the thing, the cause and the next step. Leaf header.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace hoplite {

enum class Code : std::uint8_t {
  kOk = 0,
  kTimeout,          // the caller's own limit ran out
  kCancelled,        // the caller took the request back
  kObjectLost,       // all holders are gone, or it was deleted
  kStoreFull,        // the arena can't take it, and nothing that runs can free memory
  kDuplicateObject,  // a second put of a live id with other bytes
  kLayoutMismatch,   // sources of a reduce differ in size or dtype
  kReduceFailed,     // too few sources are left
  kInvalidArgument,  // the request itself is wrong
  kPeerLost,         // a node died; used where no object can be named
  kNodeLost,         // the client's own node is gone
  kBadFrame,         // bytes that are no frame; the connection is closed
  kWrongVersion,     // the peer speaks another wire version
  kUnauthenticated,  // the peer does not know the cluster's secret
  kSystem,           // the kernel refused; the text has the errno
  kVersionRefused,   // a newer version is there, or another publisher has taken the channel
};
inline constexpr int kCodeCount = static_cast<int>(Code::kVersionRefused) + 1;

struct Error {
  Code code = Code::kOk;
  std::string text;
};

}  // namespace hoplite
