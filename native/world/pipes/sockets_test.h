// SPDX-License-Identifier: Apache-2.0
// Connections for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "io/sockets/authority_test.h"
#include "io/sockets/stream.h"
#include "io/sockets/tcp_socket.h"
#include "io/sockets/unique_fd.h"

namespace hoplite::worlds {

using Sockets = std::pair<UniqueFd, UniqueFd>;
using Streams = std::pair<Stream, Stream>;

// The two ends of one that may be reset, which those of socketpair() are not.
inline Sockets tcp_sockets() {
  auto listener = listen_on(*parse_address("127.0.0.1:0"));
  EXPECT_TRUE(listener);
  Dial dialled = dial(*local_address(listener->value()), SocketAddress{});
  UniqueFd accepted;
  while (!accepted.is_open()) {
    accepted = UniqueFd(::accept4(listener->value(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  return {std::move(dialled.fd), std::move(accepted)};
}

inline Sockets unix_sockets() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

inline Streams plain_streams(Sockets sockets) {
  return {Stream(std::move(sockets.first)), Stream(std::move(sockets.second))};
}

// Has them begin sessions of TLS, and calls `pass` until both are open.
template <typename Pass>
Streams secure_streams(Sockets sockets, Pass pass) {
  static const TlsContext context = [] {
    auto opened = TlsContext::open(Authority().certify());
    HOPLITE_CHECK(opened.has_value());
    return std::move(*opened);
  }();
  Streams streams{Stream(std::move(sockets.first), context.begin(TlsSession::Side::kDials)),
                  Stream(std::move(sockets.second), context.begin(TlsSession::Side::kListens))};
  for (int turn = 0; turn < 1000 && !(streams.first.is_open() && streams.second.is_open());
       ++turn) {
    for (Stream* each : {&streams.first, &streams.second}) {
      std::byte none{};
      iovec part{&none, 1};
      HOPLITE_CHECK(each->flush().has_value());
      HOPLITE_CHECK(each->is_open() || each->receive({&part, 1}, ReadAhead::kNone).has_value());
      pass();
    }
  }
  EXPECT_TRUE(streams.first.is_open() && streams.second.is_open());
  return streams;
}
inline Streams secure_streams(Sockets sockets) {
  return secure_streams(std::move(sockets), [] {});
}

}  // namespace hoplite::worlds
