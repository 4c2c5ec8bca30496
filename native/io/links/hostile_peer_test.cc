// SPDX-License-Identifier: Apache-2.0
// Strangers send arbitrary bytes to an open port: they lose their connection, and no other peer is
// affected.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/must_test.h"
#include "base/prng.h"
#include "io/links/links.h"

namespace hoplite {
namespace {

// Each test runs with blocks on the reactor, and on threads.
class HostilePeer : public ::testing::TestWithParam<std::size_t> {
 protected:
  HostilePeer()
      : poller_(must(Poller::open())),
        arena_(must(Arena::open(1_MiB))),
        links_(must(Links::open({NodeId{2}, Incarnation{1}, "secret"}, limits(), {"127.0.0.1:0"},
                                poller_, arena_, 1))) {}

  static LinkLimits limits() {
    LinkLimits limits;
    limits.io_threads = GetParam();
    return limits;
  }

  UniqueFd knock(const std::string& from = "127.0.0.1") {
    const SocketAddress address = must(parse_address(links_.rails()[0]));
    const SocketAddress own = must(parse_address(from + ":0"));
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    HOPLITE_CHECK(::bind(fd.value(), reinterpret_cast<const sockaddr*>(&own.storage), own.size) ==
                  0);
    HOPLITE_CHECK(::connect(fd.value(), reinterpret_cast<const sockaddr*>(&address.storage),
                            address.size) == 0);
    return fd;
  }
  static void send_bytes(const UniqueFd& fd, std::span<const std::byte> bytes) {
    // Closed by the other side while we speak is what some of these tests are for.
    [[maybe_unused]] const auto sent = ::send(fd.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void turn() {
    Budget budget{1_MiB};
    links_.handle_ready(poller_.wait(1_ms), budget, now_);
    links_.handle_timeout(now_);
    links_.flush(budget, now_);
  }
  bool is_closed(const UniqueFd& fd) {
    for (int i = 0; i < 2000; ++i) {
      turn();
      std::array<char, 4096> answer{};
      const ssize_t got = ::recv(fd.value(), answer.data(), answer.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    }
    return false;
  }
  bool is_answered(const UniqueFd& fd) {  // by a Welcome, so there was a place for it
    Bytes hello;
    encode(LinkFrame{hello_for(NodeId{2})}, hello);
    send_bytes(fd, hello);
    pollfd answered{fd.value(), POLLIN, 0};
    for (int i = 0; i < 2000 && ::poll(&answered, 1, 0) == 0; ++i) turn();
    char byte = 0;
    return ::recv(fd.value(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
  }
  static Hello hello_for(NodeId to) {
    Hello hello;
    hello.from = NodeId{1};
    hello.from_incarnation = Incarnation{1};
    hello.to = to;
    hello.to_incarnation = Incarnation{1};
    return hello;
  }

  Instant now_{1'000'000'000};
  Poller poller_;
  Arena arena_;
  Links links_;
};

TEST_P(HostilePeer, RandomBytesCloseTheConnectionAndAreCounted) {
  Prng prng(7);
  for (int round = 0; round < 50; ++round) {
    const UniqueFd fd = knock();
    Bytes noise(200);
    for (auto& each : noise) each = static_cast<std::byte>(prng.next());
    send_bytes(fd, noise);
    ASSERT_TRUE(is_closed(fd));
  }
  EXPECT_EQ(links_.counters().frames_bad, 50U);
  EXPECT_FALSE(links_.has_events());
}

TEST_P(HostilePeer, HalfAHeaderAndThenSilenceIsClosedAtTheDeadline) {
  const UniqueFd fd = knock();
  Bytes hello;
  encode(LinkFrame{hello_for(NodeId{2})}, hello);
  send_bytes(fd, std::span(hello).first(kFrameHeaderBytes / 2));
  for (int i = 0; i < 20; ++i) turn();
  ASSERT_TRUE(links_.poll_timeout().has_value());
  char byte = 0;
  EXPECT_EQ(::recv(fd.value(), &byte, 1, MSG_DONTWAIT), -1);  // still open
  now_ = now_ + 3_s;
  EXPECT_TRUE(is_closed(fd));
}

TEST_P(HostilePeer, AMutilatedHelloNeverGetsFurther) {
  Bytes whole;
  encode(LinkFrame{hello_for(NodeId{2})}, whole);
  Prng prng(11);
  for (int round = 0; round < 200; ++round) {
    const UniqueFd fd = knock();
    Bytes bytes = whole;
    bytes[prng.below(bytes.size())] ^= static_cast<std::byte>(1 + prng.below(255));
    send_bytes(fd, bytes);
    ::shutdown(fd.value(), SHUT_WR);
    ASSERT_TRUE(is_closed(fd)) << round;
  }
  EXPECT_EQ(links_.counters().handshakes, 0U);
}

TEST_P(HostilePeer, AMessageBeforeTheHandshakeIsRefused) {
  const UniqueFd fd = knock();
  Message message;
  message.body = Credit{1};
  Bytes bytes;
  encode(message, 0, bytes);
  send_bytes(fd, bytes);
  EXPECT_TRUE(is_closed(fd));
  EXPECT_EQ(links_.counters().handshakes_refused, 1U);
  EXPECT_FALSE(links_.has_events());
}

TEST_P(HostilePeer, AWrongProofIsRefusedWithItsReason) {
  const UniqueFd fd = knock();
  Bytes bytes;
  encode(LinkFrame{hello_for(NodeId{2})}, bytes);
  encode(LinkFrame{Proof{}}, bytes);
  send_bytes(fd, bytes);
  EXPECT_TRUE(is_closed(fd));
  EXPECT_EQ(links_.counters().handshakes_refused, 1U);
  EXPECT_NE(links_.last_refusal().find("another cluster's secret"), std::string::npos);
}

TEST_P(HostilePeer, AnEarlierWireVersionIsRefusedAndBothAreNamed) {
  const UniqueFd fd = knock();
  Bytes bytes;
  encode(LinkFrame{hello_for(NodeId{2})}, bytes);
  bytes[4] = static_cast<std::byte>(kWireVersion - 1);  // of every frame: magic, then version
  send_bytes(fd, bytes);
  EXPECT_TRUE(is_closed(fd));
  EXPECT_EQ(links_.counters().versions_refused, 1U);
  EXPECT_NE(links_.last_refusal().find("the peer speaks wire version 4, this node 5"),
            std::string::npos)
      << links_.last_refusal();
}

TEST_P(HostilePeer, AFloodOfSilentConnectionsHasALimit) {
  std::vector<UniqueFd> flood;
  const std::size_t limit = LinkLimits{}.meeting_max;
  for (std::size_t i = 0; i < limit; ++i) flood.push_back(knock());
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_EQ(links_.counters().connections_refused, 0U);
  flood.push_back(knock());
  EXPECT_TRUE(is_closed(flood[0]));
  EXPECT_EQ(links_.counters().connections_refused, 1U);
  EXPECT_TRUE(is_answered(knock()));
  EXPECT_TRUE(is_closed(flood[1]));
}

TEST_P(HostilePeer, AFloodFromOneAddressKeepsNoOtherOneOut) {
  std::vector<UniqueFd> flood;
  std::vector<UniqueFd> others;
  for (std::size_t i = 0; i < 2 * LinkLimits{}.meeting_max; ++i) {
    flood.push_back(knock("127.0.0.2"));
    if (i % 16 == 0) others.push_back(knock("127.0.0.3"));  // 32: as many as it keeps
    turn();
  }
  for (const UniqueFd& fd : others) EXPECT_TRUE(is_answered(fd));
  EXPECT_TRUE(is_answered(knock("127.0.0.4")));
}

TEST_P(HostilePeer, WhoComesWhenEveryAddressHasFewIsSentAway) {
  std::vector<UniqueFd> crowd;
  for (std::size_t i = 0; i < LinkLimits{}.meeting_max; ++i) {
    crowd.push_back(knock("127.0.0." + std::to_string(10 + i % 8)));
  }
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_TRUE(is_closed(knock()));
  for (const UniqueFd& fd : crowd) EXPECT_TRUE(is_answered(fd));
}

INSTANTIATE_TEST_SUITE_P(OnReactorAndThreads, HostilePeer,
                         ::testing::Values(std::size_t{0}, std::size_t{2}));

}  // namespace
}  // namespace hoplite
