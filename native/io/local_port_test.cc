// SPDX-License-Identifier: Apache-2.0
// The clients' socket from a client's side, with real sockets and bytes as they lie on the wire.
#include "io/local_port.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/must_test.h"

namespace hoplite {
namespace {

class LocalPortTest : public ::testing::Test {
 protected:
  LocalPortTest() : poller_(must(Poller::open())), arena_(must(Arena::open(1_MiB))) {
    char path[] = "/tmp/hoplite-test-XXXXXX";
    HOPLITE_CHECK(::mkdtemp(path) != nullptr);
    directory_ = path;
    path_ = directory_ + "/node.sock";
  }
  ~LocalPortTest() override {
    port_.reset();
    ::rmdir(directory_.c_str());
  }

  void open(LocalLimits limits = {}) {
    port_.emplace(
        must(LocalPort::open(path_, NodeId{7}, Incarnation{2}, limits, poller_, arena_, 1)));
  }
  void turn() {
    for (const Ready& ready : poller_.wait(1_ms)) port_->handle_ready(ready);
    port_->flush();
  }
  UniqueFd connect() {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size());
    HOPLITE_CHECK(::connect(fd.value(), reinterpret_cast<sockaddr*>(&address), sizeof address) ==
                  0);
    return fd;
  }
  static void send_bytes(const UniqueFd& fd, const Bytes& bytes) {
    HOPLITE_CHECK(::send(fd.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                  static_cast<ssize_t>(bytes.size()));
  }
  // Everything that has come, with the descriptors beside it.
  Bytes receive_bytes(const UniqueFd& fd, std::vector<UniqueFd>* descriptors = nullptr) {
    Bytes all;
    for (int i = 0; i < 20; ++i) {
      turn();
      Bytes bytes(1 << 20);
      iovec part{bytes.data(), bytes.size()};
      alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t got = ::recvmsg(fd.value(), &message, MSG_DONTWAIT);
      if (got <= 0) continue;
      all.insert(all.end(), bytes.begin(), bytes.begin() + got);
      const cmsghdr* rights = CMSG_FIRSTHDR(&message);
      if (rights == nullptr || descriptors == nullptr) continue;
      for (std::size_t k = 0; k < (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++k) {
        int passed = -1;
        std::memcpy(&passed, CMSG_DATA(rights) + k * sizeof passed, sizeof passed);
        descriptors->emplace_back(passed);
      }
    }
    return all;
  }
  bool is_closed(const UniqueFd& fd) {
    for (int i = 0; i < 1000; ++i) {
      turn();
      std::array<char, 4096> bytes{};
      const ssize_t got = ::recv(fd.value(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    }
    return false;
  }
  UniqueFd attach() {
    UniqueFd fd = connect();
    Bytes bytes;
    encode(Attach{}, bytes);
    send_bytes(fd, bytes);
    EXPECT_FALSE(receive_bytes(fd).empty());
    return fd;
  }
  static Bytes command(std::uint64_t request, CommandBody body) {
    Bytes bytes;
    encode(Command{ClientId{0}, RequestId{request}, std::move(body)}, bytes);
    return bytes;
  }
  static Fetched small(std::uint64_t size_bytes) {
    Fetched fetched;
    fetched.meta.size_bytes = size_bytes;
    fetched.meta.parts = {{DType::kOpaque, size_bytes}};
    fetched.extent = {0, size_bytes};
    return fetched;
  }
  std::vector<Command> commands(std::size_t count) {
    std::vector<Command> all;
    for (int i = 0; i < 1000 && all.size() < count; ++i) {
      turn();
      for (Command& each : port_->take_commands(100)) all.push_back(std::move(each));
    }
    return all;
  }
  void expect_lost(ClientId client) {  // and nothing else is said of it
    const auto taken = commands(1);
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_TRUE(std::holds_alternative<ClientLostCommand>(taken[0].body));
    EXPECT_EQ(taken[0].client, client);
  }
  static LocalReply decode(const Bytes& bytes) {
    const LocalHeader header = must(decode_local_header(bytes));
    const LocalFrame frame = must(
        decode_local_body(header, std::span(bytes).subspan(kLocalHeaderBytes, header.body_bytes)));
    return std::get<LocalReply>(frame);
  }

  std::string directory_;
  std::string path_;
  Poller poller_;
  Arena arena_;
  std::optional<LocalPort> port_;
};

TEST_F(LocalPortTest, AttachingGivesTheWritableAndTheReadOnlyDescriptor) {
  open();
  const UniqueFd fd = connect();
  Bytes bytes;
  encode(Attach{}, bytes);
  send_bytes(fd, bytes);
  std::vector<UniqueFd> descriptors;
  const Bytes answer = receive_bytes(fd, &descriptors);
  const LocalHeader header = must(decode_local_header(answer));
  const LocalFrame frame = must(
      decode_local_body(header, std::span(answer).subspan(kLocalHeaderBytes, header.body_bytes)));
  const auto& attached = std::get<Attached>(frame);
  EXPECT_EQ(attached.node, NodeId{7});
  EXPECT_EQ(attached.incarnation, Incarnation{2});
  EXPECT_EQ(attached.arena_bytes, 1_MiB);
  ASSERT_EQ(descriptors.size(), 2U);
  EXPECT_EQ(::pwrite(descriptors[0].value(), "x", 1, 10), 1);
  EXPECT_EQ(arena_.at({10, 1})[0], static_cast<std::byte>('x'));
  EXPECT_EQ(::pwrite(descriptors[1].value(), "x", 1, 10), -1);
}

TEST_F(LocalPortTest, CommandsComeInOrderAndWithTheirPayload) {
  open();
  const UniqueFd fd = attach();
  Bytes bytes = command(1, GetCommand{});
  PutCommand put;
  put.meta.size_bytes = 5;
  put.meta.parts = {{DType::kOpaque, put.meta.size_bytes}};
  put.payload = Bytes(5, std::byte{3});
  const Bytes second = command(2, put);
  bytes.insert(bytes.end(), second.begin(), second.end());
  bytes.insert(bytes.end(), put.payload.begin(), put.payload.end());
  for (std::size_t i = 0; i < bytes.size(); ++i) {  // byte by byte: frames come in parts
    send_bytes(fd, Bytes(1, bytes[i]));
    turn();
  }
  const auto taken = commands(2);
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].request, RequestId{1});
  EXPECT_EQ(taken[0].client, taken[1].client);
  EXPECT_EQ(std::get<PutCommand>(taken[1].body).payload, put.payload);
}

TEST_F(LocalPortTest, ASmallObjectGoesBackWithItsBytes) {
  open();
  const UniqueFd fd = attach();
  send_bytes(fd, command(4, GetCommand{}));
  const auto taken = commands(1);
  ASSERT_EQ(taken.size(), 1U);
  const auto bytes = arena_.at({64, 100});
  std::fill(bytes.begin(), bytes.end(), std::byte{8});
  Fetched fetched;
  fetched.meta.size_bytes = 100;
  fetched.meta.parts = {{DType::kOpaque, fetched.meta.size_bytes}};
  fetched.extent = {64, 100};
  port_->reply({taken[0].client, taken[0].request, fetched});
  const Bytes answer = receive_bytes(fd);
  EXPECT_EQ(decode(answer).request, RequestId{4});
  ASSERT_GE(answer.size(), 100U);
  EXPECT_EQ(Bytes(answer.end() - 100, answer.end()), Bytes(100, std::byte{8}));
}

TEST_F(LocalPortTest, AClientsEndIsACommand) {
  open();
  UniqueFd fd = attach();
  send_bytes(fd, command(1, GetCommand{}));
  fd.reset();
  const auto taken = commands(2);
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<ClientLostCommand>(taken[1].body));
  EXPECT_EQ(taken[1].client, taken[0].client);
  port_->reply({taken[0].client, RequestId{1}, Done{}});  // the client has gone
  EXPECT_EQ(port_->counters().clients, 0U);
}

TEST_F(LocalPortTest, HostileBytesCloseTheConnectionOnly) {
  open();
  const UniqueFd good = attach();
  UniqueFd bad = connect();
  send_bytes(bad, Bytes(100, std::byte{0xee}));
  EXPECT_TRUE(is_closed(bad));
  bad = connect();  // a command before Attach
  send_bytes(bad, command(1, GetCommand{}));
  EXPECT_TRUE(is_closed(bad));
  bad = connect();  // Attach twice
  Bytes attach_frame;
  encode(Attach{}, attach_frame);
  send_bytes(bad, attach_frame);
  send_bytes(bad, attach_frame);
  EXPECT_TRUE(is_closed(bad));
  EXPECT_EQ(port_->counters().frames_bad, 3U);
  EXPECT_EQ(port_->counters().clients, 1U);
}

TEST_F(LocalPortTest, AClientThatDoesNotReadIsNotListenedToUntilItDoes) {
  open({.clients_max = 8, .listen_below_bytes = 1000, .untaken_bytes_max = 64_MiB});
  const UniqueFd fd = attach();
  send_bytes(fd, command(1, GetCommand{}));
  const ClientId client = commands(1).at(0).client;
  Fetched fetched;
  fetched.meta.size_bytes = 60'000;
  fetched.meta.parts = {{DType::kOpaque, fetched.meta.size_bytes}};
  fetched.extent = {0, 60'000};
  for (int i = 0; i < 20; ++i) port_->reply({client, RequestId{1}, fetched});
  for (int i = 0; i < 20; ++i) turn();
  send_bytes(fd, command(2, GetCommand{}));
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_FALSE(port_->has_commands());
  std::size_t heard = 0;
  for (int i = 0; i < 50 && heard < std::size_t{20} * 60'000; ++i)
    heard += receive_bytes(fd).size();
  EXPECT_EQ(commands(1).size(), 1U);
}

TEST_F(LocalPortTest, WhatTheSocketHasNotTakenYetIsAsItWasWhenItWasReplied) {
  open();
  const UniqueFd fd = attach();
  send_bytes(fd, command(1, GetCommand{}));
  const ClientId client = commands(1).at(0).client;
  Fetched fetched;
  fetched.meta.size_bytes = 64_KiB;
  fetched.meta.parts = {{DType::kOpaque, fetched.meta.size_bytes}};
  fetched.extent = {0, 64_KiB};
  constexpr std::size_t kReplies = 20;  // more than a socket takes
  const auto range = arena_.at(fetched.extent);
  for (std::size_t i = 0; i < kReplies; ++i) {
    std::fill(range.begin(), range.end(), static_cast<std::byte>(i));
    port_->reply({client, RequestId{i}, fetched});
  }
  std::fill(range.begin(), range.end(), std::byte{99});
  const Bytes heard = receive_bytes(fd);
  const std::size_t whole = heard.size() / kReplies;
  ASSERT_EQ(heard.size(), kReplies * whole);
  for (std::size_t i = 0; i < kReplies; ++i) {
    const auto frame = std::span(heard).subspan(i * whole, whole);
    EXPECT_EQ(decode(Bytes(frame.begin(), frame.end())).request, RequestId{i});
    const auto payload = frame.last(64_KiB);
    EXPECT_TRUE(std::all_of(payload.begin(), payload.end(), [&](std::byte each) {
      return each == static_cast<std::byte>(i);
    })) << i;
  }
}

TEST_F(LocalPortTest, GetsThatCameAtOnceAreTakenAsTheirClientReadsTheAnswers) {
  open({.clients_max = 8, .listen_below_bytes = 1000, .untaken_bytes_max = 500'000});
  const UniqueFd fd = attach();
  constexpr std::size_t kGets = 100;
  constexpr std::size_t kPerTurn = 4;
  Bytes gets;
  for (std::size_t i = 0; i < kGets; ++i) {
    const Bytes get = command(i, GetCommand{});
    gets.insert(gets.end(), get.begin(), get.end());
  }
  send_bytes(fd, gets);
  std::vector<RequestId> answered;
  const auto answer = [&] {
    turn();
    for (const Command& each : port_->take_commands(kPerTurn)) {
      answered.push_back(each.request);
      port_->reply({each.client, each.request, small(60'000)});
    }
    port_->flush();
  };
  for (std::size_t i = 0; i < kGets; ++i) answer();
  EXPECT_LT(answered.size(), kGets / 2);
  EXPECT_FALSE(port_->has_commands());  // a node that has nothing else to do sleeps
  EXPECT_EQ(port_->counters().clients, 1U);
  std::size_t heard = 0;
  for (std::size_t i = 0; i < kGets && heard < kGets * 60'000; ++i) {
    answer();
    heard += receive_bytes(fd).size();
  }
  EXPECT_GT(heard, kGets * 60'000);
  ASSERT_EQ(answered.size(), kGets);
  for (std::size_t i = 0; i < kGets; ++i) EXPECT_EQ(answered[i], RequestId{i});
}

TEST_F(LocalPortTest, AClientThatReadsIsNotCutOffHoweverMuchIsAnsweredAtOnce) {
  open({.clients_max = 8, .listen_below_bytes = 1000, .untaken_bytes_max = 500'000});
  const UniqueFd fd = attach();
  send_bytes(fd, command(1, GetCommand{}));
  const ClientId client = commands(1).at(0).client;
  std::size_t heard = 0;
  Bytes bytes(1 << 20);
  for (int i = 0; i < 20; ++i) {  // each time more comes than goes
    for (int k = 0; k < 8; ++k) port_->reply({client, RequestId{1}, small(60'000)});
    port_->flush();
    const ssize_t got = ::recv(fd.value(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    ASSERT_GT(got, 0);
    heard += static_cast<std::size_t>(got);
    turn();
  }
  for (int i = 0; i < 50 && heard < std::size_t{160} * 60'000; ++i)
    heard += receive_bytes(fd).size();
  EXPECT_GT(heard, std::size_t{160} * 60'000);
  EXPECT_EQ(port_->counters().clients, 1U);
}

TEST_F(LocalPortTest, AClientThatNeverReadsIsCutOffAndKeepsItsClaimsUntilItHasClosed) {
  open({.clients_max = 8, .listen_below_bytes = 1000, .untaken_bytes_max = 500'000});
  UniqueFd fd = attach();
  send_bytes(fd, command(1, GetCommand{}));
  const ClientId client = commands(1).at(0).client;
  for (int i = 0; i < 40; ++i) port_->reply({client, RequestId{1}, small(60'000)});
  port_->flush();
  EXPECT_EQ(port_->counters().clients, 0U);
  EXPECT_EQ(port_->counters().clients_lost, 1U);
  EXPECT_TRUE(is_closed(fd));
  port_->reply({client, RequestId{1}, Done{}});  // is not for it any more
  send_bytes(fd, command(2, ReleaseCommand{}));
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_FALSE(port_->has_commands());
  fd.reset();
  expect_lost(client);
  EXPECT_EQ(port_->counters().clients_lost, 1U);
}

TEST_F(LocalPortTest, ABadFrameEndsNoClaimsOfAClientThatLivesOn) {
  open();
  UniqueFd fd = attach();
  send_bytes(fd, command(1, GetCommand{}));
  const ClientId client = commands(1).at(0).client;
  send_bytes(fd, Bytes(100, std::byte{0xee}));
  EXPECT_TRUE(is_closed(fd));
  EXPECT_FALSE(port_->has_commands());
  fd.reset();
  expect_lost(client);
}

TEST_F(LocalPortTest, WhatAClientSaidBeforeItsEndIsStillTaken) {
  open({.clients_max = 8, .listen_below_bytes = 1000, .untaken_bytes_max = 64_MiB});
  UniqueFd fd = attach();
  Bytes both = command(1, GetCommand{});
  const Bytes second = command(2, DeleteCommand{});
  both.insert(both.end(), second.begin(), second.end());
  send_bytes(fd, both);
  turn();
  const auto first = port_->take_commands(1);
  ASSERT_EQ(first.size(), 1U);
  for (int i = 0; i < 20; ++i) port_->reply({first[0].client, RequestId{1}, small(60'000)});
  turn();
  turn();
  EXPECT_TRUE(port_->take_commands(1).empty());  // held back
  fd.reset();
  const auto rest = commands(2);
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest[0].request, RequestId{2});
  EXPECT_TRUE(std::holds_alternative<ClientLostCommand>(rest[1].body));
}

TEST_F(LocalPortTest, ClientsAreTakenInTurnHoweverMuchOneOfThemSays) {
  open();
  const UniqueFd loud = attach();
  const UniqueFd quiet = attach();
  Bytes flood;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const Bytes release = command(0, ReleaseCommand{});
    flood.insert(flood.end(), release.begin(), release.end());
  }
  send_bytes(loud, flood);
  send_bytes(quiet, command(9, GetCommand{}));
  turn();
  const auto taken = port_->take_commands(256);
  EXPECT_EQ(taken.size(), 256U);
  EXPECT_EQ(std::count_if(taken.begin(), taken.end(),
                          [](const Command& each) { return each.request == RequestId{9}; }),
            1);
}

TEST_F(LocalPortTest, ThereIsALimitOfClients) {
  open({.clients_max = 1});
  const UniqueFd first = attach();
  EXPECT_TRUE(is_closed(connect()));
  EXPECT_EQ(port_->counters().clients_refused, 1U);
}

TEST_F(LocalPortTest, TheDirectoryMustBePrivate) {
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  auto opened = LocalPort::open(path_, NodeId{1}, Incarnation{1}, {}, poller_, arena_, 1);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().text.find("0700"), std::string::npos);
}

TEST_F(LocalPortTest, AMissingDirectoryIsMadePrivate) {
  const std::string inner = directory_ + "/inner";
  {
    auto opened = LocalPort::open(inner + "/s", NodeId{1}, Incarnation{1}, {}, poller_, arena_, 1);
    ASSERT_TRUE(opened);
    struct stat status{};
    ASSERT_EQ(::stat(inner.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0700U);
  }
  EXPECT_EQ(::rmdir(inner.c_str()), 0);  // and its socket is gone
}

TEST_F(LocalPortTest, ADeadNodesSocketIsReplacedALiveOnesIsNot) {
  open();
  auto second = LocalPort::open(path_, NodeId{1}, Incarnation{1}, {}, poller_, arena_, 100);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().text.find("already"), std::string::npos);
  port_.reset();
  {
    UniqueFd left_behind(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size());
    ASSERT_EQ(::bind(left_behind.value(), reinterpret_cast<sockaddr*>(&address), sizeof address),
              0);
  }
  open();
  attach();
}

TEST_F(LocalPortTest, APathThatTheKernelCannotTakeIsNamed) {
  const std::string path = directory_ + "/" + std::string(120, 'x');
  auto opened = LocalPort::open(path, NodeId{1}, Incarnation{1}, {}, poller_, arena_, 1);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kInvalidArgument);
  EXPECT_NE(opened.error().text.find("107"), std::string::npos) << opened.error().text;
}

}  // namespace
}  // namespace hoplite
