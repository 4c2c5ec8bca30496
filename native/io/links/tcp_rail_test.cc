// SPDX-License-Identifier: Apache-2.0
// A bulk connection's ends on loopback, without the links around them.
#include "io/links/tcp_rail.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "base/must_test.h"
#include "io/sockets/tcp_socket.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

constexpr std::uint32_t kBlock = 1024 * 1024;
constexpr std::uint64_t kShared = 300'000;
constexpr NodeId kFirst{2}, kSecond{3};

std::array<UniqueFd, 2> connect() {
  UniqueFd listener = must(listen_on(must(parse_address("127.0.0.1:0"))));
  Dial dialled = dial(must(local_address(listener.value())), must(parse_address("127.0.0.1:0")));
  pollfd ready{listener.value(), POLLIN, 0};
  HOPLITE_CHECK(::poll(&ready, 1, 5000) == 1);
  UniqueFd accepted(::accept4(listener.value(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  HOPLITE_CHECK(accepted.is_open());
  return {std::move(dialled.fd), std::move(accepted)};
}

OpenReceive receive_of(NodeId from, std::uint32_t transfer) {
  OpenReceive receive;
  receive.transfer = TransferId{transfer};
  receive.from = from;
  receive.object.bytes.fill(9);
  receive.incarnation = Incarnation{1};
  receive.meta.size_bytes = kBlock;
  receive.meta.block_bytes = kBlock;
  receive.base = {kBlock, kBlock};
  return receive;
}

// Blocks from the first sender, while others may be allowed to send as well.
class TcpRail : public ::testing::Test {
 protected:
  void pass_blocks(int count) {
    BlockHeader header;
    header.transfer = TransferId{1};
    header.object.bytes.fill(9);
    header.incarnation = Incarnation{1};
    header.size_bytes = kBlock;
    for (int i = 0; i < count; ++i) out_.queue_block({NodeId{1}, RailId{0}, header, {0, kBlock}});
    std::vector<IoEvent> events;
    const std::uint64_t until = counters_.blocks_landed + static_cast<std::uint64_t>(count);
    while (counters_.blocks_landed < until) {
      Budget budget{kBlock};
      ASSERT_TRUE(out_.send(NodeId{1}, budget, events));
      budget.bytes = kBlock;
      ASSERT_TRUE(in_.receive_blocks(kFirst, budget, events));
    }
  }
  [[nodiscard]] std::uint64_t window() const {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(in_.fd(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &value, &size), 0);
    return static_cast<std::uint64_t>(value);
  }

  Arena arena_{must(Arena::open(4_MiB))};
  SharedReceives receives_{arena_.size_bytes()};
  LinkCounters counters_;
  std::array<UniqueFd, 2> ends_{connect()};
  RailPlace place_{&arena_, &receives_, kShared, &counters_};
  RailConnection out_{std::move(ends_[0]), place_};
  RailConnection in_{std::move(ends_[1]), place_};
};

TEST_F(TcpRail, SeveralSendersShareWhatMayBeOnTheWire) {
  receives_.open(receive_of(kFirst, 1));
  pass_blocks(1);
  receives_.open(receive_of(kSecond, 1));
  receives_.open(receive_of(kSecond, 2));  // of a sender that is there already
  pass_blocks(1);
  EXPECT_EQ(window(), kShared / 2);
  receives_.open(receive_of(NodeId{4}, 1));
  pass_blocks(1);
  EXPECT_EQ(window(), kShared / 3);
}

TEST_F(TcpRail, ASingleSenderHasAsMuchAsTheKernelGivesIt) {
  receives_.open(receive_of(kFirst, 1));
  receives_.open(receive_of(kSecond, 1));
  pass_blocks(1);
  EXPECT_EQ(window(), kShared / 2);
  EXPECT_TRUE(receives_.close(kSecond, TransferId{1}));
  pass_blocks(64);
  EXPECT_GT(window(), kShared);
}

TEST_F(TcpRail, TheKernelsLargerBufferDoesNotEndTheSharing) {
  receives_.open(receive_of(kFirst, 1));
  receives_.open(receive_of(kSecond, 1));
  const auto buffer = [this] {
    int value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(in_.fd(), SOL_SOCKET, SO_RCVBUF, &value, &size), 0);
    return value;
  };
  const int before = buffer();
  pass_blocks(64);
  EXPECT_GT(buffer(), before);
  EXPECT_EQ(window(), kShared / 2);
}

TEST_F(TcpRail, NoSendersShareIsSmallerThanAStreamNeeds) {
  for (std::uint64_t node = kFirst.value; node < 40; ++node) {
    receives_.open(receive_of(NodeId{node}, 1));
  }
  pass_blocks(1);
  EXPECT_EQ(window(), kWindowBytesMin);
}

// Bytes as they are on the wire, sent to the receiving end in arbitrary pieces.
class TcpRailPieces : public TcpRail {
 protected:
  static Bytes block_of(std::uint32_t size_bytes, std::uint64_t offset) {
    Bytes payload(size_bytes);
    for (std::size_t i = 0; i < size_bytes; ++i) {
      payload[i] = static_cast<std::byte>((offset + i) % 251);
    }
    BlockHeader header;
    header.transfer = TransferId{1};
    header.object.bytes.fill(9);
    header.incarnation = Incarnation{1};
    header.offset = offset;
    header.size_bytes = size_bytes;
    header.crc32c = crc32c(payload);
    const auto head = encode(header);
    Bytes bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }
  void send_bytes(std::span<const std::byte> bytes) const {
    ASSERT_EQ(::send(out_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  [[nodiscard]] bool is_readable(int timeout_ms) const {
    pollfd asked{in_.fd(), POLLIN, 0};
    return ::poll(&asked, 1, timeout_ms) == 1;
  }
  // Receives once more, when the socket is readable.
  [[nodiscard]] Result<void> receive_blocks() {
    EXPECT_TRUE(is_readable(5000));
    Budget budget{kBlock};
    return in_.receive_blocks(kFirst, budget, landed_);
  }
  void expect_landed(std::size_t blocks, std::uint64_t bytes) const {
    EXPECT_EQ(landed_.size(), blocks);
    const auto into = arena_.at({kBlock, bytes});
    for (std::size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(into[i], static_cast<std::byte>(i % 251)) << i;
    }
  }
  std::vector<IoEvent> landed_;
};

TEST_F(TcpRailPieces, BlocksLandWhereverTheyAreCut) {
  constexpr std::uint32_t kSmall = 64;
  OpenReceive receive = receive_of(kFirst, 1);
  receive.meta.block_bytes = kSmall;
  receives_.open(receive);
  Bytes two = block_of(kSmall, 0);
  const Bytes second = block_of(kSmall, kSmall);
  two.insert(two.end(), second.begin(), second.end());
  for (std::size_t first = 1; first < two.size(); ++first) {
    for (std::size_t then = first + 1; then <= two.size(); then += 7) {
      landed_.clear();
      std::fill_n(arena_.at({kBlock, 2 * kSmall}).data(), 2 * kSmall, std::byte{});
      const auto bytes = std::span<const std::byte>(two);
      for (const auto piece :
           {bytes.first(first), bytes.subspan(first, then - first), bytes.subspan(then)}) {
        if (piece.empty()) continue;
        send_bytes(piece);
        ASSERT_TRUE(receive_blocks());
      }
      while (landed_.size() < 2) ASSERT_TRUE(receive_blocks());
      expect_landed(2, 2 * kSmall);
    }
  }
}

TEST_F(TcpRailPieces, NobodyIsWokenForAPartOfALargeBlock) {
  constexpr std::uint32_t kLarge = 60'000;
  OpenReceive receive = receive_of(kFirst, 1);
  receive.meta.block_bytes = kLarge;
  receives_.open(receive);
  const Bytes block = block_of(kLarge, 0);
  const auto bytes = std::span<const std::byte>(block);
  send_bytes(bytes.first(100));
  ASSERT_TRUE(receive_blocks());
  send_bytes(bytes.subspan(100, 30'000));
  EXPECT_FALSE(is_readable(0));
  send_bytes(bytes.subspan(30'100));
  while (landed_.empty()) ASSERT_TRUE(receive_blocks());
  expect_landed(1, kLarge);
  send_bytes(block_of(kLarge, kLarge));  // and for the next one's head at once
  while (landed_.size() < 2) ASSERT_TRUE(receive_blocks());
  expect_landed(2, 2 * kLarge);
}

TEST_F(TcpRailPieces, TheEndOfTheStreamIsSeenInTheMiddleOfABlock) {
  receives_.open(receive_of(kFirst, 1));
  const Bytes block = block_of(kBlock, 0);
  send_bytes(std::span(block).first(100));
  ASSERT_TRUE(receive_blocks());
  send_bytes(std::span(block).subspan(100, 1000));
  ASSERT_EQ(::shutdown(out_.fd(), SHUT_WR), 0);
  Result<void> heard = receive_blocks();
  while (heard) heard = receive_blocks();
  EXPECT_EQ(heard.error().code, Code::kPeerLost);
  EXPECT_TRUE(landed_.empty());
}

TEST_F(TcpRailPieces, AClosedWindowWakesWhoAwaitsMoreThanFitsIntoIt) {
  receives_.open(receive_of(kFirst, 1));
  const int little = 32 * 1024;  // less than is awaited
  ASSERT_EQ(::setsockopt(in_.fd(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little), 0);
  const Bytes block = block_of(kBlock, 0);
  std::size_t said = 0;
  while (landed_.empty()) {
    const auto left = std::span(block).subspan(said);
    const ssize_t sent = ::send(out_.fd(), left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) said += static_cast<std::size_t>(sent);
    ASSERT_TRUE(receive_blocks());
  }
  expect_landed(1, kBlock);
}

TEST_F(TcpRailPieces, FramesComeWholeWhereverTheyAreCut) {
  const std::array<std::size_t, 3> payloads{3, kInlineBytesMax, 0};  // more than is read ahead
  Bytes stream;
  for (const std::size_t size : payloads) {
    Message push;
    push.body = Push{};
    encode(push, size, stream);
    stream.insert(stream.end(), size, std::byte{7});
  }
  for (std::size_t cut = 1; cut < stream.size(); cut += cut < 400 ? 1 : 9'007) {
    std::vector<FrameIn> frames;
    std::size_t said = 0;
    while (frames.size() < payloads.size()) {
      const std::size_t end = said < cut ? cut : stream.size();
      const ssize_t sent =
          ::send(out_.fd(), stream.data() + said, end - said, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) said += static_cast<std::size_t>(sent);
      ASSERT_TRUE(is_readable(5000));
      Budget budget{kBlock};
      ASSERT_TRUE(in_.receive_frames(ReadAhead::kAllowed, budget, frames));
    }
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      EXPECT_EQ(frames[i].payload, Bytes(payloads[i], std::byte{7}));
    }
  }
}

// With one byte of a turn's budget left, a call of send() is one of the kernel.
TEST_F(TcpRail, SmallBlocksLeaveTogetherAndWholeWhereverTheSocketIsFull) {
  constexpr std::uint32_t kSmall = 8 * 1024;
  constexpr std::uint32_t kCount = kBlock / kSmall;
  OpenReceive receive = receive_of(kFirst, 1);
  receive.meta.block_bytes = kSmall;
  receives_.open(receive);
  const auto sent_from = arena_.at({0, kBlock});
  for (std::size_t i = 0; i < kBlock; ++i) sent_from[i] = static_cast<std::byte>(i / 7 % 251);
  const int little = 48 * 1024;  // so that it is full in the middle of blocks and of their heads
  ASSERT_EQ(::setsockopt(out_.fd(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little), 0);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    BlockHeader header;
    header.transfer = TransferId{1};
    header.object.bytes.fill(9);
    header.incarnation = Incarnation{1};
    header.offset = std::uint64_t{i} * kSmall;
    header.size_bytes = kSmall;
    out_.queue_block({NodeId{1}, RailId{0}, header, {header.offset, kSmall}});
  }
  std::vector<IoEvent> sent;
  std::vector<IoEvent> landed;
  std::size_t most_at_once = 0;
  while (counters_.blocks_landed < kCount) {
    const std::size_t before = sent.size();
    Budget budget{1};
    ASSERT_TRUE(out_.send(NodeId{1}, budget, sent));
    most_at_once = std::max(most_at_once, sent.size() - before);
    budget.bytes = 1;
    ASSERT_TRUE(in_.receive_blocks(kFirst, budget, landed));
  }
  EXPECT_GT(most_at_once, 1U);
  EXPECT_EQ(sent.size(), kCount);
  EXPECT_EQ(out_.queued_bytes(), 0U);
  ASSERT_EQ(landed.size(), kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(std::get<BlockLanded>(landed[i]).block, BlockIndex{i});
  }
  const auto into = arena_.at({kBlock, kBlock});
  EXPECT_TRUE(std::equal(into.begin(), into.end(), sent_from.begin()));
}

}  // namespace
}  // namespace hoplite
