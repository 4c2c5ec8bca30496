// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/tcp_socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

namespace hoplite {
namespace {

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(fd, level, name, &value, &size), 0);
  return value;
}

TEST(TcpSocket, AddressesAreReadAndWritten) {
  for (const char* text : {"127.0.0.1:80", "0.0.0.0:0", "[::1]:65535", "[2001:db8::7]:1"}) {
    auto address = parse_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address_text(*address), text);
  }
}

TEST(TcpSocket, WhatIsNoAddressIsNamed) {
  for (const char* text : {"", ":", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:65536", "name:80",
                           "127.0.0.1:8x", "[::1:80", "[]:80", "::1:80"}) {
    auto address = parse_address(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code, Code::kInvalidArgument);
    EXPECT_NE(address.error().text.find("rail '" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(TcpSocket, ADialOfAFreePortIsRefused) {
  auto listener = listen_on(*parse_address("127.0.0.1:0"));
  ASSERT_TRUE(listener);
  const SocketAddress address = *local_address(listener->value());
  listener->reset();
  Dial dialled = dial(address, *parse_address("127.0.0.1:0"));
  if (dialled.state == DialState::kPending) {
    pollfd ready{dialled.fd.value(), POLLOUT, 0};
    ASSERT_EQ(::poll(&ready, 1, 5000), 1);
    dialled.state = finish_dial(dialled.fd.value());
  }
  EXPECT_EQ(dialled.state, DialState::kRefused);
}

TEST(TcpSocket, ASocketThatReachedItselfCountsAsRefused) {
  // A dial of a free port of the local range may be given that very port as its source.
  const auto socket = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
  auto address = *parse_address("127.0.0.1:0");
  ASSERT_EQ(::bind(socket.value(), reinterpret_cast<sockaddr*>(&address.storage), address.size), 0);
  auto bound = *local_address(socket.value());
  ASSERT_EQ(::connect(socket.value(), reinterpret_cast<sockaddr*>(&bound.storage), bound.size), 0);
  EXPECT_EQ(finish_dial(socket.value()), DialState::kRefused);
}

TEST(TcpSocket, APortInUseIsNamedWithTheKernelsWord) {
  auto first = listen_on(*parse_address("127.0.0.1:0"));
  ASSERT_TRUE(first);
  auto second = listen_on(*local_address(first->value()));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kSystem);
  EXPECT_NE(second.error().text.find("errno 98"), std::string::npos) << second.error().text;
}

TEST(TcpSocket, ASegmentIsAFractionOfALittleReadersWindowOverLoopbackToo) {
  auto listener = listen_on(*parse_address("127.0.0.1:0"));
  ASSERT_TRUE(listener);
  const Dial dialled = dial(*local_address(listener->value()), *parse_address("127.0.0.1:0"));
  pollfd ready{listener->value(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 5000), 1);
  const UniqueFd accepted(::accept(listener->value(), nullptr, nullptr));
  EXPECT_LE(option(dialled.fd.value(), IPPROTO_TCP, TCP_MAXSEG), kSegmentBytesMax);
  EXPECT_LE(option(accepted.value(), IPPROTO_TCP, TCP_MAXSEG), kSegmentBytesMax);
}

TEST(TcpSocket, ControlGoesBeforeBulkInTheHostsQueue) {
  const UniqueFd control(::socket(AF_INET, SOCK_STREAM, 0));
  const UniqueFd bulk(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_TRUE(set_rail_options(control.value(), ConnectionKind::kControl));
  ASSERT_TRUE(set_rail_options(bulk.value(), ConnectionKind::kBulk));
  EXPECT_EQ(option(control.value(), SOL_SOCKET, SO_PRIORITY), kControlPriority);
  EXPECT_EQ(option(bulk.value(), SOL_SOCKET, SO_PRIORITY), 0);
}

TEST(TcpSocket, OnlyBulkHoldsBackWhatIsNotSent) {
  const UniqueFd control(::socket(AF_INET, SOCK_STREAM, 0));
  const UniqueFd bulk(::socket(AF_INET, SOCK_STREAM, 0));
  const int before = option(control.value(), IPPROTO_TCP, TCP_NOTSENT_LOWAT);
  ASSERT_TRUE(set_rail_options(control.value(), ConnectionKind::kControl));
  ASSERT_TRUE(set_rail_options(bulk.value(), ConnectionKind::kBulk));
  EXPECT_EQ(option(control.value(), IPPROTO_TCP, TCP_NOTSENT_LOWAT), before);
  EXPECT_EQ(option(bulk.value(), IPPROTO_TCP, TCP_NOTSENT_LOWAT), kBulkNotSentBytesMax);
  EXPECT_EQ(option(control.value(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(bulk.value(), IPPROTO_TCP, TCP_NODELAY), 1);
}

}  // namespace
}  // namespace hoplite
