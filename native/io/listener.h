// A listening socket whose backlog never wakes the poller for nothing: where the process has no
// descriptor left, the one in front is accepted with a descriptor kept in reserve and sent away.
// Reactor thread only. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "io/unique_fd.h"

namespace hoplite {

class Listener {
 public:
  // REQUIRES: a non-blocking socket that listens.
  explicit Listener(UniqueFd socket);

  // The next connection, non-blocking; one that is not open: it was sent away, for want of a
  // descriptor; nullopt: nobody waits.
  [[nodiscard]] std::optional<UniqueFd> accept();
  [[nodiscard]] int fd() const { return socket_.value(); }
  [[nodiscard]] bool is_open() const { return socket_.is_open(); }  // false once moved from

 private:
  UniqueFd socket_;
  UniqueFd reserve_;
};

}  // namespace hoplite
