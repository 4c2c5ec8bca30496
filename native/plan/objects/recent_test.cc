// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/recent.h"

#include <gtest/gtest.h>

#include <vector>

namespace hoplite {
namespace {

constexpr Instant kStart{1'000'000};
constexpr std::size_t kMany = 10'000;

ObjectId object(std::uint64_t number) {
  ObjectId id{};
  for (std::size_t i = 0; i < 8; ++i) {
    id.bytes[i] = static_cast<std::uint8_t>(number >> (56 - 8 * i));
  }
  return id;
}

TEST(RecentObjects, CoversTheNewestAttemptThatWasNotedAndAllBeforeIt) {
  RecentObjects recent(1_s, kMany);
  EXPECT_FALSE(recent.contains(object(1)));
  recent.note(object(1), Incarnation{5}, kStart);
  recent.note(object(1), Incarnation{3}, kStart);
  EXPECT_TRUE(recent.covers(object(1), Incarnation{4}));
  EXPECT_TRUE(recent.covers(object(1), Incarnation{5}));
  EXPECT_FALSE(recent.covers(object(1), Incarnation{6}));
  EXPECT_FALSE(recent.covers(object(2), Incarnation{0}));
}

TEST(RecentObjects, ForgetsEachWhenItsLifeIsOver) {
  RecentObjects recent(1_s, kMany);
  EXPECT_FALSE(recent.poll_timeout());
  recent.note(object(1), Incarnation{1}, kStart);
  recent.note(object(2), Incarnation{1}, kStart + 400_ms);
  EXPECT_EQ(recent.poll_timeout(), kStart + 1_s);
  recent.handle_timeout(kStart + 999_ms);
  EXPECT_TRUE(recent.contains(object(1)));
  recent.handle_timeout(kStart + 1_s);
  EXPECT_FALSE(recent.contains(object(1)));
  EXPECT_TRUE(recent.contains(object(2)));
  EXPECT_EQ(recent.poll_timeout(), kStart + 1_s + 400_ms);
}

TEST(RecentObjects, BeginsALifeAnewWhenItIsNotedAgain) {
  RecentObjects recent(1_s, kMany);
  recent.note(object(1), Incarnation{1}, kStart);
  recent.note(object(1), Incarnation{1}, kStart + 500_ms);
  recent.handle_timeout(kStart + 1_s);
  EXPECT_TRUE(recent.contains(object(1)));
  recent.handle_timeout(kStart + 1_s + 500_ms);
  EXPECT_FALSE(recent.contains(object(1)));
  EXPECT_FALSE(recent.poll_timeout());
}

TEST(RecentObjects, RemembersTheNewestWhateverItsNumberAndHoweverManyThereAre) {
  RecentObjects recent(1_s, kMany);
  for (std::uint64_t number = 10'000; number > 0; --number) {
    recent.note(object(number), Incarnation{1}, kStart);
  }
  EXPECT_TRUE(recent.contains(object(1)));
  EXPECT_TRUE(recent.contains(object(10'000)));
}

TEST(RecentObjects, ForgetsTheOldestBeyondItsBoundAndKnowsThatItDid) {
  RecentObjects recent(1_s, 2);
  recent.note(object(1), Incarnation{1}, kStart);
  recent.note(object(2), Incarnation{1}, kStart + 100_ms);
  recent.note(object(1), Incarnation{1}, kStart + 200_ms);
  EXPECT_FALSE(recent.is_short(kStart + 200_ms));
  recent.note(object(3), Incarnation{1}, kStart + 300_ms);
  EXPECT_FALSE(recent.contains(object(2))) << "the oldest, for 1 was noted again";
  EXPECT_EQ(recent.size(), 2U);
  EXPECT_TRUE(recent.is_short(kStart + 1_s));
  EXPECT_FALSE(recent.is_short(kStart + 1_s + 100_ms)) << "2 would be forgotten now anyhow";
}

TEST(RecentObjects, IsToldToForgetOne) {
  RecentObjects recent(1_s, kMany);
  recent.note(object(1), Incarnation{1}, kStart);
  recent.note(object(2), Incarnation{1}, kStart);
  recent.forget(object(1));
  recent.note(object(1), Incarnation{1}, kStart + 500_ms);
  recent.handle_timeout(kStart + 1_s);
  std::vector<ObjectId> left;
  recent.for_each([&](const ObjectId& id, Incarnation) { left.push_back(id); });
  EXPECT_EQ(left, std::vector<ObjectId>{object(1)});
}

}  // namespace
}  // namespace hoplite
