// SPDX-License-Identifier: Apache-2.0
#include "io/links/handshake.h"

#include <gtest/gtest.h>

#include <functional>
#include <variant>

namespace hoplite {
namespace {

using State = Handshake::State;

const Identity kDialler{NodeId{1}, Incarnation{4}, "secret"};
const Identity kListener{NodeId{2}, Incarnation{7}, "secret"};

Hello hello_to_listener() {
  Hello hello;
  hello.to = kListener.node;
  hello.to_incarnation = kListener.incarnation;
  hello.kind = ConnectionKind::kBulk;
  hello.rail = RailId{1};
  hello.attempt = 3;
  return hello;
}

struct Meeting {
  Handshake dialler;
  Handshake listener;
  explicit Meeting(const Identity& a = kDialler, const Identity& b = kListener)
      : dialler(a, hello_to_listener()), listener(b) {}
};

LinkFrame must(std::optional<LinkFrame> frame) {
  EXPECT_TRUE(frame.has_value());
  return frame.value_or(LinkFrame{Goodbye{}});
}

TEST(Handshake, TwoNodesOfOneClusterMeet) {
  Meeting m;
  ASSERT_TRUE(m.listener.handle_frame(must(m.dialler.poll_frame())));
  ASSERT_TRUE(m.dialler.handle_frame(must(m.listener.poll_frame())));
  EXPECT_EQ(m.dialler.state(), State::kDone);
  ASSERT_TRUE(m.listener.handle_frame(must(m.dialler.poll_frame())));
  EXPECT_EQ(m.listener.state(), State::kDone);
  EXPECT_EQ(m.listener.hello().from, kDialler.node);
  EXPECT_EQ(m.listener.hello().from_incarnation, kDialler.incarnation);
  EXPECT_EQ(m.listener.hello().attempt, 3U);
  EXPECT_FALSE(m.listener.poll_frame().has_value());
}

TEST(Handshake, TheDiallerRefusesAnotherClustersListener) {
  const Identity stranger{kListener.node, kListener.incarnation, "other"};
  Meeting m(kDialler, stranger);
  ASSERT_TRUE(m.listener.handle_frame(must(m.dialler.poll_frame())));
  auto handled = m.dialler.handle_frame(must(m.listener.poll_frame()));
  ASSERT_FALSE(handled);
  EXPECT_EQ(handled.error().code, Code::kUnauthenticated);
  EXPECT_NE(handled.error().text.find("node 1 and node 2"), std::string::npos);
}

TEST(Handshake, TheListenerRefusesAProofOfAnotherSecret) {
  Meeting m;
  ASSERT_TRUE(m.listener.handle_frame(must(m.dialler.poll_frame())));
  const auto welcome = std::get<Welcome>(must(m.listener.poll_frame()));
  const Mac other = pair_ticket("other", kDialler.node, kListener.node);
  auto handled = m.listener.handle_frame(Proof{hello_proof(other, m.listener.hello(), welcome)});
  ASSERT_FALSE(handled);
  EXPECT_EQ(handled.error().code, Code::kUnauthenticated);
}

TEST(Handshake, AWelcomeCannotBeReflectedAsAProof) {
  Meeting m;
  ASSERT_TRUE(m.listener.handle_frame(must(m.dialler.poll_frame())));
  const auto welcome = std::get<Welcome>(must(m.listener.poll_frame()));
  EXPECT_FALSE(m.listener.handle_frame(Proof{welcome.proof}));
}

TEST(Handshake, AProofIsGoodForOneMeetingOnly) {
  Meeting first;
  ASSERT_TRUE(first.listener.handle_frame(must(first.dialler.poll_frame())));
  ASSERT_TRUE(first.dialler.handle_frame(must(first.listener.poll_frame())));
  const LinkFrame proof = must(first.dialler.poll_frame());
  Handshake second(kListener);
  ASSERT_TRUE(second.handle_frame(LinkFrame{first.listener.hello()}));  // the same Hello again
  EXPECT_FALSE(second.handle_frame(proof));
}

TEST(Handshake, EveryFieldOfTheHelloIsCovered) {
  const std::vector<std::function<void(Hello&)>> changes{
      [](Hello& h) { h.features = 1; },
      [](Hello& h) { h.from_incarnation = Incarnation{5}; },
      [](Hello& h) { h.kind = ConnectionKind::kControl; },
      [](Hello& h) { h.rail = RailId{0}; },
      [](Hello& h) { h.attempt = 4; },
      [](Hello& h) { h.nonce[0] ^= 1; },
  };
  for (const auto& change : changes) {
    Meeting m;
    auto hello = std::get<Hello>(must(m.dialler.poll_frame()));
    change(hello);
    ASSERT_TRUE(m.listener.handle_frame(LinkFrame{hello}));
    EXPECT_FALSE(m.dialler.handle_frame(must(m.listener.poll_frame())));
  }
}

TEST(Handshake, EveryFieldOfTheWelcomeIsCovered) {
  const std::vector<std::function<void(Welcome&)>> changes{
      [](Welcome& w) { w.features = 1; },
      [](Welcome& w) { w.incarnation = Incarnation{8}; },
      [](Welcome& w) { w.nonce[15] ^= 1; },
      [](Welcome& w) { w.proof[0] ^= 1; },
  };
  for (const auto& change : changes) {
    Meeting m;
    ASSERT_TRUE(m.listener.handle_frame(must(m.dialler.poll_frame())));
    auto welcome = std::get<Welcome>(must(m.listener.poll_frame()));
    change(welcome);
    EXPECT_FALSE(m.dialler.handle_frame(LinkFrame{welcome}));
  }
}

TEST(Handshake, AnotherLifeProvesThatTheOldOneIsOver) {
  const Identity reborn{kListener.node, Incarnation{8}, "secret"};
  Meeting m(kDialler, reborn);
  ASSERT_TRUE(m.listener.handle_frame(must(m.dialler.poll_frame())));
  EXPECT_EQ(m.listener.state(), State::kOtherIncarnation);
  ASSERT_TRUE(m.dialler.handle_frame(must(m.listener.poll_frame())));
  EXPECT_EQ(m.dialler.state(), State::kOtherIncarnation);
  EXPECT_EQ(m.dialler.peer_incarnation(), Incarnation{8});
  EXPECT_FALSE(m.dialler.poll_frame().has_value());
}

TEST(Handshake, OnlyTheSmallerIdDialsAndOnlyTheOneThatIsMeant) {
  Handshake listener(kListener);
  Hello hello = hello_to_listener();
  for (const NodeId from : {kNoNode, NodeId{2}, NodeId{3}}) {
    hello.from = from;
    EXPECT_FALSE(Handshake(kListener).handle_frame(LinkFrame{hello}));
  }
  hello.from = NodeId{1};
  hello.to = NodeId{5};
  EXPECT_FALSE(Handshake(kListener).handle_frame(LinkFrame{hello}));
}

TEST(Handshake, AnotherWireVersionIsNamed) {
  Hello hello = hello_to_listener();
  hello.from = kDialler.node;
  hello.wire_version = 1;
  auto handled = Handshake(kListener).handle_frame(LinkFrame{hello});
  ASSERT_FALSE(handled);
  EXPECT_EQ(handled.error().code, Code::kWrongVersion);
  EXPECT_NE(handled.error().text.find("it speaks wire version 1, we 5"), std::string::npos)
      << handled.error().text;
}

TEST(Handshake, EveryStateTakesOneKindOfFrameOnly) {
  const std::vector<LinkFrame> frames{Hello{}, Welcome{}, Proof{}, CloseRail{}, Goodbye{}, Pulse{}};
  for (const LinkFrame& frame : frames) {
    Handshake listener(kListener);
    EXPECT_FALSE(listener.handle_frame(frame));  // an empty Hello is for no node
    Handshake dialler(kDialler, hello_to_listener());
    EXPECT_FALSE(dialler.handle_frame(frame));
    Meeting m;
    ASSERT_TRUE(m.listener.handle_frame(must(m.dialler.poll_frame())));
    EXPECT_FALSE(m.listener.handle_frame(frame));
  }
}

TEST(Handshake, TicketsDifferByPairAndNotByDirection) {
  const Mac ab = pair_ticket("s", NodeId{1}, NodeId{2});
  EXPECT_TRUE(are_equal(ab, pair_ticket("s", NodeId{2}, NodeId{1})));
  EXPECT_FALSE(are_equal(ab, pair_ticket("s", NodeId{1}, NodeId{3})));
  EXPECT_FALSE(are_equal(ab, pair_ticket("t", NodeId{1}, NodeId{2})));
}

}  // namespace
}  // namespace hoplite
