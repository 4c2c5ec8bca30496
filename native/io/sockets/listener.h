// SPDX-License-Identifier: Apache-2.0
// A listening socket. A connection in its backlog never wakes the poller in vain: when the process
// has no descriptor left, the listener accepts the first one with a reserved descriptor and closes
// it. Reactor thread only.
#pragma once

#include <optional>

#include "io/sockets/unique_fd.h"

namespace hoplite {

class Listener {
 public:
  // REQUIRES: a non-blocking socket that listens.
  explicit Listener(UniqueFd socket);

  // Returns the next connection, non-blocking; nullopt if none waits. The result is not open if the
  // connection was closed because the process had no descriptor left.
  [[nodiscard]] std::optional<UniqueFd> accept();
  [[nodiscard]] int fd() const { return socket_.value(); }
  [[nodiscard]] bool is_open() const { return socket_.is_open(); }  // false once moved from

 private:
  UniqueFd socket_;
  UniqueFd reserve_;
};

}  // namespace hoplite
