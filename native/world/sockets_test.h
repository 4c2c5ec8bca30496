// Connections for tests. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <utility>

#include "io/tcp_socket.h"
#include "io/unique_fd.h"

namespace hoplite::worlds {

// The two ends of one that may be reset, which those of socketpair() are not.
inline std::pair<UniqueFd, UniqueFd> tcp_sockets() {
  auto listener = listen_on(*parse_address("127.0.0.1:0"));
  EXPECT_TRUE(listener);
  Dial dialled = dial(*local_address(listener->value()), SocketAddress{});
  UniqueFd accepted;
  while (!accepted.is_open()) {
    accepted = UniqueFd(::accept4(listener->value(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  return {std::move(dialled.fd), std::move(accepted)};
}

}  // namespace hoplite::worlds
