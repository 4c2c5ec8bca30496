// SPDX-License-Identifier: Apache-2.0
// The one admission rule: a rail takes a block if it is the fastest, or would finish it before the
// fastest would.
#include "plan/links/rails.h"

#include <gtest/gtest.h>

#include <array>

namespace hoplite {
namespace {

constexpr NodeId kPeer{2};
constexpr std::uint64_t kBlock = 64_KiB;

// Rails of given speeds which send what they are given, one block after the other.
class RailsTest : public ::testing::Test {
 protected:
  void connect(const std::vector<std::uint64_t>& bytes_per_us) {
    speeds_ = bytes_per_us;
    free_at_.assign(speeds_.size(), now_);
    blocks_.assign(speeds_.size(), 0);
    rails_.handle_link_up(kPeer, speeds_.size());
  }
  bool offer() {
    EXPECT_EQ(rails_.has_room(kPeer, kBlock), probe());
    const auto rail = rails_.take(kPeer, kBlock, now_);
    rails_.check_invariants();
    if (!rail) return false;
    ++blocks_[rail->value];
    Instant& free = free_at_[rail->value];
    free = std::max(free, now_) +
           Duration{static_cast<std::int64_t>(kBlock * 1000 / speeds_[rail->value])};
    sent_.emplace(free, *rail);
    return true;
  }
  // Offers `count` blocks as fast as they are taken.
  void send(int count) {
    while (count > 0 || !sent_.empty()) {
      while (count > 0 && offer()) --count;
      ASSERT_FALSE(sent_.empty()) << "refused by idle rails";
      const auto first = sent_.begin();
      now_ = std::max(now_, first->first);
      rails_.handle_sent({kPeer, first->second, kBlock}, now_);
      sent_.erase(first);
    }
  }
  [[nodiscard]] bool probe() const {
    Rails copy = rails_;
    return copy.take(kPeer, kBlock, now_).has_value();
  }

  Rails rails_{8 * kBlock, kLinkBytesPerS};
  Instant now_{1'000'000};
  std::vector<std::uint64_t> speeds_;
  std::vector<Instant> free_at_;
  std::vector<int> blocks_;
  std::multimap<Instant, RailId> sent_;
};

TEST_F(RailsTest, TakeNothingWhileTheLinkIsDown) {
  EXPECT_FALSE(rails_.take(kPeer, kBlock, now_));
  EXPECT_FALSE(rails_.has_room(kPeer, kBlock));
  connect({100});
  EXPECT_TRUE(offer());
  rails_.handle_link_down(kPeer);
  EXPECT_FALSE(rails_.take(kPeer, kBlock, now_));
  rails_.handle_sent({kPeer, RailId{0}, kBlock}, now_);  // of the link's earlier life: no effect
  connect({100});
  EXPECT_TRUE(offer());
}

TEST_F(RailsTest, OneRailTakesNoMoreThanKeepsItBusy) {
  connect({100});
  int taken = 0;
  while (offer()) ++taken;
  EXPECT_EQ(taken, 4) << "256 KiB";
  send(100);
  EXPECT_EQ(blocks_[0], 104);
  connect({100});
  for (taken = 0; rails_.take(kPeer, 4 * kBlock, now_);) ++taken;
  EXPECT_EQ(taken, 2) << "of larger ones two";
}

// Blocks that wait in its queue can't make way for others, and a slow rail takes long to send them.
TEST_F(RailsTest, ASlowRailTakesNoMoreBytesThanAFastOneInTheSameTime) {
  const auto takes = [](std::uint64_t bytes_per_s) {
    Rails rails(8 * kBlock, bytes_per_s);
    rails.handle_link_up(kPeer, 1);
    int taken = 0;
    while (rails.take(kPeer, kBlockBytesMin, {})) ++taken;
    return taken;
  };
  EXPECT_EQ(takes(kLinkBytesPerS), 32) << "256 KiB";
  EXPECT_EQ(takes(kLinkBytesPerS / 5), 6);
  EXPECT_EQ(takes(kLinkBytesPerS / 100), 2) << "they keep it busy";
}

// Otherwise the actions for blocks of one byte would all stand in front of the next reply.
TEST_F(RailsTest, SmallBlocksAreQueuedByTheirNumber) {
  connect({1000});
  std::size_t count = 0;
  while (rails_.take(kPeer, 1, now_)) ++count;
  rails_.check_invariants();
  EXPECT_LE(count, 8 * kBlock / kBlockBytesMin);
  rails_.handle_sent({kPeer, RailId{0}, 1}, now_);
  EXPECT_TRUE(rails_.take(kPeer, 1, now_));
  EXPECT_FALSE(rails_.take(kPeer, 1, now_));
}

TEST_F(RailsTest, TakesABlockLargerThanItsQueueWhenItIsIdle) {
  connect({100});
  EXPECT_TRUE(rails_.take(kPeer, 9 * kBlock, now_));
  EXPECT_FALSE(rails_.has_room(kPeer, kBlock));
}

TEST_F(RailsTest, EqualRailsShareEqually) {
  connect({100, 100});
  send(1000);
  EXPECT_NEAR(blocks_[0], 500, 25);
}

TEST_F(RailsTest, TriesEveryRailOnceWhenNothingIsKnown) {
  connect({100, 100, 100});
  send(30);
  for (const int blocks : blocks_) EXPECT_GT(blocks, 0);
}

TEST_F(RailsTest, UnequalRailsShareByTheirSpeed) {
  connect({500, 100});
  const Instant start = now_;
  send(1200);
  EXPECT_NEAR(blocks_[1], 200, 30);
  const double seconds = static_cast<double>((now_ - start).ns) / 1e9;
  const double rate = 1200.0 * kBlock / seconds;
  EXPECT_GT(rate, 1.12 * 500e6) << "two rails, 5:1: at least 1.12 of the possible 1.20";
}

TEST_F(RailsTest, ASlowRailIsLeftAloneWhereItWouldOnlyDelay) {
  connect({500, 1});
  send(100);
  const int before = blocks_[1];
  send(10);
  EXPECT_EQ(blocks_[1], before) << "the fast rail is done sooner with all of them";
}

}  // namespace
}  // namespace hoplite
