// The arena as numbers: admission in order, eviction, refusal after the grace, and that no two
// ranges ever overlap. SPDX-License-Identifier: Apache-2.0
#include "plan/inventory.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/prng.h"

namespace hoplite {
namespace {

constexpr Duration kGrace = 2_s;

class InventoryTest : public ::testing::Test {
 protected:
  static ObjectId name(std::uint64_t n) {
    return ObjectId{{static_cast<std::uint8_t>(n), static_cast<std::uint8_t>(n >> 8)}};
  }
  void request(std::uint64_t n, std::uint64_t size_bytes) {
    inventory_.request(name(n), size_bytes, now_);
  }
  template <typename T>
  std::optional<T> poll() {
    const auto next = inventory_.poll_admission(now_);
    inventory_.check_invariants();
    if (!next || !std::holds_alternative<T>(*next)) return std::nullopt;
    return std::get<T>(*next);
  }
  Extent admit(std::uint64_t n, std::uint64_t size_bytes) {
    request(n, size_bytes);
    const auto admitted = poll<Admitted>();
    EXPECT_TRUE(admitted && admitted->object == name(n));
    return admitted ? admitted->extent : Extent{};
  }
  void release(const Extent& extent) {
    inventory_.release(extent, now_);
    inventory_.check_invariants();
  }

  Instant now_{1};
  Inventory inventory_{1_MiB, kGrace};
};

TEST_F(InventoryTest, GivesLargeObjectsWholePagesAndSmallOnesSlots) {
  const Extent large = admit(1, 100'001);
  EXPECT_EQ(large.offset % 4_KiB, 0U);
  EXPECT_EQ(large.size_bytes, 100'001U);
  EXPECT_EQ(inventory_.used_bytes(), 25 * 4_KiB);
  const Extent small = admit(2, 100);
  const Extent next = admit(3, 128);
  EXPECT_EQ(next.offset, small.offset + 128) << "the same slab, slots of a power of two";
  EXPECT_EQ(inventory_.used_bytes(), 25 * 4_KiB + 256);
  for (const Extent& extent : {large, small, next}) release(extent);
  EXPECT_EQ(inventory_.used_bytes(), 0U);
  EXPECT_EQ(admit(4, 1_MiB).offset, 0U) << "all of it is whole again";
}

TEST_F(InventoryTest, GivesAnEmptyObjectARangeOfItsOwn) {
  const Extent one = admit(1, 0);
  const Extent two = admit(2, 0);
  EXPECT_NE(one.offset, two.offset);
  release(one);
  release(two);
  EXPECT_EQ(inventory_.used_bytes(), 0U);
}

TEST_F(InventoryTest, AdmitsInTheOrderOfAskingAllOrNothing) {
  const Extent most = admit(1, 768_KiB);
  request(2, 512_KiB);
  request(3, 128_KiB);
  EXPECT_FALSE(inventory_.poll_admission(now_)) << "3 would fit, and waits its turn";
  EXPECT_TRUE(inventory_.is_waiting(name(2)));
  release(most);
  EXPECT_EQ(poll<Admitted>()->object, name(2));
  EXPECT_EQ(poll<Admitted>()->object, name(3));
  EXPECT_FALSE(inventory_.is_waiting(name(3)));
}

TEST_F(InventoryTest, EvictsTheLongestIdleFirstAndOnlyAsManyAsItMust) {
  const Extent one = admit(1, 384_KiB);
  const Extent two = admit(2, 384_KiB);
  admit(3, 256_KiB);
  inventory_.mark_evictable(name(1));
  inventory_.mark_evictable(name(2));
  inventory_.mark_evictable(name(1));  // used again since
  request(4, 300_KiB);
  EXPECT_EQ(poll<Evict>()->object, name(2));
  release(two);
  EXPECT_EQ(poll<Admitted>()->object, name(4));
  request(5, 300_KiB);
  inventory_.mark_needed(name(1));
  EXPECT_FALSE(inventory_.poll_admission(now_)) << "it is needed again";
  release(one);
  EXPECT_TRUE(poll<Admitted>());
}

TEST_F(InventoryTest, RefusesTheHeadOfTheLineAfterAGraceWithoutProgress) {
  const Extent most = admit(1, 768_KiB);
  const Extent rest = admit(2, 128_KiB);
  request(3, 512_KiB);
  request(4, 64_KiB + 1);
  now_ = now_ + Duration{kGrace.ns - 1};
  EXPECT_FALSE(inventory_.poll_admission(now_));
  release(rest);  // progress: the grace begins anew
  now_ = now_ + Duration{kGrace.ns - 1};
  EXPECT_FALSE(inventory_.poll_admission(now_));
  EXPECT_EQ(inventory_.poll_timeout(), now_ + Duration{1});
  now_ = now_ + Duration{1};
  const auto refused = poll<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->object, name(3));
  EXPECT_EQ(refused->size_bytes, 512_KiB);
  EXPECT_EQ(poll<Admitted>()->object, name(4)) << "who waited behind it fits";
  EXPECT_FALSE(inventory_.poll_timeout());
  release(most);
}

TEST_F(InventoryTest, ForgetsAWithdrawnRequest) {
  admit(1, 768_KiB);
  request(2, 512_KiB);
  request(3, 128_KiB);
  inventory_.cancel(name(2));
  EXPECT_FALSE(inventory_.is_waiting(name(2)));
  EXPECT_EQ(poll<Admitted>()->object, name(3));
}

// Random requests, releases, uses and withdrawals over many seeds: ranges never overlap (checked
// here), the numbers add up (checked inside), and in the end the arena is whole.
TEST_F(InventoryTest, NeverGivesAByteTwice) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    inventory_ = Inventory(1_MiB, kGrace);
    std::map<ObjectId, Extent> held;
    const auto random_size = [&] {
      return random.chance(60) ? random.below(64_KiB) : 64_KiB + random.below(300_KiB);
    };
    for (std::uint64_t step = 1; step <= 400; ++step) {
      now_ = now_ + Duration{static_cast<std::int64_t>(random.below(100'000'000))};
      const auto any =
          held.empty()
              ? held.end()
              : std::next(held.begin(), static_cast<std::ptrdiff_t>(random.below(held.size())));
      switch (random.below(5)) {
        case 0:
        case 1:
          request(step, random_size());
          break;
        case 2:
          inventory_.cancel(name(random.below(step)));
          break;
        case 3:
          if (any != held.end()) inventory_.mark_evictable(any->first);
          break;
        default:
          if (any == held.end()) break;
          inventory_.mark_needed(any->first);
          release(any->second);
          held.erase(any);
      }
      while (const auto next = inventory_.poll_admission(now_)) {
        if (const auto* evict = std::get_if<Evict>(&*next)) {
          release(held.at(evict->object));
          held.erase(evict->object);
        } else if (const auto* admitted = std::get_if<Admitted>(&*next)) {
          ASSERT_TRUE(held.emplace(admitted->object, admitted->extent).second);
        }
        inventory_.check_invariants();
      }
      std::map<std::uint64_t, std::uint64_t> ranges;
      for (const auto& [id, extent] : held) {
        ASSERT_TRUE(ranges.emplace(extent.offset, extent.size_bytes).second);
      }
      std::uint64_t end = 0;
      for (const auto& [offset, size_bytes] : ranges) {
        ASSERT_GE(offset, end);
        end = offset + size_bytes;
      }
      ASSERT_LE(end, inventory_.capacity_bytes());
    }
    for (const auto& [id, extent] : held) release(extent);
    EXPECT_EQ(inventory_.used_bytes(), 0U);
  }
}

}  // namespace
}  // namespace hoplite
