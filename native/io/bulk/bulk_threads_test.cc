// SPDX-License-Identifier: Apache-2.0
// Links whose blocks are moved by threads: blocks, closed receives, ends and lives.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "base/prng.h"
#include "io/links/links_test.h"

namespace hoplite {
namespace {

using Rails = std::vector<std::string>;

class BulkThreads : public LinkSides,
                    public ::testing::WithParamInterface<std::tuple<std::size_t, DataTls>> {
 protected:
  BulkThreads() : LinkSides(std::get<DataTls>(GetParam())) { use_threads(); }
  static void use_threads() { Side::limits.io_threads = std::get<std::size_t>(GetParam()); }
  static void use_reactor() { Side::limits.io_threads = 0; }

  // A block of another transfer than block_to's, with a place of its own at the receiver.
  static SendBlock block_of(std::uint32_t transfer, Side& from, const Side& to) {
    SendBlock block = block_to(from, to, 0);
    block.header.transfer = TransferId{transfer};
    return block;
  }
  static OpenReceive receive_at(std::uint32_t transfer, const Side& from, std::uint32_t place) {
    OpenReceive receive = receive_of(from, 1);
    receive.transfer = TransferId{transfer};
    receive.base.offset = std::uint64_t{place} * kBlock;
    return receive;
  }
  static std::size_t closings(const Side& side, std::uint32_t transfer) {
    return static_cast<std::size_t>(std::ranges::count_if(side.events, [&](const IoEvent& event) {
      const auto* closed = std::get_if<ReceiveClosed>(&event);
      return closed != nullptr && closed->transfer == TransferId{transfer};
    }));
  }
  // Blocks of a link are reported only while it is up.
  static void expect_no_news_of_a_link_that_is_down(const Side& side) {
    bool is_up = false;
    for (const IoEvent& event : side.events) {
      if (std::holds_alternative<LinkUp>(event)) is_up = true;
      if (std::holds_alternative<LinkDown>(event)) is_up = false;
      const bool is_of_block =
          std::holds_alternative<BlockSent>(event) || std::holds_alternative<BlockLanded>(event);
      EXPECT_TRUE(is_up || !is_of_block);
    }
  }
};

TEST_P(BulkThreads, BlocksGoBothWaysOnAllRails) {
  const Rails rails{"127.0.0.1:0", "127.0.0.1:0"};
  Side a(1, "secret", 1, rails), b(2, "secret", 1, rails);
  ASSERT_TRUE(connect_both(a, b));
  constexpr std::uint32_t kMany = 16;
  OpenReceive at_b = receive_of(a, kMany), at_a = receive_of(b, kMany);
  at_a.base.offset = at_b.base.offset = 32_MiB;
  b.links.open_receive(at_b);
  a.links.open_receive(at_a);
  for (std::uint32_t i = 0; i < kMany; ++i) {
    for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
      SendBlock block = block_to(*from, *to, i);
      block.rail = RailId{static_cast<std::uint8_t>(i % 2)};
      from->links.send(block);
    }
  }
  const auto is_done = [](const Side& side) {
    return side.count<BlockLanded>() == kMany && side.count<BlockSent>() == kMany;
  };
  ASSERT_TRUE(run({&a, &b}, [&] { return is_done(a) && is_done(b); }));
  for (const Side* side : {&a, &b}) {
    const auto sent = side->arena.at({0, kMany * kBlock});
    const auto landed = side->arena.at({32_MiB, kMany * kBlock});
    EXPECT_TRUE(std::ranges::equal(sent, landed));
    const LinkCounters counters = side->links.counters();
    EXPECT_EQ(counters.blocks_sent, kMany);
    EXPECT_EQ(counters.blocks_landed, kMany);
    EXPECT_EQ(counters.bytes_queued, 0U);
    EXPECT_GT(counters.bytes_sent, std::uint64_t{kMany} * kBlock);
  }
}

TEST_P(BulkThreads, MessagesPassWhileBlocksAreMoved) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 8));
  for (std::uint32_t i = 0; i < 8; ++i) {
    a.links.send(block_to(a, b, i));
    a.links.send(SendMessage{b.member.node, small_message(i), std::nullopt});
  }
  ASSERT_TRUE(
      run({&a, &b}, [&] { return b.count<BlockLanded>() == 8 && b.count<MessageIn>() == 8; }));
}

TEST_P(BulkThreads, AReceiveIsClosedOnceAndAtOnceWhenNothingIsReceived) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 1));
  b.links.close_receive({TransferId{5}, a.member.node});
  b.links.close_receive({TransferId{6}, a.member.node});  // was never open
  for (IoEvent& event : b.links.take_events()) b.events.push_back(std::move(event));
  EXPECT_EQ(closings(b, 5), 1U);
  EXPECT_EQ(closings(b, 6), 1U);
  a.links.send(block_to(a, b, 0));
  ASSERT_TRUE(run({&a, &b}, [&] { return b.links.counters().blocks_discarded == 1; }));
  EXPECT_EQ(b.count<ReceiveClosed>(), 2U);
}

// The closing falls before, into and behind the reads of the block.
TEST_P(BulkThreads, BehindReceiveClosedNothingIsWrittenWheneverItIsClosed) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  Prng prng(3);
  constexpr std::uint32_t kRounds = 100;
  for (std::uint32_t round = 10; round < 10 + kRounds; ++round) {
    const std::uint32_t at = 8 + round % 4;
    b.links.open_receive(receive_at(round, a, at));
    const std::uint64_t before = b.links.counters().bytes_received;
    const std::uint64_t wanted = prng.below(kBlock);
    a.links.send(block_of(round, a, b));
    a.turn(now_);
    ASSERT_TRUE(run({&a}, [&] { return b.links.counters().bytes_received >= before + wanted; }));
    b.links.close_receive({TransferId{round}, a.member.node});
    ASSERT_TRUE(run({&a, &b}, [&] { return closings(b, round) > 0; }));
    const auto place = b.arena.at({std::uint64_t{at} * kBlock, kBlock});
    std::ranges::fill(place, std::byte{77});
    const auto is_over = [&] {
      const LinkCounters counters = b.links.counters();
      return counters.blocks_landed + counters.blocks_discarded == round - 9 &&
             a.count<BlockSent>() == round - 9;
    };
    ASSERT_TRUE(run({&a, &b}, is_over));
    EXPECT_TRUE(std::ranges::all_of(place, [](std::byte v) { return v == std::byte{77}; }));
  }
  EXPECT_EQ(b.count<ReceiveClosed>(), kRounds);
  EXPECT_EQ(b.count<LinkDown>(), 0U);
}

TEST_P(BulkThreads, ALinkThatEndsAmidABlockLeavesItsRangeAlone) {
  use_reactor();
  Side a(1);
  use_threads();
  Side b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 4));
  for (std::uint32_t i = 0; i < 4; ++i) a.links.send(block_to(a, b, i));
  const std::uint64_t sent = a.links.counters().bytes_sent;
  while (a.links.counters().bytes_sent == sent) a.turn(now_);
  b.links.disconnect(a.member.node);
  const auto place = b.arena.at({1_MiB, 4 * kBlock});
  std::ranges::fill(place, std::byte{0});
  b.turn(now_);
  const std::size_t heard = b.count<BlockLanded>();
  for (int i = 0; i < 50; ++i) {
    a.turn(now_);
    b.turn(now_);
  }
  EXPECT_EQ(b.count<BlockLanded>(), heard);
  EXPECT_TRUE(std::ranges::all_of(place, [](std::byte v) { return v == std::byte{0}; }));
}

TEST_P(BulkThreads, APeerThatIsGoneUnderLoadIsDeadAndItsNextLifeIsServed) {
  const Rails rails{"127.0.0.1:0", "127.0.0.1:0"};
  Side a(1, "secret", 1, rails);
  auto b = std::make_unique<Side>(2, "secret", 1, rails);
  ASSERT_TRUE(connect_both(a, *b));
  constexpr std::uint32_t kMany = 32;
  b->links.open_receive(receive_of(a, kMany));
  for (std::uint32_t i = 0; i < kMany; ++i) {
    SendBlock block = block_to(a, *b, i);
    block.rail = RailId{static_cast<std::uint8_t>(i % 2)};
    a.links.send(block);
  }
  ASSERT_TRUE(run({&a, b.get()}, [&] { return b->count<BlockLanded>() > 0; }));
  b.reset();
  ASSERT_TRUE(run({&a}, [&] {
    pass(1_ms);
    return a.count<PeerDead>() == 1;
  }));
  EXPECT_EQ(a.count<LinkDown>(), 1U);
  Side next(2, "secret", 2, rails);
  ASSERT_TRUE(connect_both(a, next));
  next.links.open_receive(receive_of(a, 2));
  for (std::uint32_t i = 0; i < 2; ++i) a.links.send(block_to(a, next, i));
  ASSERT_TRUE(run({&a, &next}, [&] { return next.count<BlockLanded>() == 2; }));
  expect_no_news_of_a_link_that_is_down(a);
  EXPECT_TRUE(run({&a, &next}, [&] { return a.links.counters().bytes_queued == 0; }));
}

TEST_P(BulkThreads, AfterGoodbyeAbsenceIsNoDeath) {
  Side a(1);
  auto b = std::make_unique<Side>(2);
  ASSERT_TRUE(connect_both(a, *b));
  const auto has_met = [](const Side& side) { return side.links.counters().handshakes == 3; };
  ASSERT_TRUE(run({&a, b.get()}, [&] { return has_met(a) && has_met(*b); }));
  for (std::uint32_t i = 0; i < 8; ++i) b->links.send(block_to(*b, a, i));
  b->turn(now_);
  b->links.send_goodbye();
  b.reset();
  ASSERT_TRUE(run({&a}, [&] { return a.count<LinkDown>() == 1; }));
  for (int i = 0; i < 20; ++i) {
    pass(1_s);
    a.turn(now_);
  }
  EXPECT_EQ(a.count<PeerDead>(), 0U);
}

TEST_P(BulkThreads, ACorruptBlockEndsTheLinkWhichThenComesUpAgain) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 2));
  a.links.send(block_to(a, b, 0));
  SendBlock corrupt = block_to(a, b, 1);
  corrupt.header.crc32c = 1;
  a.links.send(corrupt);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.count<LinkDown>() == 1; }));
  EXPECT_EQ(b.links.counters().blocks_corrupt, 1U);
  EXPECT_NE(b.links.last_refusal().find("from node 1 has a wrong CRC-32C"), std::string::npos);
  EXPECT_EQ(b.count<BlockLanded>(), 1U);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<LinkUp>() == 2 && b.count<LinkUp>() == 2; }));
  expect_no_news_of_a_link_that_is_down(a);
  expect_no_news_of_a_link_that_is_down(b);
}

TEST_P(BulkThreads, AHostileBlockEndsTheLinkOnBothThreads) {
  const Rails rails{"127.0.0.1:0", "127.0.0.1:0"};
  Side a(1, "secret", 1, rails), b(2, "secret", 1, rails);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 8));
  for (std::uint32_t i = 0; i < 8; ++i) {
    SendBlock block = block_to(a, b, i);
    block.rail = RailId{static_cast<std::uint8_t>(i % 2)};
    if (i == 5) block.header.offset = 64_MiB;
    a.links.send(block);
  }
  ASSERT_TRUE(run({&a, &b}, [&] { return b.count<LinkDown>() == 1; }));
  EXPECT_EQ(b.links.counters().frames_bad, 1U);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<LinkUp>() == 2 && b.count<LinkUp>() == 2; }));
  expect_no_news_of_a_link_that_is_down(a);
  expect_no_news_of_a_link_that_is_down(b);
}

TEST_P(BulkThreads, BlocksOfSeveralPeersLand) {
  Side a(1), b(2), c(3);
  ASSERT_TRUE(connect_both(a, c));
  ASSERT_TRUE(connect_both(b, c));
  constexpr std::uint32_t kMany = 16;
  OpenReceive other = receive_of(b, kMany);
  other.base.offset = 32_MiB;
  c.links.open_receive(receive_of(a, kMany));
  c.links.open_receive(other);
  for (std::uint32_t i = 0; i < kMany; ++i) {
    a.links.send(block_to(a, c, i));
    b.links.send(block_to(b, c, i));
  }
  ASSERT_TRUE(run({&a, &b, &c}, [&] { return c.count<BlockLanded>() == 2 * kMany; }));
  EXPECT_TRUE(
      std::ranges::equal(a.arena.at({0, kMany * kBlock}), c.arena.at({1_MiB, kMany * kBlock})));
  EXPECT_TRUE(
      std::ranges::equal(b.arena.at({0, kMany * kBlock}), c.arena.at({32_MiB, kMany * kBlock})));
}

TEST_P(BulkThreads, ANodeThatStopsUnderLoadWaitsForNoPeer) {
  auto a = std::make_unique<Side>(1);
  Side b(2);
  ASSERT_TRUE(connect_both(*a, b));
  for (std::uint32_t i = 0; i < 40; ++i) a->links.send(block_to(*a, b, i));
  a->turn(now_);
  a.reset();
  ASSERT_TRUE(run({&b}, [&] {
    pass(1_ms);
    return b.count<PeerDead>() == 1;
  }));
}

INSTANTIATE_TEST_SUITE_P(OneAndThree, BulkThreads,
                         ::testing::Combine(::testing::Values(std::size_t{1}, std::size_t{3}),
                                            ::testing::Values(DataTls::kOff, DataTls::kOn)));

}  // namespace
}  // namespace hoplite
