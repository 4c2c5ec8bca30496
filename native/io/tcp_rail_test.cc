// A bulk connection's ends on loopback, without the links around them.
// SPDX-License-Identifier: Apache-2.0
#include "io/tcp_rail.h"

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
#include "io/tcp_socket.h"

namespace hoplite {
namespace {

constexpr std::uint32_t kBlock = 1024 * 1024;
constexpr std::uint64_t kShared = 300'000;
constexpr NodeId kFirst{2}, kSecond{3};

template <typename T>
T must(Result<T> result) {
  HOPLITE_CHECK(result.has_value());
  return std::move(*result);
}

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

// What comes in from the first sender, while others may be allowed to send as well.
class TcpRail : public ::testing::Test {
 protected:
  void pass_blocks(int count) {
    BlockHeader header;
    header.transfer = TransferId{1};
    header.object.bytes.fill(9);
    header.incarnation = Incarnation{1};
    header.size_bytes = kBlock;
    for (int i = 0; i < count; ++i) out_.queue_block(RailId{0}, header, {0, kBlock});
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
  ReceiveTable receives_{arena_.size_bytes()};
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
  receives_.close(kSecond, TransferId{1});
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
    out_.queue_block(RailId{0}, header, {header.offset, kSmall});
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
