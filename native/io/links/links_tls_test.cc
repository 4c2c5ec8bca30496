// SPDX-License-Identifier: Apache-2.0
// Two sides of which not both have TLS of use to the other, and strangers to one that has.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <vector>

#include "base/must_test.h"
#include "io/links/links.h"
#include "io/sockets/authority_test.h"
#include "io/sockets/tcp_socket.h"

namespace hoplite {
namespace {

struct Side {
  Side(std::uint64_t node, std::optional<TlsFiles> files)
      : member{NodeId{node}, Incarnation{1}, {}},
        poller(must(Poller::open())),
        arena(must(Arena::open(1_MiB))),
        links(must(Links::open({NodeId{node}, Incarnation{1}, "secret", context(files)}, {},
                               {"127.0.0.1:0"}, poller, arena, 1))) {
    member.rails = links.rails();
  }
  static std::optional<TlsContext> context(const std::optional<TlsFiles>& files) {
    if (!files) return std::nullopt;
    return must(TlsContext::open(*files));
  }
  void turn(Instant now) {
    Budget budget{1_MiB};
    links.handle_ready(poller.wait(1_ms), budget, now);
    links.handle_timeout(now);
    links.flush(budget, now);
    for (const IoEvent& event : links.take_events()) {
      has_link |= std::holds_alternative<LinkUp>(event);
    }
  }
  Member member;
  Poller poller;
  Arena arena;
  Links links;
  bool has_link = false;
};

class LinksTls : public ::testing::Test {
 protected:
  // Lets the two try until both have said why they don't meet.
  void part(Side& dialler, Side& listener) {
    dialler.links.connect(listener.member, now_);
    listener.links.connect(dialler.member, now_);
    const auto is_said = [](const Side& side) { return !side.links.last_refusal().empty(); };
    for (int i = 0; i < 2000 && !(is_said(dialler) && is_said(listener)); ++i) {
      dialler.turn(now_);
      listener.turn(now_);
      now_ = now_ + 1_ms;
    }
    EXPECT_FALSE(dialler.has_link || listener.has_link);
    EXPECT_GT(dialler.links.counters().handshakes_refused, 0U);
    EXPECT_GT(listener.links.counters().handshakes_refused, 0U);
  }
  static void expect(const Side& side, const std::string& said) {
    EXPECT_NE(side.links.last_refusal().find(said), std::string::npos) << side.links.last_refusal();
  }

  Authority ours_;
  Instant now_{1'000'000'000};
};

TEST_F(LinksTls, ADiallerWithoutItIsToldAndSoIsTheListener) {
  Side a(1, std::nullopt), b(2, ours_.certify());
  part(a, b);
  expect(a, "connection with node 2 at " + b.member.rails[0] +
                " refused: it speaks TLS, and data_tls is off here");
  expect(b, "connection with 127.0.0.1 refused: it speaks no TLS, and data_tls is on here");
}

TEST_F(LinksTls, AListenerWithoutItIsToldAndSoIsTheDialler) {
  Side a(1, ours_.certify()), b(2, std::nullopt);
  part(a, b);
  expect(a, "connection with node 2 at " + b.member.rails[0] +
                " refused: it speaks no TLS, and data_tls is on here");
  expect(b, "connection with 127.0.0.1 refused: it speaks TLS, and data_tls is off here");
}

TEST_F(LinksTls, AnotherAuthorityIsRefusedWithTheRightSecretAndBothEndsSaySo) {
  const Authority theirs;
  Side a(1, ours_.certify()), b(2, theirs.certify());
  part(a, b);
  expect(a, "its certificate is refused");
  expect(b, "connection with 127.0.0.1 refused: it refuses our certificate");
  TlsFiles trusting = theirs.certify();
  trusting.authority = ours_.own();
  Side c(1, trusting), d(2, ours_.certify());
  part(c, d);
  expect(c, "it refuses our certificate");
  expect(d, "its certificate is refused");
}

TEST_F(LinksTls, AGreetingThatNeverEndsIsCutOff) {
  Side b(2, ours_.certify());
  Dial dialled = dial(must(parse_address(b.member.rails[0])), must(parse_address("127.0.0.1:0")));
  const auto session = must(TlsContext::open(ours_.certify())).begin(TlsSession::Side::kDials);
  for (int i = 0; i < 100 && finish_dial(dialled.fd.value()) != DialState::kOpen; ++i) b.turn(now_);
  ASSERT_TRUE(session->flush(dialled.fd.value()));  // and nothing after the first flight
  const auto is_closed = [&] {
    std::array<char, 8192> answer{};
    return ::recv(dialled.fd.value(), answer.data(), answer.size(), MSG_DONTWAIT) == 0;
  };
  for (int i = 0; i < 20; ++i) {
    b.turn(now_);
    EXPECT_FALSE(is_closed());
  }
  now_ = now_ + LinkLimits{}.handshake_max;
  bool was_closed = false;
  for (int i = 0; i < 200 && !was_closed; ++i) {
    b.turn(now_);
    was_closed = is_closed();
  }
  EXPECT_TRUE(was_closed);
  expect(b, "no handshake within the limit");
}

// A relay with a good certificate, but not the secret, passes all frames on. It has a session with
// each node, and a proof is bound to one session.
TEST_F(LinksTls, AProofPassedOnIntoAnotherSessionDoesNotFit) {
  const Identity first{NodeId{1}, Incarnation{1}, "secret"};
  const Identity second{NodeId{2}, Incarnation{1}, "secret"};
  Hello hello;
  hello.to = second.node;
  hello.to_incarnation = second.incarnation;
  Handshake dialler(first, hello), listener(second);
  dialler.bind(Bytes(32, std::byte{1}));
  listener.bind(Bytes(32, std::byte{2}));
  ASSERT_TRUE(listener.handle_frame(dialler.poll_frame().value()));
  auto handled = dialler.handle_frame(listener.poll_frame().value());
  ASSERT_FALSE(handled);
  EXPECT_EQ(handled.error().code, Code::kUnauthenticated);
}

}  // namespace
}  // namespace hoplite
