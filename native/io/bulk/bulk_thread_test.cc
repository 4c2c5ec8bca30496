// SPDX-License-Identifier: Apache-2.0
// One thread, and a peer whose bytes are the test's: it stops amid a block and goes on.
#include "io/bulk/bulk_thread.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "base/check.h"
#include "base/must_test.h"
#include "io/sockets/tcp_socket.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

constexpr std::uint32_t kBlock = 256 * 1024;
constexpr NodeId kPeer{2};
constexpr TransferId kTransfer{5};
constexpr std::uint64_t kToken = 7;

std::array<UniqueFd, 2> connect() {
  UniqueFd listener = must(listen_on(must(parse_address("127.0.0.1:0"))));
  Dial dialled = dial(must(local_address(listener.value())), must(parse_address("127.0.0.1:0")));
  pollfd ready{listener.value(), POLLIN, 0};
  HOPLITE_CHECK(::poll(&ready, 1, 5000) == 1);
  UniqueFd accepted(::accept4(listener.value(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  HOPLITE_CHECK(accepted.is_open());
  return {std::move(dialled.fd), std::move(accepted)};
}

class BulkThreadTest : public ::testing::Test {
 protected:
  BulkThreadTest() {
    OpenReceive receive;
    receive.transfer = kTransfer;
    receive.from = kPeer;
    receive.object.bytes.fill(9);
    receive.incarnation = Incarnation{1};
    receive.meta.size_bytes = receive.meta.block_bytes = kBlock;
    receive.base = {kBlock, kBlock};
    receives_.open(receive);
    const RailPlace place{&arena_, &receives_, 1_MiB, &handshakes_};
    thread_->add({kToken, kPeer, RailId{0}, RailConnection(std::move(ends_[1]), place)});
    thread_->flush();
  }
  // The block on the wire: its head, then its payload.
  static Bytes block(std::uint32_t crc_change = 0) {
    const Bytes payload(kBlock, std::byte{42});
    BlockHeader header;
    header.transfer = kTransfer;
    header.object.bytes.fill(9);
    header.incarnation = Incarnation{1};
    header.size_bytes = kBlock;
    header.crc32c = crc32c(payload) ^ crc_change;
    const auto head = encode(header);
    Bytes bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }
  // Sends all of it, and returns once the thread has received it. Amid a block the kernel keeps the
  // last 64 KiB back, because the thread waits for more.
  void pass(std::span<const std::byte> bytes, std::uint64_t kept_back = 0) {
    const std::uint64_t wanted = thread_->counters().bytes_received + bytes.size() - kept_back;
    const auto has_received = [&] {
      const ssize_t sent =
          ::send(ends_[0].value(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) bytes = bytes.subspan(static_cast<std::size_t>(sent));
      return thread_->counters().bytes_received >= wanted;
    };
    ASSERT_TRUE(wait_for(has_received));
  }
  bool wait_for(const std::function<bool()>& done) {
    for (int i = 0; i < 5000 && !done(); ++i) {
      [[maybe_unused]] const auto woken = reactor_.wait(1_ms);
      news_.append(thread_->take_news());
    }
    return done();
  }
  [[nodiscard]] bool holds(std::byte value) const {
    const auto place = arena_.at({kBlock, kBlock});
    return std::ranges::all_of(place, [&](std::byte each) { return each == value; });
  }

  Arena arena_{must(Arena::open(4_MiB))};
  SharedReceives receives_{arena_.size_bytes()};
  LinkCounters handshakes_;
  std::array<UniqueFd, 2> ends_{connect()};
  Poller reactor_{must(Poller::open())};
  std::unique_ptr<BulkThread> thread_{
      std::make_unique<BulkThread>(LinkLimits{}, must(Poller::open()), reactor_)};
  BulkNews news_;
};

TEST_F(BulkThreadTest, ABlockLandsAndWakesTheReactor) {
  pass(block());
  ASSERT_TRUE(wait_for([&] { return news_.events.size() == 1; }));
  EXPECT_EQ(std::get<BlockLanded>(news_.events[0]).transfer, kTransfer);
  EXPECT_TRUE(holds(std::byte{42}));
  EXPECT_GE(news_.came_bytes, kBlock);
}

// The peer has stopped amid the block, so no read is under way.
TEST_F(BulkThreadTest, AClosedReceiveIsFreeAmidABlockAndItsRestIsDiscarded) {
  const Bytes bytes = block();
  const auto whole = std::span(bytes);
  pass(whole.first(kBlock / 2), 64_KiB);
  std::optional<bool> is_free;
  ASSERT_TRUE(wait_for([&] {
    if (!is_free) is_free = receives_.close(kPeer, kTransfer);
    return *is_free || !news_.events.empty();
  }));
  if (!*is_free) {
    ASSERT_EQ(news_.events.size(), 1U);
    EXPECT_EQ(std::get<ReceiveClosed>(news_.events[0]).transfer, kTransfer);
  }
  std::ranges::fill(arena_.at({kBlock, kBlock}), std::byte{1});
  pass(whole.subspan(kBlock / 2));
  EXPECT_TRUE(wait_for([&] { return thread_->counters().blocks_discarded == 1; }));
  EXPECT_TRUE(holds(std::byte{1}));
  EXPECT_EQ(news_.events.size(), *is_free ? 0U : 1U);
}

TEST_F(BulkThreadTest, AnEndIsFinalAmidABlock) {
  const Bytes bytes = block();
  pass(std::span(bytes).first(kBlock / 2), 64_KiB);
  thread_->end(kToken);
  std::ranges::fill(arena_.at({kBlock, kBlock}), std::byte{1});
  char byte = 0;
  ASSERT_TRUE(wait_for([&] { return ::recv(ends_[0].value(), &byte, 1, MSG_DONTWAIT) == 0; }));
  EXPECT_TRUE(holds(std::byte{1}));
  EXPECT_TRUE(news_.is_empty());
  thread_->queue_block(kToken, {kPeer, RailId{0}, {}, {0, kBlock}});  // void
  thread_->flush();
}

// Until then the peer can't see it, and the link's rules hear of it first.
TEST_F(BulkThreadTest, AFailedConnectionStaysOpenUntilItIsEnded) {
  pass(block(1));
  ASSERT_TRUE(wait_for([&] { return news_.ends.size() == 1; }));
  EXPECT_EQ(news_.ends[0].token, kToken);
  EXPECT_EQ(news_.ends[0].why.code, Code::kBadFrame);
  EXPECT_TRUE(news_.events.empty());
  char byte = 0;
  EXPECT_LT(::recv(ends_[0].value(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(errno, EAGAIN);
  thread_->end(kToken);
  EXPECT_EQ(thread_->counters().blocks_corrupt, 1U);
  EXPECT_TRUE(wait_for([&] { return ::recv(ends_[0].value(), &byte, 1, MSG_DONTWAIT) == 0; }));
}

TEST_F(BulkThreadTest, ItCountsWhatWaitsForTheKernel) {
  BlockHeader header;
  header.size_bytes = kBlock;
  for (std::uint64_t ticket = 1; ticket <= 64; ++ticket) {
    thread_->queue_block(kToken, {kPeer, RailId{0}, header, {0, kBlock}, BlockTicket{ticket}});
  }
  thread_->flush();
  ASSERT_TRUE(wait_for([&] { return thread_->counters().bytes_sent > 0; }));
  EXPECT_GT(thread_->counters().bytes_queued, 0U);
  EXPECT_LT(news_.events.size(), 64U);
  thread_->end(kToken);
  EXPECT_EQ(thread_->counters().bytes_queued, 0U);
}

}  // namespace
}  // namespace hoplite
