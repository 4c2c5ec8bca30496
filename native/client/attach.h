// SPDX-License-Identifier: Apache-2.0
// The first exchange with a node: Attach, Attached and the arena's two descriptors.
#pragma once

#include <string>

#include "base/result.h"
#include "io/sockets/unique_fd.h"
#include "wire/local/local_frame.h"

namespace hoplite {

struct OpenedAttachment {
  UniqueFd socket;  // each call is non-blocking; closed on exec
  UniqueFd writable;
  UniqueFd readonly;
  Attached attached;
};

// kNodeLost if no node listens at `socket_path`, or if it doesn't answer in time.
[[nodiscard]] Result<OpenedAttachment> attach_to(const std::string& socket_path);

}  // namespace hoplite
