// SPDX-License-Identifier: Apache-2.0
// Two members' rules back to back, with the bytes between them cut anywhere.
#include "world/edges/edge_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace hoplite::worlds {
namespace {

using Data = std::vector<std::byte>;

constexpr EdgeLimits kSmall{
    .window_bytes = 4096, .payload_bytes_min = 64, .payload_bytes_max = 256};

Data pattern(std::size_t size, unsigned seed) {
  Data data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 7 + seed);
  return data;
}

Content content_of(std::size_t size, std::uint64_t key = 0) {
  Content content;
  content.key = MatchKey{key};
  content.operation = 1;
  content.size_bytes = size;
  content.dtype = "uint8";
  content.shape = {size};
  return content;
}

Wanted make_wanted(std::span<std::byte> into, std::uint64_t key = 0) {
  return {MatchKey{key}, 1, "uint8", into};
}

// One end of an edge, the operations that it has ended, and the wire that it writes to.
struct Member {
  explicit Member(std::uint32_t peer, const EdgeLimits& limits) : rules(Rank{peer}, limits) {}

  // Puts at most `count` bytes onto the wire; returns how many.
  std::size_t write(std::size_t count) {
    const Frame frame = rules.poll_frame();
    const std::size_t of_head = std::min(count, frame.head.size());
    const std::size_t of_payload = std::min(count - of_head, frame.payload.size());
    wire.insert(wire.end(), frame.head.begin(),
                frame.head.begin() + static_cast<std::ptrdiff_t>(of_head));
    wire.insert(wire.end(), frame.payload.begin(),
                frame.payload.begin() + static_cast<std::ptrdiff_t>(of_payload));
    rules.handle_written(of_head + of_payload);
    settle();
    return of_head + of_payload;
  }

  // Takes at most `count` bytes off the wire of `other`.
  Result<std::size_t> read(Member& other, std::size_t count) {
    const Data came(other.wire.begin(), other.wire.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                 count, other.wire.size())));
    if (came.empty()) return std::size_t{0};
    const auto used = rules.handle_bytes(came);
    if (!used) return used.error();
    other.wire.erase(other.wire.begin(), other.wire.begin() + static_cast<std::ptrdiff_t>(*used));
    settle();
    return *used;
  }

  void settle() {
    while (auto outcome = rules.poll_outcome()) {
      ended.emplace(outcome->operation.value, std::move(*outcome));
    }
  }

  EdgeRules rules;
  std::deque<std::byte> wire;
  std::map<std::uint64_t, Outcome> ended;
};

struct Pair {
  explicit Pair(const EdgeLimits& limits = kSmall) : a(1, limits), b(0, limits) {}

  // Until nothing moves any more.
  void run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
        moves = from->write(1000) > 0 || moves;
        const auto used = to->read(*from, 1000);
        ASSERT_TRUE(used) << used.error().text;
        moves = *used > 0 || moves;
      }
    }
  }

  Member a;
  Member b;
};

TEST(EdgeRules, AMessageThatComesFirstWaitsForItsReceiver) {
  Pair pair;
  const Data sent = pattern(100, 1);
  pair.a.rules.handle_send(OperationId{1}, content_of(100), sent);
  pair.run();
  EXPECT_TRUE(pair.a.ended.contains(1));
  Data got(100);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(got)));
  pair.b.settle();
  EXPECT_TRUE(pair.b.ended.contains(2));
  EXPECT_EQ(got, sent);
}

TEST(EdgeRules, AReceiverThatComesFirstGetsTheBytesInItsPlace) {
  Pair pair;
  const Data sent = pattern(20'000, 2);
  Data got(20'000);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(got)));
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), sent);
  pair.run();
  EXPECT_TRUE(pair.a.ended.contains(1));
  EXPECT_TRUE(pair.b.ended.contains(2));
  EXPECT_EQ(got, sent);
}

TEST(EdgeRules, ALargeMessageStopsAtTheWindowUntilItIsWanted) {
  Pair pair;
  const Data sent = pattern(20'000, 3);
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), sent);
  pair.run();
  EXPECT_FALSE(pair.a.ended.contains(1));
  EXPECT_TRUE(pair.a.rules.has_moved(OperationId{1}));
  EXPECT_TRUE(pair.a.rules.is_waiting());
  Data got(20'000);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(got)));
  pair.run();
  EXPECT_TRUE(pair.a.ended.contains(1));
  EXPECT_EQ(got, sent);
}

// A reader may sleep until coming_bytes() are there: once our credit is written, the sender needs
// nothing else to send them.
TEST(EdgeRules, WhatIsComingComesWhateverHappensHere) {
  unsigned seen = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    Pair pair;
    std::deque<Data> sent;
    for (std::uint64_t id = 1; id <= 6; ++id) {
      const std::size_t size = prng.below(6'000);
      pair.a.rules.handle_send(OperationId{id}, content_of(size, id % 3),
                               sent.emplace_back(pattern(size, seed)));
      if (prng.below(2) == 0) continue;
      ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{100 + id},
                                              {MatchKey{id % 3}, 1, "uint8", std::nullopt}));
    }
    for (std::size_t turns = prng.below(60); turns > 0; --turns) {
      pair.a.write(1 + prng.below(400));
      ASSERT_TRUE(pair.b.read(pair.a, 1 + prng.below(400)));
      pair.b.write(1 + prng.below(100));
      ASSERT_TRUE(pair.a.read(pair.b, 1 + prng.below(100)));
    }
    bool moves = true;
    while (moves) {  // but no byte of it is read
      moves = pair.a.write(1000) > 0;
      moves = pair.b.write(1000) > 0 || moves;
      const auto used = pair.a.read(pair.b, 1000);
      ASSERT_TRUE(used);
      moves = *used > 0 || moves;
    }
    const std::uint64_t coming = pair.b.rules.coming_bytes();
    if (coming == 1) continue;  // it knows of no message
    ++seen;
    ASSERT_LE(coming, pair.a.wire.size()) << "seed " << seed;
  }
  EXPECT_GT(seen, 20U);
}

TEST(EdgeRules, CollectivesPassPointToPointThatNobodyWants) {
  Pair pair;
  const Data large = pattern(20'000, 4);
  const Data small = pattern(10, 5);
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), large);
  pair.a.rules.handle_send(OperationId{2}, content_of(10, 7), small);
  Data got(10);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{3}, make_wanted(got, 7)));
  pair.run();
  EXPECT_TRUE(pair.b.ended.contains(3));
  EXPECT_EQ(got, small);
  EXPECT_FALSE(pair.a.ended.contains(1));
}

TEST(EdgeRules, RoundsMeetByTheirNumberInAnyOrder) {
  Pair pair;
  const Data first = pattern(10, 1);
  const Data second = pattern(10, 2);
  pair.a.rules.handle_send(OperationId{1}, content_of(10, 1), first);
  pair.a.rules.handle_send(OperationId{2}, content_of(10, 2), second);
  pair.run();
  Data got_first(10);
  Data got_second(10);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{4}, make_wanted(got_second, 2)));
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{3}, make_wanted(got_first, 1)));
  EXPECT_EQ(got_first, first);
  EXPECT_EQ(got_second, second);
}

TEST(EdgeRules, AReceiveWithoutABufferBringsWhatCame) {
  for (const std::size_t size : {0UL, 5UL, 3000UL, 20'000UL}) {
    for (const bool is_early : {false, true}) {
      Pair pair;
      const Data sent = pattern(size, 6);
      const Wanted wanted{MatchKey{0}, 1, "", std::nullopt};
      if (is_early) {
        ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, wanted));
      }
      pair.a.rules.handle_send(OperationId{1}, content_of(size), sent);
      pair.run();
      if (!is_early) {
        ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, wanted));
        pair.run();
      }
      pair.b.settle();
      ASSERT_TRUE(pair.b.ended.contains(2)) << size;
      const Outcome& outcome = pair.b.ended.at(2);
      ASSERT_EQ(outcome.content.size_bytes, size);
      EXPECT_EQ(outcome.content.shape, std::vector<std::uint64_t>{size});
      EXPECT_TRUE(std::equal(sent.begin(), sent.end(), outcome.data.get()));
    }
  }
}

TEST(EdgeRules, ANoticeComesBesideTheBufferThatWasGiven) {
  for (const bool is_first : {true, false}) {
    Pair pair;
    const Data notice = pattern(48, 4);
    Content content = content_of(48);
    content.is_notice = true;
    content.dtype = "float64";
    content.shape = {1000};
    Data into(8'000, std::byte{9});
    const auto receive = [&] {
      ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(into)));
      pair.b.settle();
    };
    if (is_first) receive();
    pair.a.rules.handle_send(OperationId{1}, content, notice);
    pair.run();
    if (!is_first) receive();
    ASSERT_TRUE(pair.b.ended.contains(2));
    const Outcome& outcome = pair.b.ended.at(2);
    EXPECT_TRUE(outcome.content.is_notice);
    EXPECT_EQ(outcome.content.shape, content.shape);
    ASSERT_NE(outcome.data, nullptr);
    EXPECT_TRUE(std::equal(notice.begin(), notice.end(), outcome.data.get()));
    EXPECT_EQ(into, Data(8'000, std::byte{9}));
  }
}

TEST(EdgeRules, WhatDoesNotFitIsAnError) {
  const Data sent = pattern(100, 1);
  const auto refused = [&](Wanted wanted, bool is_early) {
    Pair pair;
    if (is_early) {
      EXPECT_TRUE(pair.b.rules.handle_receive(OperationId{2}, wanted));
    }
    pair.a.rules.handle_send(OperationId{1}, content_of(100), sent);
    while (pair.a.write(1000) > 0) {
    }
    if (is_early) {
      const auto used = pair.b.read(pair.a, 1000);
      return used ? std::string() : used.error().text;
    }
    pair.run();
    const auto received = pair.b.rules.handle_receive(OperationId{2}, wanted);
    return received ? std::string() : received.error().text;
  };
  Data shorter(99);
  Data fits(100);
  for (const bool is_early : {false, true}) {
    EXPECT_NE(refused(make_wanted(shorter), is_early).find("uint8[100] (100 B)"),
              std::string::npos);
    EXPECT_NE(refused({MatchKey{0}, 1, "int8", fits}, is_early).find("int8"), std::string::npos);
    EXPECT_NE(refused({MatchKey{0}, 2, "uint8", fits}, is_early).find("operation 2"),
              std::string::npos);
  }
}

TEST(EdgeRules, ACancelledReceiveLeavesItsMessageToTheNextOne) {
  Pair pair;
  const Data sent = pattern(20'000, 8);
  Data first(20'000);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(first)));
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), sent);
  while (!pair.b.rules.has_moved(OperationId{2}) || pair.a.wire.size() > 100) {
    pair.a.write(300);
    ASSERT_TRUE(pair.b.read(pair.a, 300));
  }
  EXPECT_TRUE(*pair.b.rules.handle_cancel(OperationId{2}));
  std::ranges::fill(first, std::byte{0xEE});  // its caller's again
  const Data untouched = first;
  pair.run();
  EXPECT_EQ(first, untouched);
  EXPECT_FALSE(pair.b.ended.contains(2));
  Data second(20'000);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{3}, make_wanted(second)));
  pair.run();
  EXPECT_EQ(second, sent);
  EXPECT_TRUE(pair.a.ended.contains(1));
}

TEST(EdgeRules, ACancelledReceiveWhoseMessageFitsNotTheNextOneIsAMismatch) {
  Pair pair;
  const Data sent = pattern(20'000, 8);
  Data first(20'000);
  Data second(8);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(first)));
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{3}, make_wanted(second)));
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), sent);
  while (!pair.b.rules.has_moved(OperationId{2})) {
    pair.a.write(300);
    ASSERT_TRUE(pair.b.read(pair.a, 300));
  }
  const auto was_open = pair.b.rules.handle_cancel(OperationId{2});
  ASSERT_FALSE(was_open);
  EXPECT_EQ(was_open.error().code, Code::kLayoutMismatch);
}

TEST(EdgeRules, WhatWasTakenBackWaitsForNobodyWhoHasLeft) {
  Pair pair;
  const Data sent = pattern(20'000, 9);
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), sent);
  pair.a.write(100);
  pair.b.rules.handle_leave();
  ASSERT_TRUE(pair.a.rules.handle_cancel(OperationId{1}));
  pair.b.write(100);
  ASSERT_TRUE(pair.a.read(pair.b, 100));
  EXPECT_TRUE(pair.a.rules.has_left());
  EXPECT_FALSE(pair.a.rules.waits_in_vain());
}

TEST(EdgeRules, ACancelledSendThatHasBegunArrivesFromACopy) {
  Pair pair;
  Data sent = pattern(20'000, 9);
  const Data original = sent;
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), sent);
  pair.a.write(100);  // in the middle of a frame
  EXPECT_TRUE(pair.a.rules.has_moved(OperationId{1}));
  EXPECT_TRUE(*pair.a.rules.handle_cancel(OperationId{1}));
  std::ranges::fill(sent, std::byte{0xEE});
  Data got(20'000);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(got)));
  pair.run();
  EXPECT_EQ(got, original);
  EXPECT_FALSE(pair.a.ended.contains(1));
}

TEST(EdgeRules, ACancelledSendThatHasNotBegunNeverArrives) {
  Pair pair;
  const Data first = pattern(10, 1);
  const Data second = pattern(10, 2);
  pair.a.rules.handle_send(OperationId{1}, content_of(10), first);
  pair.a.rules.handle_send(OperationId{2}, content_of(10), second);
  EXPECT_TRUE(*pair.a.rules.handle_cancel(OperationId{1}));
  EXPECT_FALSE(*pair.a.rules.handle_cancel(OperationId{1}));
  Data got(10);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{3}, make_wanted(got)));
  pair.run();
  EXPECT_EQ(got, second);
}

TEST(EdgeRules, GoodbyeFollowsWhatIsToBeSent) {
  Pair pair;
  const Data sent = pattern(20'000, 3);
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), sent);
  pair.a.rules.handle_leave();
  pair.run();
  EXPECT_FALSE(pair.a.rules.is_over());
  Data got(20'000);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(got)));
  pair.run();
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(pair.a.rules.is_over());
  EXPECT_TRUE(pair.b.rules.has_left());
  EXPECT_FALSE(pair.b.rules.waits_in_vain());
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{3}, make_wanted(got)));
  EXPECT_TRUE(pair.b.rules.waits_in_vain());
}

TEST(EdgeRules, AnEndingCutsOffWhatIsUnderWayAndArrives) {
  Pair pair;
  Data sent = pattern(20'000, 3);
  Data got(20'000);
  ASSERT_TRUE(pair.b.rules.handle_receive(OperationId{2}, make_wanted(got)));
  pair.a.rules.handle_send(OperationId{1}, content_of(20'000), sent);
  pair.a.write(100);
  pair.a.rules.handle_ending({Cause::kAborted, Rank{0}, "enough"});
  sent.clear();
  sent.shrink_to_fit();
  pair.run();
  EXPECT_TRUE(pair.a.rules.is_over());
  ASSERT_TRUE(pair.b.rules.ending());
  EXPECT_EQ(pair.b.rules.ending()->cause, Cause::kAborted);
  EXPECT_EQ(pair.b.rules.ending()->text, "enough");
  EXPECT_FALSE(pair.b.ended.contains(2));
  EXPECT_FALSE(pair.a.ended.contains(1));
}

TEST(EdgeRules, WhoSendsMoreThanItsCreditIsRefused) {
  EdgeRules rules(Rank{1}, kSmall);
  std::vector<std::byte> frame;
  Envelope envelope{Verb::kMessage, 4096, content_of(4096)};
  encode_envelope(envelope, frame);
  const auto used = rules.handle_bytes(frame);
  ASSERT_FALSE(used);
  EXPECT_NE(used.error().text.find("credit"), std::string::npos);
}

TEST(EdgeRules, NonsenseIsRefused) {
  const auto refused = [](std::vector<Envelope> envelopes) {
    EdgeRules rules(Rank{1}, kSmall);
    for (const Envelope& envelope : envelopes) {
      std::vector<std::byte> frame;
      encode_envelope(envelope, frame);
      if (!rules.handle_bytes(frame)) return true;
    }
    return false;
  };
  Envelope credit{Verb::kCredit, 0, {}};
  credit.content.size_bytes = 1;
  EXPECT_TRUE(refused({credit}));
  EXPECT_TRUE(refused({{Verb::kData, 1, content_of(0)}}));
  EXPECT_TRUE(refused({{Verb::kMessage, 11, content_of(10)}}));
  EXPECT_TRUE(refused({{Verb::kMessage, 0, content_of(10)}, {Verb::kMessage, 0, content_of(10)}}));
  EXPECT_TRUE(refused({{Verb::kMessage, 0, content_of(10)}, {Verb::kData, 11, content_of(0)}}));
  EXPECT_TRUE(refused({{Verb::kMessage, 0, content_of(10)}, {Verb::kData, 0, content_of(0)}}));
  EXPECT_TRUE(refused({{Verb::kGoodbye, 0, {}}, {Verb::kMessage, 0, content_of(0)}}));
  EXPECT_FALSE(refused({{Verb::kMessage, 0, content_of(0)}, {Verb::kGoodbye, 0, {}}}));
}

// Sends, receives and cancels in any order, cut anywhere: what arrives is what was sent, in order.
class Life {
 public:
  explicit Life(std::uint64_t seed) : prng_(seed) {}

  void step(unsigned number) {
    switch (prng_.below(6)) {
      case 0:
        return send(number);
      case 1:
        return receive();
      case 2:
        return prng_.below(3) == 0 ? cancel_send() : void();
      case 3:
        return prng_.below(3) == 0 ? cancel_receive() : void();
      default:
        pair_.a.write(prng_.below(500));
        ASSERT_TRUE(pair_.b.read(pair_.a, prng_.below(500)));
        pair_.b.write(prng_.below(50));
        ASSERT_TRUE(pair_.a.read(pair_.b, prng_.below(50)));
        take();
    }
  }

  // Asks for more until nothing comes.
  void finish() {
    std::size_t before = 0;
    do {
      pair_.run();
      take();
      before = got_.size();
      receive();
      pair_.run();
      take();
    } while (got_.size() > before);
    std::vector<Data> expected;
    for (auto& [data, arrives] : sent_) {
      if (arrives) expected.push_back(data);
    }
    EXPECT_EQ(got_, expected);
  }

 private:
  void send(unsigned number) {
    const std::uint64_t size = prng_.below(3) == 0 ? prng_.below(9000) : prng_.below(300);
    sent_.emplace_back(pattern(size, number), true);
    sends_[++operations_] = sent_.size() - 1;
    pair_.a.rules.handle_send(OperationId{operations_}, content_of(size), sent_.back().first);
  }

  void receive() {
    receives_.push_back(++operations_);
    ASSERT_TRUE(
        pair_.b.rules.handle_receive(OperationId{operations_}, {MatchKey{0}, 1, "", std::nullopt}));
    pair_.b.settle();
    take();
  }

  void cancel_send() {
    if (sends_.empty()) return;
    auto chosen = sends_.begin();
    std::advance(chosen, static_cast<std::ptrdiff_t>(prng_.below(sends_.size())));
    const bool has_moved = pair_.a.rules.has_moved(OperationId{chosen->first});
    if (*pair_.a.rules.handle_cancel(OperationId{chosen->first})) {
      sent_[chosen->second].second = has_moved;
    }
    sends_.erase(chosen);
  }

  void cancel_receive() {
    if (receives_.empty()) return;
    const auto chosen =
        receives_.begin() + static_cast<std::ptrdiff_t>(prng_.below(receives_.size()));
    ASSERT_TRUE(*pair_.b.rules.handle_cancel(OperationId{*chosen}));
    pair_.b.settle();
    receives_.erase(chosen);
    take();
  }

  void take() {
    while (!receives_.empty() && pair_.b.ended.contains(receives_.front())) {
      Outcome& outcome = pair_.b.ended.at(receives_.front());
      got_.emplace_back(outcome.data.get(), outcome.data.get() + outcome.content.size_bytes);
      receives_.pop_front();
    }
  }

  Prng prng_;
  Pair pair_;
  std::deque<std::pair<Data, bool>> sent_;  // and whether it arrives
  std::map<std::uint64_t, std::size_t> sends_;
  std::deque<std::uint64_t> receives_;
  std::vector<Data> got_;
  std::uint64_t operations_ = 0;
};

TEST(EdgeRules, NothingIsLostOrReordered) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Life life(seed);
    for (unsigned number = 0; number < 600; ++number) life.step(number);
    life.finish();
  }
}

}  // namespace
}  // namespace hoplite::worlds
