// SPDX-License-Identifier: Apache-2.0
// Worlds of members that all live in this process, each with a port of its own.
#include "world/world.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world/pipes/fake_pipe.h"
#include "world/pipes/socket_pipe.h"
#include "world/pipes/sockets_test.h"
#include "world/progress.h"

namespace hoplite::worlds {
namespace {

using Data = std::vector<std::byte>;
using State = Operation::State;

constexpr Duration kLong = 10_s;

Data pattern(std::size_t size, unsigned seed) {
  Data data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 13 + seed);
  return data;
}

Content content_of(const Data& data, std::uint64_t key = 0) {
  Content content;
  content.key = MatchKey{key};
  content.size_bytes = data.size();
  content.dtype = "uint8";
  content.shape = {data.size()};
  return content;
}

std::unique_ptr<Pipe> pipe_of(Stream stream) {
  EXPECT_TRUE(SocketPipe::prepare(stream.fd()));
  return std::make_unique<SocketPipe>(std::move(stream));
}
std::unique_ptr<Pipe> pipe_of(UniqueFd fd) { return pipe_of(Stream(std::move(fd))); }

// One process: a port, and its side of a world.
struct Member {
  Member() {
    auto started = Progress::start({});
    EXPECT_TRUE(started) << started.error().text;
    port = std::move(*started);
  }
  std::unique_ptr<Progress> port;
  std::shared_ptr<World> world;
};

enum class DataTls : std::uint8_t { kOff, kOn };

// Each test is run without TLS and with it.
class Worlds : public testing::TestWithParam<DataTls> {
 protected:
  // A world of so many members, by sockets, each pair of which watches one another.
  void meet(std::uint32_t size, Sockets (*connect)() = unix_sockets) {
    members_ = std::vector<Member>(size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      members_[rank].world = *members_[rank].port->open_world("w", 1, Rank{rank}, size);
    }
    for (std::uint32_t a = 0; a < size; ++a) {
      for (std::uint32_t b = a + 1; b < size; ++b) {
        Streams data = streams(connect());
        Streams watch = streams(unix_sockets());
        join(a, b, std::move(data.first), std::move(watch.first));
        join(b, a, std::move(data.second), std::move(watch.second));
      }
    }
  }

  static Streams streams(Sockets sockets) {
    return GetParam() == DataTls::kOn ? secure_streams(std::move(sockets))
                                      : plain_streams(std::move(sockets));
  }
  void join(std::uint32_t at, std::uint32_t peer, Stream data, Stream watch) {
    Member& member = members_[at];
    const auto watched = member.port->watch(std::move(watch));
    ASSERT_TRUE(watched);
    ASSERT_TRUE(member.world->add_edge(Rank{peer}, pipe_of(std::move(data))));
    member.port->add_dependent(member.world, Rank{peer}, *watched);
  }

  OperationHandle send(std::uint32_t at, std::uint32_t to, const Data& data) {
    auto sent = members_[at].world->send(Rank{to}, content_of(data), data);
    EXPECT_TRUE(sent) << sent.error().text;
    return *sent;
  }
  OperationHandle receive(std::uint32_t at, std::uint32_t from, Data& data,
                          const std::string& dtype = "uint8") {
    auto got = members_[at].world->receive(Rank{from}, {MatchKey{0}, 0, dtype, data});
    EXPECT_TRUE(got) << got.error().text;
    return *got;
  }
  State state_of(std::uint32_t at, const OperationHandle& operation) {
    if (operation == nullptr) return State::kDone;
    EXPECT_TRUE(members_[at].world->wait(*operation, kLong));
    return operation->state;
  }
  // Waits until its world has ended.
  End end_of(std::uint32_t at) {
    Data one(1);
    const auto operation = receive(at, at == 0 ? 1 : 0, one);
    EXPECT_EQ(state_of(at, operation), State::kBroken);
    return *members_[at].world->end();
  }
  std::vector<Member> members_;
};

INSTANTIATE_TEST_SUITE_P(WithoutAndWithTls, Worlds, testing::Values(DataTls::kOff, DataTls::kOn),
                         [](const auto& each) {
                           return each.param == DataTls::kOn ? "Tls" : "Plain";
                         });

TEST_P(Worlds, MessagesOfAllSizesArriveWhoeverComesFirst) {
  meet(2);
  for (const std::size_t size : {0UL, 1UL, 4096UL, 300'000UL, 20'000'000UL}) {
    for (const bool is_early : {false, true}) {
      const Data data = pattern(size, static_cast<unsigned>(size));
      Data got(size);
      OperationHandle receiving;
      if (is_early) receiving = receive(1, 0, got);
      const auto sending = send(0, 1, data);
      if (!is_early) receiving = receive(1, 0, got);
      EXPECT_EQ(state_of(1, receiving), State::kDone);
      EXPECT_EQ(state_of(0, sending), State::kDone);
      EXPECT_EQ(got, data);
    }
  }
}

TEST_P(Worlds, ManyThreadsSendAndReceiveAtOnce) {
  meet(3);
  std::vector<std::thread> threads;
  for (std::uint32_t a = 0; a < 3; ++a) {
    for (std::uint32_t b = 0; b < 3; ++b) {
      if (a == b) continue;
      threads.emplace_back([this, a, b] {
        for (unsigned i = 0; i < 200; ++i) {
          const Data data = pattern(i * 97, a * 3 + b + i);
          EXPECT_EQ(state_of(a, send(a, b, data)), State::kDone);
        }
      });
      threads.emplace_back([this, a, b] {
        for (unsigned i = 0; i < 200; ++i) {
          Data got(i * 97);
          EXPECT_EQ(state_of(b, receive(b, a, got)), State::kDone);
          EXPECT_EQ(got, pattern(i * 97, a * 3 + b + i));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Worlds, AMismatchEndsThisWorldForAll) {
  meet(3);
  const auto sending = send(0, 1, pattern(10, 1));
  EXPECT_EQ(state_of(0, sending), State::kDone);
  Data got(11);
  EXPECT_EQ(state_of(1, receive(1, 0, got)), State::kBroken);
  for (const std::uint32_t at : {0U, 1U, 2U}) {
    const End end = end_of(at);
    EXPECT_EQ(end.cause, Cause::kProtocol);
    EXPECT_EQ(end.rank, Rank{0});
    EXPECT_NE(end.text.find("uint8[10] (10 B)"), std::string::npos) << end.text;
  }
}

TEST_P(Worlds, AnAbortEndsWhatIsPendingEverywhere) {
  meet(3);
  Data got(10);
  const auto pending = receive(2, 0, got);
  members_[1].world->abort(Cause::kAborted, "enough");
  EXPECT_EQ(state_of(2, pending), State::kBroken);
  for (const std::uint32_t at : {0U, 1U, 2U}) {
    const End end = end_of(at);
    EXPECT_EQ(end.cause, Cause::kAborted);
    EXPECT_EQ(end.rank, Rank{1});
    EXPECT_EQ(end.text, "enough");
  }
}

TEST_P(Worlds, AnIdleMemberHearsOfTheEndWithoutAsking) {
  meet(2);
  members_[0].world->abort(Cause::kAborted, "enough");
  pollfd events{members_[1].port->events_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&events, 1, 10'000), 1);
  const auto told = members_[1].port->take_events();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told.front().kind, WorldEvent::Kind::kBroken);
  EXPECT_EQ(told.front().rank, Rank{0});
}

TEST_P(Worlds, WhoLeavesIsMissedOnlyWhenItIsNeeded) {
  meet(3);
  const Data data = pattern(100, 1);
  EXPECT_EQ(state_of(0, send(0, 1, data)), State::kDone);
  EXPECT_EQ(state_of(0, members_[0].world->leave()), State::kDone);
  members_[0].world->close();
  Data got(100);
  EXPECT_EQ(state_of(1, receive(1, 0, got)), State::kDone);
  EXPECT_EQ(got, data);
  EXPECT_EQ(state_of(1, send(1, 2, data)), State::kDone);
  EXPECT_EQ(state_of(2, receive(2, 1, got)), State::kDone);
  EXPECT_EQ(state_of(1, receive(1, 0, got)), State::kBroken);
  EXPECT_EQ(members_[1].world->end()->cause, Cause::kPeerLeft);
  EXPECT_EQ(members_[1].world->end()->rank, Rank{0});
}

TEST_P(Worlds, MembersThatLeaveAtTheSameTimeDieForNobody) {
  for (int round = 0; round < 100; ++round) {
    meet(3, tcp_sockets);
    std::vector<OperationHandle> leaving(3);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < 3; ++i) {
        threads.emplace_back([&, i] { leaving[i] = members_[i].world->leave(); });
      }
    }
    for (std::uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(state_of(i, leaving[i]), State::kDone) << round;
      members_[i].world->close();
      EXPECT_FALSE(members_[i].world->end()) << members_[i].world->end()->text;
    }
  }
}

// The receiver gives credit back while the sender's last bytes are still in its kernel.
TEST_P(Worlds, WhatWasSentBeforeLeavingArrives) {
  const Data data = pattern(80'000, 5);
  for (int round = 0; round < 20; ++round) {
    meet(2, tcp_sockets);
    std::jthread sender([&] {
      for (int i = 0; i < 50; ++i) EXPECT_EQ(state_of(0, send(0, 1, data)), State::kDone);
      EXPECT_EQ(state_of(0, members_[0].world->leave()), State::kDone);
      members_[0].world->close();
    });
    Data got(data.size());
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(state_of(1, receive(1, 0, got)), State::kDone) << round << ' ' << i;
      ASSERT_EQ(got, data);
    }
  }
}

TEST_P(Worlds, AReceiveThatIsPendingWhenAllLeaveHasEnded) {
  meet(2);
  Data got(10);
  const auto receiving = receive(0, 1, got);
  EXPECT_EQ(state_of(0, members_[0].world->leave()), State::kDone);
  EXPECT_EQ(state_of(0, receiving), State::kBroken);
  EXPECT_FALSE(members_[0].world->end());
  members_[0].world->close();
  EXPECT_FALSE(members_[0].world->cancel(*receiving));
}

TEST_P(Worlds, LeavingIsNotDoneWhenNobodyTookWhatWasSent) {
  meet(2, tcp_sockets);
  auto data = tcp_sockets();
  auto alone = *members_[0].port->open_world("alone", 1, Rank{0}, 2);
  ASSERT_TRUE(alone->add_edge(Rank{1}, pipe_of(std::move(data.first))));
  const Data sent = pattern(100'000, 1);
  ASSERT_TRUE(alone->send(Rank{1}, content_of(sent), sent));
  const auto leaving = alone->leave();
  data.second.reset();  // while it holds unread bytes
  EXPECT_TRUE(alone->wait(*leaving, kLong));
  EXPECT_EQ(leaving->state, State::kBroken);
  EXPECT_EQ(alone->end()->cause, Cause::kPeerDied);
}

TEST_P(Worlds, WhoHasLeftMayDieAfterwards) {
  meet(2);
  const auto first = members_[0].world->leave();
  const auto second = members_[1].world->leave();
  EXPECT_EQ(state_of(0, first), State::kDone);
  EXPECT_EQ(state_of(1, second), State::kDone);
  members_[1].world->handle_peer_end(Rank{0}, Cause::kPeerDied);
  EXPECT_FALSE(members_[1].world->end());
}

TEST_P(Worlds, ASendThatIsTakenBackMakesWayForTheNextOne) {
  meet(2);
  const Data filling = pattern(EdgeLimits{}.window_bytes - 40'000, 1);
  const Data large = pattern(100'000, 2);
  const Data small = pattern(4, 3);
  EXPECT_EQ(state_of(0, send(0, 1, filling)), State::kDone);
  const auto waiting = send(0, 1, large);  // for more credit than there is
  const auto behind = send(0, 1, small);
  ASSERT_NE(behind, nullptr);
  EXPECT_TRUE(members_[0].world->cancel(*waiting));
  EXPECT_EQ(state_of(0, behind), State::kDone);
}

TEST_P(Worlds, OneThatWasTakenBackSaysWhetherAnyOfItHadMoved) {
  meet(2);
  const Data large = pattern(EdgeLimits{}.window_bytes + 100'000, 1);
  const auto first = send(0, 1, large);
  const auto behind = send(0, 1, large);
  Data got(large.size());
  const auto nothing = receive(0, 1, got);
  for (const auto& [operation, had_moved] :
       {std::pair(behind, false), std::pair(first, true), std::pair(nothing, false)}) {
    EXPECT_TRUE(members_[0].world->cancel(*operation));
    EXPECT_EQ(members_[0].world->has_moved(*operation), had_moved);
  }
  EXPECT_EQ(state_of(1, receive(1, 0, got)), State::kDone);
  EXPECT_EQ(got, large);
}

TEST_P(Worlds, AWorldThatIsClosedWithoutLeavingIsBrokenForTheOthers) {
  meet(2);
  Data got(10);
  const auto pending = receive(0, 1, got);
  members_[0].world->close();
  EXPECT_EQ(pending->state, State::kBroken);
  EXPECT_EQ(end_of(1).cause, Cause::kLocal);
  EXPECT_EQ(state_of(0, send(0, 1, got)), State::kBroken);
}

TEST_P(Worlds, ACancelledReceiveGivesItsMessageToTheNextOne) {
  meet(2);
  const Data data = pattern(20'000'000, 3);
  Data first(data.size());
  const auto receiving = receive(1, 0, first);
  const auto sending = send(0, 1, data);
  EXPECT_TRUE(members_[1].world->cancel(*receiving));
  EXPECT_EQ(receiving->state, State::kCancelled);
  EXPECT_FALSE(members_[1].world->cancel(*receiving));
  std::ranges::fill(first, std::byte{0});
  Data second(data.size());
  EXPECT_EQ(state_of(1, receive(1, 0, second)), State::kDone);
  EXPECT_EQ(second, data);
  EXPECT_EQ(first, Data(data.size()));
  EXPECT_EQ(state_of(0, sending), State::kDone);
}

TEST_P(Worlds, AnEventLoopHearsOfWhatHasEnded) {
  meet(2);
  auto doorbell = Doorbell::open();
  ASSERT_TRUE(doorbell);
  const auto completions = std::make_shared<Completions>(std::move(*doorbell));
  Data got(10);
  const auto receiving = receive(1, 0, got);
  ASSERT_NE(receiving, nullptr);
  EXPECT_TRUE(members_[1].world->notify(*receiving, completions, 42));
  EXPECT_EQ(state_of(0, send(0, 1, pattern(10, 1))), State::kDone);
  pollfd ended{completions->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ended, 1, 10'000), 1);
  EXPECT_EQ(completions->take(), std::vector<std::uint64_t>{42});
  EXPECT_EQ(::poll(&ended, 1, 0), 0);
  EXPECT_FALSE(members_[1].world->notify(*receiving, completions, 43));
}

TEST_P(Worlds, RanksThatAreNotThereAreTheCallersMistake) {
  meet(2);
  Data got(1);
  for (const std::uint32_t rank : {0U, 2U}) {
    EXPECT_FALSE(members_[0].world->send(Rank{rank}, content_of(got), got));
  }
  EXPECT_FALSE(members_[0].world->add_edge(Rank{1}, pipe_of(unix_sockets().first)));
}

// One member, and the other ends of its connections in the test's hands.
class Watched : public testing::Test {
 protected:
  Watched() {
    auto data = unix_sockets();
    auto watch = unix_sockets();
    data_ = std::move(data.second);
    watch_ = std::move(watch.second);
    self_.world = *self_.port->open_world("w", 1, Rank{0}, 2);
    number_ = *self_.port->watch(Stream(std::move(watch.first)));
    EXPECT_TRUE(self_.world->add_edge(Rank{1}, pipe_of(std::move(data.first))));
    self_.port->add_dependent(self_.world, Rank{1}, number_);
    auto receiving = self_.world->receive(Rank{1}, {MatchKey{0}, 0, "uint8", got_});
    receiving_ = *receiving;
  }

  End end() {
    EXPECT_TRUE(self_.world->wait(*receiving_, kLong));
    EXPECT_EQ(receiving_->state, State::kBroken);
    return *self_.world->end();
  }

  Member self_;
  Data got_ = Data(10);
  UniqueFd data_;
  UniqueFd watch_;
  WatchId number_;
  OperationHandle receiving_;
};

TEST_F(Watched, TheEndOfTheWatchIsADeath) {
  watch_.reset();
  EXPECT_EQ(end().cause, Cause::kPeerDied);
}

TEST_F(Watched, TheEndOfTheDataIsADeath) {
  data_.reset();
  EXPECT_EQ(end().cause, Cause::kPeerDied);
}

TEST_F(Watched, AWatchThatHasEndedBreaksWhatDependsOnItLater) {
  watch_.reset();
  EXPECT_EQ(end().cause, Cause::kPeerDied);
  auto later = *self_.port->open_world("later", 1, Rank{0}, 2);
  auto data = unix_sockets();
  ASSERT_TRUE(later->add_edge(Rank{1}, pipe_of(std::move(data.first))));
  self_.port->add_dependent(later, Rank{1}, number_);
  ASSERT_TRUE(later->end());
  EXPECT_EQ(later->end()->cause, Cause::kPeerDied);
}

// A forked child has a copy of each descriptor, and closes none of them.
TEST(Closing, TheEndOfAClosedOneReachesAPeerThatReadsLateWhoeverHoldsItsDescriptors) {
  Member self;
  auto data = unix_sockets();
  const UniqueFd of_child(::dup(data.first.value()));
  self.world = *self.port->open_world("w", 1, Rank{0}, 2);
  ASSERT_TRUE(self.world->add_edge(Rank{1}, pipe_of(std::move(data.first))));
  const Data sent = pattern(EdgeLimits{}.window_bytes, 1);  // more than the socket takes
  ASSERT_TRUE(self.world->send(Rank{1}, content_of(sent), sent));
  self.world->close();
  const timeval limit{10, 0};
  ASSERT_EQ(::setsockopt(data.second.value(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  Data got(1_MiB);
  ssize_t count = 1;
  while (count > 0) count = ::recv(data.second.value(), got.data(), got.size(), 0);
  EXPECT_EQ(count, 0) << "it was told of no end";
}

TEST_F(Watched, NonsenseEndsTheWorldAlone) {
  const std::string nonsense(100, 'x');
  ASSERT_EQ(::send(data_.value(), nonsense.data(), nonsense.size(), 0), 100);
  EXPECT_EQ(end().cause, Cause::kProtocol);
}

TEST_F(Watched, GoodbyeOnTheWatchIsNoDeath) {
  self_.port->forget(number_);
  watch_.reset();
  EXPECT_FALSE(self_.world->wait(*receiving_, 300_ms));
  EXPECT_FALSE(self_.world->end());
}

TEST(FakeWorlds, EachFaultIsToldByItsCause) {
  for (const auto& [code, cause] :
       {std::pair(Code::kPeerLost, Cause::kPeerDied), std::pair(Code::kTimeout, Cause::kFrozen),
        std::pair(Code::kSystem, Cause::kUnreachable)}) {
    Member self;
    auto wire = FakeWire::open();
    ASSERT_TRUE(wire);
    self.world = *self.port->open_world("w", 1, Rank{0}, 2);
    FakePipe other(*wire, FakeSide::kSecond);
    ASSERT_TRUE(self.world->add_edge(Rank{1}, std::make_unique<FakePipe>(*wire, FakeSide::kFirst)));
    Data got(10);
    auto receiving = self.world->receive(Rank{1}, {MatchKey{0}, 0, "uint8", got});
    ASSERT_TRUE(receiving);
    (*wire)->end(FakeSide::kFirst, code);
    EXPECT_TRUE(self.world->wait(**receiving, kLong));
    EXPECT_EQ(self.world->end()->cause, cause);
  }
}

}  // namespace
}  // namespace hoplite::worlds
