// SPDX-License-Identifier: Apache-2.0
// The order in which a node hears what has come.
#include "sim/model/inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/cluster/cluster_node.h"

namespace hoplite::sim {
namespace {

using Lane = Origin::Lane;
using Link = Origin::Link;
constexpr NodeId kA{1}, kB{2};
constexpr Instant kNow{1};

class InboxTest : public testing::Test {
 protected:
  void add(char name, NodeId peer, Lane lane, Link link = Link::kStays, std::uint64_t bytes = 0) {
    inbox_.add({[this, name](ClusterNode&) { heard_ += name; }, {lane, peer, bytes, link}});
  }
  // Returns the events of one turn.
  std::string turn(Instant now = kNow, Duration stretch_max = 1_s) {
    heard_.clear();
    for (const auto& item : inbox_.take(limits_, stretch_max, now, prng_)) item.deed(node_);
    return heard_;
  }
  std::string turns(Instant now = kNow) {
    std::string all;
    while (inbox_.next_at(now) == now) all += turn(now);
    return all;
  }

  Inbox inbox_;
  TurnLimits limits_;
  Prng prng_{1};
  std::string heard_;
  ClusterNode node_;
};

TEST_F(InboxTest, KeepsTheOrderOfEachStreamAndOfNotices) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    prng_ = Prng(seed);
    inbox_.clear();
    add('a', kA, Lane::kControl);
    add('X', kA, Lane::kBulk);
    add('b', kA, Lane::kControl);
    add('Y', kA, Lane::kBulk);
    add('|', kA, Lane::kNotice);
    add('c', kA, Lane::kControl);
    const std::string all = turns();
    EXPECT_TRUE(all == "abXY|c" || all == "XYab|c") << all;
  }
}

TEST_F(InboxTest, HearsItsFavouriteFirstAndOthersWhenTheStretchIsOver) {
  bool was_alone = false, was_first = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    prng_ = Prng(seed);
    inbox_.clear();
    for (int i = 0; i < 3; ++i) {
      add('a', kA, Lane::kControl);
      add('b', kB, Lane::kControl);
    }
    std::string all = turns();
    EXPECT_TRUE(all.starts_with("aaa") || all.starts_with("bbb")) << all;
    was_first = was_first || all.size() == 6;
    was_alone = was_alone || all.size() == 3;
    all += turns(inbox_.next_at(kNow).value_or(kNow));
    EXPECT_EQ(std::ranges::count(all, 'a'), 3);
    EXPECT_EQ(std::ranges::count(all, 'b'), 3);
  }
  EXPECT_TRUE(was_alone && was_first);
}

TEST_F(InboxTest, ATurnReadsNoMoreThanItMay) {
  limits_ = {.commands_max = 2, .actions_max = 1, .bytes_max = 200};
  for (int i = 0; i < 3; ++i) add('c', {}, Lane::kLocal);
  EXPECT_EQ(turn(), "cc");
  EXPECT_EQ(turn(), "c");
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    prng_ = Prng(seed);
    inbox_.clear();
    for (int i = 0; i < 5; ++i) add('B', kA, Lane::kBulk, Link::kStays, 60);
    EXPECT_LE(turn().size(), 2U) << "100 bytes come in";
  }
}

TEST_F(InboxTest, ABatchEndsBeforeALinkGoesDownThatWentUpInIt) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    prng_ = Prng(seed);
    inbox_.clear();
    add('d', kA, Lane::kNotice, Link::kGoesDown);
    add('u', kA, Lane::kNotice, Link::kGoesUp);
    add('D', kA, Lane::kNotice, Link::kGoesDown);
    const std::string first = turn();
    EXPECT_TRUE(first == "d" || first == "du") << first;
  }
}

}  // namespace
}  // namespace hoplite::sim
