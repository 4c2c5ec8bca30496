// SPDX-License-Identifier: Apache-2.0
// Messages, blocks and lives of links between two sides.
#include "io/links/links_test.h"

#include <memory>
#include <set>

namespace hoplite {
namespace {

TEST_P(LinksTest, AMessageArrivesWithItsPayloadAndInOrder) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  const auto payload = b.arena.at({0, 5000});
  std::fill(payload.begin(), payload.end(), std::byte{42});
  for (std::uint32_t i = 0; i < 100; ++i) {
    b.links.send(SendMessage{a.member.node, small_message(i), std::nullopt});
  }
  Push push;
  push.meta.size_bytes = 5000;
  push.meta.parts = {{DType::kOpaque, 5000}};
  Message with_payload{Epoch{1}, TransferId{0}, TraceId{3}, push};
  b.links.send(SendMessage{a.member.node, with_payload, Extent{0, 5000}});
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<MessageIn>() == 101; }));
  std::uint32_t expected = 0;
  for (const IoEvent& event : a.events) {
    const auto* in = std::get_if<MessageIn>(&event);
    if (in == nullptr || !std::holds_alternative<Credit>(in->message.body)) continue;
    EXPECT_EQ(in->message, small_message(expected++));
    EXPECT_EQ(in->from, b.member.node);
  }
  EXPECT_EQ(a.last<MessageIn>().message, with_payload);
  EXPECT_EQ(a.last<MessageIn>().payload, Bytes(5000, std::byte{42}));
}

TEST_P(LinksTest, APushThatHasNotLeftYetIsNotQueuedAgain) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  for (int i = 0; i < 3; ++i) {
    b.links.send(push_to(a, 1, {NodeId{4}}));
    b.links.send(push_to(a, 2, {}));
    b.links.send(order_to(a, 4));
    b.links.send(order_to(a, 5));
  }
  ASSERT_TRUE(run({&b, &a}, [&] { return a.count<MessageIn>() >= 4; }));
  b.links.send(push_to(a, 1, {}));
  ASSERT_TRUE(run({&b, &a}, [&] { return a.count<MessageIn>() >= 5; }));
  EXPECT_EQ(a.count<MessageIn>(), 5U);
  EXPECT_EQ(a.last<MessageIn>().payload.size(), kPayload.size_bytes);
}

// No bytes are lost: a node that needs them asks for them again.
TEST_P(LinksTest, ALongQueueIsGivenNoPayload) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  const auto most = static_cast<std::size_t>(LinkLimits{}.payload_queue_bytes / 64_KiB);
  for (std::size_t i = 0; i < most; ++i) b.links.send(claim_to(a));
  b.links.send(push_to(a, 1, {}));
  b.links.send(claim_to(a));
  ASSERT_TRUE(run({&b, &a}, [&] { return a.count<MessageIn>() >= most + 1; }));
  EXPECT_TRUE(std::holds_alternative<Claim>(a.last<MessageIn>().message.body));
  EXPECT_TRUE(a.last<MessageIn>().payload.empty());
  b.links.send(push_to(a, 1, {}));
  ASSERT_TRUE(run({&b, &a}, [&] { return a.count<MessageIn>() >= most + 2; }));
  EXPECT_EQ(a.last<MessageIn>().payload.size(), kPayload.size_bytes);
}

// Else its peer is slow, or the link is.
TEST_P(LinksTest, OnlyALongQueueOfWhichNothingIsTakenEndsTheLink) {
  Side::limits.queued_bytes_max = 1_MiB;
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  const auto stays_up_while_it_says_more = [&] {
    for (int i = 0; i < 40; ++i) {  // more than the kernel takes
      for (int n = 0; n < 16; ++n) b.links.send(claim_to(a));
      b.turn(now_);
    }
    return b.count<LinkDown>() == 0;
  };
  ASSERT_TRUE(stays_up_while_it_says_more());
  const Duration half{Side::limits.queue_stalled_max.ns / 2};
  pass(half);
  ASSERT_TRUE(stays_up_while_it_says_more());
  const std::uint64_t taken = b.links.counters().bytes_sent;
  ASSERT_TRUE(run({&a, &b}, [&] { return b.links.counters().bytes_sent > taken; }));
  pass(half);
  ASSERT_TRUE(stays_up_while_it_says_more());
  // A late acknowledgement of the other kernel makes room for a little more, a few times at most.
  EXPECT_TRUE(run({&b}, [&] {
    pass(Side::limits.queue_stalled_max);
    b.links.send(claim_to(a));
    return b.count<LinkDown>() == 1;
  }));
}

TEST_P(LinksTest, BlocksLandInTheArenaAndAreReportedOnBothSides) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 8));
  for (std::uint32_t i = 0; i < 8; ++i) a.links.send(block_to(a, b, i));
  ASSERT_TRUE(
      run({&a, &b}, [&] { return b.count<BlockLanded>() == 8 && a.count<BlockSent>() == 8; }));
  EXPECT_EQ(b.last<BlockLanded>().block, BlockIndex{7});
  EXPECT_EQ(a.last<BlockSent>().size_bytes, kBlock);
  const auto sent = a.arena.at({0, 8 * kBlock});
  const auto landed = b.arena.at({1_MiB, 8 * kBlock});
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), landed.begin()));
}

TEST_P(LinksTest, ATurnMovesNoMoreThanItsBudget) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 4));
  for (std::uint32_t i = 0; i < 4; ++i) a.links.send(block_to(a, b, i));
  for (int i = 0; i < 5000 && b.count<BlockLanded>() < 4; ++i) {
    const std::uint64_t before = b.links.counters().bytes_received;
    a.turn(now_);
    b.turn(now_, 10'000);
    // One call to the kernel may pass the limit by its own size: a block. Bytes that TLS has read
    // ahead are used up as well.
    const std::uint64_t in_hand = GetParam() == DataTls::kOn ? 64_KiB : 0;
    EXPECT_LE(b.links.counters().bytes_received - before,
              10'000U + kBlock + kBlockFrameBytes + in_hand);
  }
  EXPECT_EQ(b.count<BlockLanded>(), 4U);
}

// In each turn the poller reports the connection that always has more first.
TEST_P(LinksTest, APeerThatSendsMoreThanATurnReadsHoldsBackNoOther) {
  constexpr std::uint32_t kMany = 24;
  Side a(1), b(2), c(3);
  ASSERT_TRUE(connect_both(a, c));
  ASSERT_TRUE(connect_both(b, c));
  c.links.open_receive(receive_of(a, kMany));
  OpenReceive other = receive_of(b, 1);
  other.transfer = TransferId{6};
  other.base.offset = 8_MiB;
  c.links.open_receive(other);
  for (std::uint32_t i = 0; i < kMany; ++i) a.links.send(block_to(a, c, i));
  for (int i = 0; i < 10; ++i) a.turn(now_);
  SendBlock block = block_to(b, c, 0);
  block.header.transfer = TransferId{6};
  b.links.send(block);
  b.links.send(SendMessage{c.member.node, small_message(1), std::nullopt});
  const auto is_heard = [&](const IoEvent& event) {
    const auto* landed = std::get_if<BlockLanded>(&event);
    return landed != nullptr && landed->transfer == TransferId{6};
  };
  std::size_t landed = 0;
  for (int i = 0; i < 5000 && landed == 0; ++i) {
    a.turn(now_);
    b.turn(now_);
    c.turn(now_, 10'000);
    if (std::ranges::any_of(c.events, is_heard)) landed = c.count<BlockLanded>();
  }
  EXPECT_GT(landed, 0U);
  EXPECT_LT(landed, kMany);
  EXPECT_EQ(c.count<MessageIn>(), 1U);
}

TEST_P(LinksTest, AMessageLeavesBeforeTheBlocksOfOtherPeers) {
  constexpr std::uint32_t kMany = 24;
  Side a(1), b(2), c(3);
  ASSERT_TRUE(connect_both(a, b));
  ASSERT_TRUE(connect_both(a, c));
  b.links.open_receive(receive_of(a, kMany));
  for (std::uint32_t i = 0; i < kMany; ++i) a.links.send(block_to(a, b, i));
  a.links.send(SendMessage{c.member.node, small_message(1), std::nullopt});
  for (int i = 0; i < 5000 && c.count<MessageIn>() == 0; ++i) {
    a.turn(now_, 10'000);
    b.turn(now_);
    c.turn(now_);
  }
  EXPECT_LT(a.count<BlockSent>(), 2U);
}

TEST_P(LinksTest, BlocksOfAnUnknownTransferAreReadAndDiscarded) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  a.links.send(block_to(a, b, 0));
  a.links.send(block_to(a, b, 1));
  ASSERT_TRUE(run({&a, &b}, [&] { return b.links.counters().blocks_discarded == 2; }));
  EXPECT_EQ(b.links.counters().bytes_discarded, 2 * kBlock);
  EXPECT_EQ(b.count<LinkDown>(), 0U);
}

TEST_P(LinksTest, AfterCloseReceiveNoByteOfABlockIsWrittenAnyMore) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 1));
  a.links.send(block_to(a, b, 0));
  const std::uint64_t before = b.links.counters().bytes_received;
  const auto is_amid = [&] {
    return b.links.counters().bytes_received > before + kBlockFrameBytes;
  };
  for (int i = 0; i < 5000 && !is_amid(); ++i) {
    a.turn(now_);
    b.turn(now_, kBlock / 16);
  }
  ASSERT_EQ(b.count<BlockLanded>(), 0U);
  b.links.close_receive({TransferId{5}, a.member.node});
  b.turn(now_, 0);
  EXPECT_EQ(b.count<ReceiveClosed>(), 1U);
  const auto place = b.arena.at({1_MiB, kBlock});
  std::fill(place.begin(), place.end(), std::byte{0});
  ASSERT_TRUE(run({&a, &b}, [&] { return b.links.counters().blocks_discarded == 1; }));
  EXPECT_TRUE(
      std::all_of(place.begin(), place.end(), [](std::byte v) { return v == std::byte{0}; }));
  EXPECT_EQ(b.count<BlockLanded>(), 0U);
}

TEST_P(LinksTest, EachCloseReceiveIsAnsweredOnceAlsoWhenTheLinkIsDown) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 1));
  a.links.disconnect(b.member.node);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.count<LinkDown>() == 1; }));
  b.links.close_receive({TransferId{5}, a.member.node});
  b.links.close_receive({TransferId{6}, a.member.node});  // nothing was open
  b.links.close_receive({TransferId{7}, NodeId{9}});      // nor is there such a link
  b.turn(now_);
  std::vector<TransferId> closed;
  for (const IoEvent& event : b.events) {
    if (const auto* end = std::get_if<ReceiveClosed>(&event)) closed.push_back(end->transfer);
  }
  EXPECT_EQ(closed, (std::vector{TransferId{5}, TransferId{6}, TransferId{7}}));
}

TEST_P(LinksTest, AHostileBlockOfAnOpenTransferClosesTheLink) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 1));
  SendBlock block = block_to(a, b, 0);
  block.header.offset = 64_MiB;
  a.links.send(block);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.count<LinkDown>() == 1; }));
  EXPECT_EQ(b.links.counters().frames_bad, 1U);
}

TEST_P(LinksTest, ACorruptBlockClosesTheLinkAndIsCounted) {
  Side::authority =
      nullptr;  // TLS takes all of the block at once: nothing of it can be changed then
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  b.links.open_receive(receive_of(a, 1));
  a.links.send(block_to(a, b, 0));
  const std::uint64_t before = a.links.counters().bytes_sent;
  for (int i = 0; i < 5000 && a.links.counters().bytes_sent == before; ++i) a.turn(now_);
  ASSERT_EQ(a.count<BlockSent>(), 0U);  // its checksum is made, its end is still ours
  a.arena.at({kBlock - 1, 1})[0] ^= std::byte{1};
  ASSERT_TRUE(run({&a, &b}, [&] { return b.count<LinkDown>() == 1; }));
  EXPECT_EQ(b.links.counters().blocks_corrupt, 1U);
  EXPECT_NE(b.links.last_refusal().find("from node 1 has a wrong CRC-32C"), std::string::npos);
  EXPECT_EQ(b.count<BlockLanded>(), 0U);
  EXPECT_TRUE(run({&a, &b}, [&] { return a.count<LinkUp>() == 2 && b.count<LinkUp>() == 2; }));
}

TEST_P(LinksTest, WithoutTheSecretNobodyMeets) {
  Side a(1, "secret"), b(2, "another");
  a.links.connect(b.member, now_);
  b.links.connect(a.member, now_);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.links.counters().handshakes_refused > 0; }));
  EXPECT_NE(a.links.last_refusal().find("secret"), std::string::npos) << a.links.last_refusal();
  EXPECT_EQ(a.count<LinkUp>() + b.count<LinkUp>(), 0U);
}

TEST_P(LinksTest, NothingIsReadBeforeConnect) {
  Side a(1), b(2);
  a.links.connect(b.member, now_);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<LinkUp>() == 1; }));
  a.links.send(SendMessage{b.member.node, small_message(1), std::nullopt});
  for (int i = 0; i < 10; ++i) {
    a.turn(now_);
    b.turn(now_);
  }
  EXPECT_TRUE(b.events.empty());
  b.links.connect(a.member, now_);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.count<MessageIn>() == 1; }));
  EXPECT_TRUE(std::holds_alternative<LinkUp>(b.events.front()));
}

TEST_P(LinksTest, APeerWhoseProcessIsGoneIsDeadForBothKindsOfSides) {
  for (const std::uint64_t survivor : {1, 3}) {
    Side a(survivor);
    auto b = std::make_unique<Side>(2);
    ASSERT_TRUE(connect_both(a, *b));
    b.reset();
    ASSERT_TRUE(run({&a}, [&] {
      pass(1_ms);
      return a.count<PeerDead>() == 1;
    }));
    EXPECT_EQ(a.count<LinkDown>(), 1U);
    EXPECT_EQ(a.last<PeerDead>().node, NodeId{2});
    EXPECT_EQ(a.last<PeerDead>().incarnation, Incarnation{1});
  }
}

TEST_P(LinksTest, AfterGoodbyeAbsenceIsNoDeath) {
  Side a(1);
  auto b = std::make_unique<Side>(2);
  ASSERT_TRUE(connect_both(a, *b));
  b->links.send_goodbye();
  b.reset();
  ASSERT_TRUE(run({&a}, [&] { return a.count<LinkDown>() == 1; }));
  for (int i = 0; i < 20; ++i) {
    pass(1_s);
    a.turn(now_);
  }
  EXPECT_EQ(a.count<PeerDead>(), 0U);
}

// Both ends of a link have two control connections, and each speaks on another one.
TEST_P(LinksTest, AGoodbyeIsHeardWhicheverConnectionIsSeenToEndFirst) {
  const std::vector<std::string> rails{"127.0.0.1:0", "127.0.0.1:0"};
  for (std::size_t first = 0; first < 4; ++first) {
    Side a(1, "secret", 1, rails);
    auto b = std::make_unique<Side>(2, "secret", 1, rails);
    Member half = b->member;
    half.rails[0] = "127.0.0.1:1";  // refused
    a.links.connect(half, now_);
    ASSERT_TRUE(run({&a, b.get()}, [&] { return a.count<LinkUp>() == 1; }));
    a.links.connect(b->member, now_);
    ASSERT_TRUE(run({&a, b.get()}, [&] {
      pass(1_ms);
      return b->links.counters().handshakes == 6;
    }));
    b->links.connect(a.member, now_);
    ASSERT_TRUE(run({&a, b.get()}, [&] { return b->count<LinkUp>() == 1; }));
    for (int i = 0; i < 20; ++i) a.turn(now_);
    b->links.send_goodbye();
    b.reset();
    // In turns in which the thread for liveness, which hears of it as well, has nothing to say yet.
    const auto is_other = [](const Ready& each) { return each.token < 4; };  // it, and listeners
    std::vector<Ready> ends;
    for (int i = 0; i < 5000 && ends.size() < 4; ++i) {
      const auto ready = a.poller.wait(1_ms);
      ends.assign(ready.begin(), ready.end());
      std::erase_if(ends, is_other);
    }
    ASSERT_EQ(ends.size(), 4U);
    std::ranges::sort(ends, {}, &Ready::token);
    ends = {ends.at(first)};
    for (int i = 0; i < 20; ++i) {
      Budget budget{1_MiB};
      a.links.handle_ready(ends, budget, now_);
      a.links.handle_timeout(now_);  // dials again, unless it has heard the Goodbye
      for (IoEvent& event : a.links.take_events()) a.events.push_back(std::move(event));
      pass(50_ms);
      const auto ready = a.poller.wait(1_ms);
      ends.assign(ready.begin(), ready.end());
      std::erase_if(ends, is_other);
    }
    EXPECT_EQ(a.count<PeerDead>(), 0U) << "first " << first;
    EXPECT_EQ(a.count<LinkDown>(), 1U);
  }
}

TEST_P(LinksTest, ADiallerThatIsAnsweredByAnotherLifeKnowsThatTheOldOneIsDead) {
  Side a(1), b(2, "secret", 5);
  Member old = b.member;
  old.incarnation = Incarnation{4};
  a.links.connect(old, now_);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<PeerDead>() == 1; }));
  EXPECT_EQ(a.last<PeerDead>().incarnation, Incarnation{4});
  EXPECT_TRUE(connect_both(a, b));
}

TEST_P(LinksTest, AListenerThatIsDialledByANewLifeKnowsThatTheOldOneIsDead) {
  Side a(1, "secret", 2), b(2);
  Member old = a.member;
  old.incarnation = Incarnation{1};
  b.links.connect(old, now_);
  a.links.connect(b.member, now_);
  ASSERT_TRUE(run({&a, &b}, [&] { return b.count<PeerDead>() == 1; }));
  b.links.connect(a.member, now_);
  EXPECT_TRUE(run({&a, &b}, [&] { return b.count<LinkUp>() == 1; }));
}

TEST_P(LinksTest, AReconnectIsDownThenUpAndCarriesNothingOld) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  // A bad frame makes b close; what a has queued for the old life must not come in the next.
  SendBlock hostile = block_to(a, b, 0);
  b.links.open_receive(receive_of(a, 1));
  hostile.header.offset = 1;
  a.links.send(hostile);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<LinkUp>() == 2 && b.count<LinkUp>() == 2; }));
  EXPECT_EQ(a.count<LinkDown>(), 1U);
  EXPECT_EQ(b.count<LinkDown>(), 1U);
  EXPECT_EQ(a.count<PeerDead>() + b.count<PeerDead>(), 0U);
  a.links.send(SendMessage{b.member.node, small_message(7), std::nullopt});
  ASSERT_TRUE(run({&a, &b}, [&] { return b.count<MessageIn>() == 1; }));
}

TEST_P(LinksTest, TheNextLifeOfALinkKeepsItsConnectionOfLiveness) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  ASSERT_TRUE(run({&a, &b}, [&] { return b.links.counters().handshakes == 3; }));
  b.links.open_receive(receive_of(a, 1));
  SendBlock hostile = block_to(a, b, 0);
  hostile.header.offset = 1;
  a.links.send(hostile);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<LinkUp>() == 2 && b.count<LinkUp>() == 2; }));
  EXPECT_EQ(b.links.counters().handshakes, 5U);
  EXPECT_EQ(a.count<PeerDead>() + b.count<PeerDead>(), 0U);
}

TEST_P(LinksTest, ALostConnectionOfLivenessIsDialledAgainWhileAnotherRailHasOne) {
  const std::vector<std::string> rails{"127.0.0.1:0", "127.0.0.1:0"};
  Side a(1, "secret", 1, rails), b(2, "secret", 1, rails);
  ASSERT_TRUE(connect_both(a, b));
  ASSERT_TRUE(run({&a, &b}, [&] { return b.links.counters().handshakes == 6; }));
  // A twin takes the place of rail 0 at b, which then ends a's.
  Side twin(1, "secret", 1, rails);
  twin.links.connect({b.member.node, b.member.incarnation, {b.member.rails[1]}}, now_);
  testing::internal::CaptureStderr();
  const bool is_lost = run({&a, &b, &twin}, [&] { return a.links.counters().rails_lost > 0; });
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(is_lost);
  EXPECT_NE(log.find("logger=hoplite_ray.links rail 0 to node 2 is lost\n"), std::string::npos);
  EXPECT_EQ(a.count<PeerDead>() + b.count<PeerDead>(), 0U);
  const std::uint64_t before = a.links.counters().handshakes;
  EXPECT_TRUE(run({&a, &b}, [&] {
    pass(1_ms);
    return a.links.counters().handshakes > before;
  }));
}

TEST_P(LinksTest, ASendToALinkWhoseLossIsNotHeardYetIsVoid) {
  Side a(1), b(2);
  ASSERT_TRUE(connect_both(a, b));
  const auto lost_unheard = [&] {  // turns without take_events
    Budget budget{1_MiB};
    a.links.handle_ready(a.poller.wait(1_ms), budget, now_);
    b.turn(now_);
    return a.links.has_lost_link();
  };
  b.links.disconnect(a.member.node);
  ASSERT_TRUE(run({}, lost_unheard));
  a.links.send(SendMessage{b.member.node, small_message(1), std::nullopt});
  a.links.send(block_to(a, b, 0));
  EXPECT_FALSE(a.links.take_events().empty());
  EXPECT_EQ(a.links.counters().blocks_sent, 0U);
}

TEST_P(LinksTest, ADiallerWhoseHandshakesBreakDialsAgainAtIntervals) {
  Side a(1);
  Listener listener(must(listen_on(must(parse_address("127.0.0.1:0")))));
  const std::string address = address_text(must(local_address(listener.fd())));
  a.links.connect({NodeId{2}, Incarnation{1}, {address}}, now_);
  ASSERT_TRUE(run({&a}, [&] {
    while (listener.accept()) continue;  // and close
    pass(1_ms);
    return a.links.counters().dials >= 18;
  }));
  EXPECT_LE(now_, Instant{1'000'000'000} + 1_s);
  EXPECT_GE(now_, Instant{1'000'000'000} + 150_ms);  // 5 + 10 + 20 + ... between three of them
  EXPECT_EQ(a.count<PeerDead>(), 0U);
}

TEST_P(LinksTest, TwoRailsAreOneLinkAndAMissingRailIsReplacedByTheOther) {
  const std::vector<std::string> rails{"127.0.0.1:0", "127.0.0.1:0"};
  Side a(1, "secret", 1, rails), b(2, "secret", 1, rails);
  ASSERT_TRUE(connect_both(a, b));
  ASSERT_TRUE(run({&a, &b}, [&] { return b.links.counters().handshakes == 6; }));
  b.links.open_receive(receive_of(a, 2));
  SendBlock first = block_to(a, b, 0);
  SendBlock second = block_to(a, b, 1);
  first.rail = RailId{1};
  second.rail = RailId{7};  // there is none
  a.links.send(first);
  a.links.send(second);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<BlockSent>() == 2; }));
  EXPECT_EQ(a.last<BlockSent>().rail, RailId{7});
}

// BlockSent names its block by the ticket: those of one rail may leave in another order.
TEST_P(LinksTest, ABlockOfARailThatOpensLateOvertakesThoseThatWaitOnAnother) {
  const std::vector<std::string> rails{"127.0.0.1:0", "127.0.0.1:0"};
  Side a(1, "secret", 1, rails), b(2, "secret", 1, rails);
  Member half = b.member;
  half.rails[1] = "127.0.0.1:1";  // refused
  a.links.connect(half, now_);
  b.links.connect(a.member, now_);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<LinkUp>() == 1 && b.count<LinkUp>() == 1; }));
  const auto send = [&](std::uint64_t ticket) {
    SendBlock block = block_to(a, b, static_cast<std::uint32_t>(ticket % 64));
    block.rail = RailId{1};
    block.ticket = BlockTicket{ticket};
    a.links.send(block);
  };
  constexpr std::uint64_t kWaiting = 60;  // more than the kernels of both ends take
  for (std::uint64_t ticket = 1; ticket <= kWaiting; ++ticket) send(ticket);
  a.links.connect(b.member, now_);  // the other rail is known now
  const auto step = [&] {           // in which b reads no block
    pass(1_ms);
    a.turn(now_);
    b.turn(now_, 0);
  };
  for (int i = 0; i < 5000 && b.links.counters().handshakes < 6; ++i) step();
  ASSERT_EQ(b.links.counters().handshakes, 6U);
  ASSERT_LT(a.count<BlockSent>(), kWaiting);
  send(kWaiting + 1);
  ASSERT_TRUE(run({&a, &b}, [&] { return a.count<BlockSent>() == kWaiting + 1; }));
  EXPECT_NE(a.last<BlockSent>().ticket, BlockTicket{kWaiting + 1});
  std::set<std::uint64_t> tickets;
  for (const IoEvent& event : a.events) {
    if (const auto* sent = std::get_if<BlockSent>(&event)) tickets.insert(sent->ticket.value);
  }
  EXPECT_EQ(tickets.size(), kWaiting + 1);
}

INSTANTIATE_TEST_SUITE_P(WithoutAndWithTls, LinksTest,
                         ::testing::Values(DataTls::kOff, DataTls::kOn));

}  // namespace
}  // namespace hoplite
