// SPDX-License-Identifier: Apache-2.0
// Space in the arena: the three lines and which one passes which, the headroom, eviction, refusal
// after the grace, and that no two ranges ever overlap.
#include "plan/objects/inventory.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/prng.h"

namespace hoplite {
namespace {

constexpr Duration kGrace = 2_s;

class InventoryTest : public ::testing::Test {
 protected:
  static ObjectId name(std::uint64_t n) {
    return ObjectId{{static_cast<std::uint8_t>(n), static_cast<std::uint8_t>(n >> 8)}};
  }
  void request(std::uint64_t n, std::uint64_t size_bytes, Line line = Line::kPuts,
               std::uint64_t workspace_bytes = 0) {
    inventory_.request(name(n), {size_bytes, workspace_bytes}, line, now_);
  }
  template <typename T>
  std::optional<T> poll() {
    const auto next = inventory_.poll_admission(now_);
    inventory_.check_invariants();
    if (!next || !std::holds_alternative<T>(*next)) return std::nullopt;
    return std::get<T>(*next);
  }
  // Returns the object that is admitted next, or name(0) if there is none.
  ObjectId admitted() {
    const auto next = poll<Admitted>();
    return next ? next->object : name(0);
  }
  Extent admit(std::uint64_t n, std::uint64_t size_bytes, Line line = Line::kPuts) {
    request(n, size_bytes, line);
    const auto next = poll<Admitted>();
    EXPECT_TRUE(next && next->object == name(n));
    return next ? next->extent : Extent{};
  }
  void release(const Extent& extent) {
    inventory_.release(extent, now_);
    inventory_.check_invariants();
  }
  // No two of them overlap, and all lie within the arena.
  void expect_apart(const std::vector<const std::map<ObjectId, Extent>*>& holders) {
    std::map<std::uint64_t, std::uint64_t> ranges;
    for (const auto* extents : holders) {
      for (const auto& [id, extent] : *extents) {
        ASSERT_TRUE(ranges.emplace(extent.offset, extent.size_bytes).second);
      }
    }
    std::uint64_t end = 0;
    for (const auto& [offset, size_bytes] : ranges) {
      ASSERT_GE(offset, end);
      end = offset + size_bytes;
    }
    ASSERT_LE(end, inventory_.capacity_bytes());
  }
  void pass(Duration time) { now_ = now_ + time; }

  Instant now_{1};
  Inventory inventory_{1_MiB, kGrace};  // 896 KiB for puts and copies, 128 KiB for folds only
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
  EXPECT_EQ(admit(4, 896_KiB).offset, 0U) << "all of it is whole again";
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
  request(3, 100_KiB);
  EXPECT_FALSE(inventory_.poll_admission(now_)) << "3 would fit, and waits its turn";
  EXPECT_TRUE(inventory_.is_waiting(name(2)));
  release(most);
  EXPECT_EQ(admitted(), name(2));
  EXPECT_EQ(admitted(), name(3));
  EXPECT_FALSE(inventory_.is_waiting(name(3)));
}

// ---- the headroom ----

TEST_F(InventoryTest, KeepsAnEighthForFoldsHoweverFullItIs) {
  EXPECT_FALSE(inventory_.can_hold({900_KiB, 0}, Line::kPuts));
  EXPECT_FALSE(inventory_.can_hold({900_KiB, 0}, Line::kCopies));
  admit(1, 896_KiB);
  request(2, 65_KiB, Line::kPuts);
  request(3, 65_KiB, Line::kCopies);
  EXPECT_FALSE(inventory_.poll_admission(now_)) << "the last eighth is not for them";
  EXPECT_EQ(admit(4, 128_KiB, Line::kFolds).offset, 896_KiB);
}

TEST_F(InventoryTest, GivesAFoldItsResultAndItsWorkspaceTogetherOrNeither) {
  EXPECT_TRUE(inventory_.can_hold({896_KiB, 128_KiB}, Line::kFolds));
  EXPECT_FALSE(inventory_.can_hold({897_KiB, 65_KiB}, Line::kFolds));
  const Extent most = admit(1, 800_KiB);
  request(2, 120_KiB, Line::kFolds, 120_KiB);
  EXPECT_FALSE(inventory_.poll_admission(now_));
  EXPECT_EQ(inventory_.used_bytes(), 800_KiB) << "it does not sit on half of what it needs";
  release(most);
  const auto both = poll<Admitted>();
  ASSERT_TRUE(both && both->workspace);
  EXPECT_EQ(inventory_.used_bytes(), 240_KiB);
  release(both->extent);
  release(*both->workspace);
}

TEST_F(InventoryTest, LetsFoldsPassWhoWaitsForMore) {
  admit(1, 768_KiB);
  request(2, 512_KiB);
  request(3, 512_KiB, Line::kCopies);
  EXPECT_EQ(admit(4, 128_KiB, Line::kFolds).offset, 896_KiB);
}

TEST_F(InventoryTest, LendsWhatIsFreeButNotBeforeAFoldThatWaits) {
  admit(1, 768_KiB);
  request(2, 512_KiB);
  const auto borrowed = inventory_.borrow(100_KiB);
  ASSERT_TRUE(borrowed);
  EXPECT_EQ(borrowed->offset, 896_KiB) << "a put that waits could not have it";
  request(3, 128_KiB, Line::kFolds, 128_KiB);
  EXPECT_FALSE(inventory_.poll_admission(now_));
  EXPECT_FALSE(inventory_.borrow(4_KiB));
  inventory_.release_borrowed(*borrowed);
  EXPECT_EQ(admitted(), name(3));
  EXPECT_FALSE(inventory_.borrow(4_KiB)) << "there is no more";
}

TEST(Inventory, LetsNoPutWaitWhereThatIsNotWantedButCopiesAndFoldsDo) {
  Inventory inventory(1_MiB, 2_s, WhenFull::kFail);
  const Instant now{1};
  const auto name = [](std::uint8_t n) {
    ObjectId id;
    id.bytes[0] = n;
    return id;
  };
  inventory.request(name(1), {768_KiB, 0}, Line::kPuts, now);
  const auto first = inventory.poll_admission(now);
  ASSERT_TRUE(first && std::holds_alternative<Admitted>(*first));
  inventory.request(name(2), {512_KiB, 0}, Line::kCopies, now);
  EXPECT_FALSE(inventory.poll_admission(now));
  inventory.request(name(3), {64_KiB, 0}, Line::kPuts, now);
  const auto refused = inventory.poll_admission(now);
  ASSERT_TRUE(refused && std::holds_alternative<Refused>(*refused));
  EXPECT_EQ(std::get<Refused>(*refused).object, name(3));
  EXPECT_FALSE(inventory.poll_admission(now)) << "the copy waits on";
  EXPECT_TRUE(inventory.is_waiting(name(2)));
}

// ---- which line passes which ----

TEST_F(InventoryTest, LetsACopyPassAPutThatWaitsForItsConsumerMayBeWhoFrees) {
  const Extent most = admit(1, 768_KiB);
  request(2, 512_KiB, Line::kPuts);
  EXPECT_FALSE(inventory_.poll_admission(now_));
  request(3, 100_KiB, Line::kCopies);
  EXPECT_EQ(admitted(), name(3));
  release(most);
  EXPECT_EQ(admitted(), name(2));
}

TEST_F(InventoryTest, LetsNoPutPassAnOlderCopy) {
  admit(1, 768_KiB);
  request(2, 512_KiB, Line::kCopies);
  request(3, 100_KiB, Line::kPuts);
  EXPECT_FALSE(inventory_.poll_admission(now_));
  inventory_.cancel(name(2), now_);
  EXPECT_EQ(admitted(), name(3));
}

TEST_F(InventoryTest, HoldsCopiesBackForAPutThatWaitsLongAsLongAsMemoryIsFreed) {
  const Extent most = admit(1, 512_KiB);
  const Extent some = admit(2, 256_KiB);
  request(3, 500_KiB, Line::kPuts);
  EXPECT_FALSE(inventory_.poll_admission(now_));
  pass(kGrace);
  release(some);  // it is on its way: what comes free now is kept together
  request(4, 100_KiB, Line::kCopies);
  EXPECT_FALSE(inventory_.poll_admission(now_));
  EXPECT_EQ(inventory_.poll_timeout(), now_ + Duration{kGrace.ns / 2});
  pass({kGrace.ns / 2});
  EXPECT_EQ(admitted(), name(4)) << "nothing comes any more; perhaps its consumer frees";
  release(most);
  EXPECT_EQ(admitted(), name(3));
}

// ---- eviction ----

TEST_F(InventoryTest, EvictsTheLongestIdleFirstAndOnlyAsManyAsItMust) {
  const Extent one = admit(1, 320_KiB);
  const Extent two = admit(2, 320_KiB);
  admit(3, 256_KiB);
  inventory_.mark_evictable(name(1), one, Rank::kCopy);
  inventory_.mark_evictable(name(2), two, Rank::kCopy);
  inventory_.mark_evictable(name(1), one, Rank::kCopy);  // used again since
  EXPECT_EQ(inventory_.evictable_bytes(), 640_KiB);
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

// The range of a copy may come later, when no closed receive writes there any more.
TEST_F(InventoryTest, EvictsNoOtherCopyWhileTheRangeOfOneIsToCome) {
  const Extent one = admit(1, 320_KiB);
  const Extent two = admit(2, 320_KiB);
  const Extent three = admit(3, 256_KiB);
  inventory_.mark_evictable(name(1), one, Rank::kCopy);
  inventory_.mark_evictable(name(2), two, Rank::kCopy);
  request(4, 300_KiB);
  EXPECT_EQ(poll<Evict>()->object, name(1));
  EXPECT_FALSE(inventory_.poll_admission(now_));
  release(three);
  EXPECT_FALSE(inventory_.poll_admission(now_)) << "it is another range";
  release(one);
  EXPECT_EQ(poll<Admitted>()->object, name(4));
}

TEST_F(InventoryTest, EvictsOrphansBeforeAnyOtherCopy) {
  const Extent one = admit(1, 320_KiB);
  const Extent two = admit(2, 320_KiB);
  admit(3, 256_KiB);
  inventory_.mark_evictable(name(1), one, Rank::kCopy);
  inventory_.mark_evictable(name(2), two, Rank::kOrphan);
  request(4, 300_KiB);
  EXPECT_EQ(poll<Evict>()->object, name(2)) << "though it was used last";
}

TEST_F(InventoryTest, EvictsNothingForWhoWouldNotFitAnyway) {
  const Extent one = admit(1, 200_KiB);
  const Extent two = admit(2, 500_KiB);
  inventory_.mark_evictable(name(1), one, Rank::kCopy);
  request(3, 500_KiB);
  EXPECT_FALSE(inventory_.poll_admission(now_));
  EXPECT_EQ(inventory_.rank(name(1)), Rank::kCopy);
  release(two);
  EXPECT_TRUE(poll<Admitted>());
}

// ---- refusal ----

TEST_F(InventoryTest, RefusesTheOldestHeadAfterAGraceWithoutProgress) {
  admit(1, 700_KiB);
  const Extent rest = admit(2, 128_KiB);
  request(3, 512_KiB);
  request(4, 65_KiB);
  pass({kGrace.ns - 1});
  EXPECT_FALSE(inventory_.poll_admission(now_));
  release(rest);  // progress: the grace begins anew
  pass({kGrace.ns - 1});
  EXPECT_FALSE(inventory_.poll_admission(now_));
  EXPECT_EQ(inventory_.poll_timeout(), now_ + Duration{1});
  pass({1});
  const auto refused = poll<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->object, name(3));
  EXPECT_EQ(refused->size_bytes, 512_KiB);
  EXPECT_EQ(admitted(), name(4)) << "who waited behind it fits";
  EXPECT_FALSE(inventory_.poll_timeout());
}

TEST_F(InventoryTest, RefusesWhoHasWaitedAsLongRightAfterwards) {
  admit(1, 800_KiB);
  request(2, 512_KiB);
  request(3, 600_KiB);
  pass({kGrace.ns / 2});
  request(4, 512_KiB);
  pass({kGrace.ns / 2});
  EXPECT_EQ(poll<Refused>()->object, name(2));
  EXPECT_EQ(poll<Refused>()->object, name(3));
  EXPECT_FALSE(inventory_.poll_admission(now_)) << "4 has half of its grace left";
  EXPECT_EQ(inventory_.poll_timeout(), now_ + Duration{kGrace.ns / 2});
}

TEST_F(InventoryTest, WaitsLongerWhileBlocksLandButNotForEver) {
  admit(1, 800_KiB);
  request(2, 512_KiB);
  for (int i = 0; i < 19; ++i) {
    pass({kGrace.ns / 2});
    inventory_.note_progress(now_);  // a copy grows: its waiting client may delete something later
    EXPECT_FALSE(inventory_.poll_admission(now_));
  }
  pass({kGrace.ns / 2});
  inventory_.note_progress(now_);
  EXPECT_TRUE(poll<Refused>()) << "ten graces without a deletion";
}

// A home asks for a copy again and again, while the copy's sender lacks a part.
TEST_F(InventoryTest, WaitsNoLongerForWhatWasGivenSinceAndIsFreed) {
  admit(1, 600_KiB);
  const Extent before = admit(2, 100_KiB, Line::kCopies);
  request(3, 512_KiB);
  const auto come_and_go = [&] {
    pass({kGrace.ns / 2});  // after it, the put holds no copy back
    const Extent copy = admit(4, 100_KiB, Line::kCopies);
    pass({kGrace.ns / 2});
    release(copy);
    EXPECT_FALSE(inventory_.poll_admission(now_));
  };
  for (int i = 0; i < 9; ++i) come_and_go();
  release(before);  // which was there, so that the put waits for ten graces more
  for (int i = 0; i < 9; ++i) come_and_go();
  pass(kGrace);
  EXPECT_TRUE(poll<Refused>());
}

TEST_F(InventoryTest, ForgetsAWithdrawnRequest) {
  admit(1, 768_KiB);
  request(2, 512_KiB);
  request(3, 128_KiB);
  inventory_.cancel(name(2), now_);
  EXPECT_FALSE(inventory_.is_waiting(name(2)));
  EXPECT_EQ(admitted(), name(3));
}

// Random requests, releases, uses and withdrawals over many seeds: ranges never overlap (checked
// here), the numbers add up (checked inside), and in the end the arena is whole.
TEST_F(InventoryTest, NeverGivesAByteTwice) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    inventory_ = Inventory(1_MiB, kGrace);
    std::map<ObjectId, Extent> held;
    std::map<ObjectId, Extent> extras;  // workspaces
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
          request(step, random_size(), static_cast<Line>(random.below(kLineCount)),
                  random.chance(20) ? random.below(100_KiB) : 0);
          break;
        case 2:
          inventory_.cancel(name(random.below(step)), now_);
          break;
        case 3:
          if (any == held.end() || extras.contains(any->first)) break;
          inventory_.mark_evictable(any->first, any->second,
                                    random.chance(30) ? Rank::kOrphan : Rank::kCopy);
          break;
        default:
          if (any == held.end()) break;
          inventory_.mark_needed(any->first);
          release(any->second);
          if (const auto more = extras.find(any->first); more != extras.end()) {
            release(more->second);
            extras.erase(more);
          }
          held.erase(any);
      }
      while (const auto next = inventory_.poll_admission(now_)) {
        if (const auto* evict = std::get_if<Evict>(&*next)) {
          release(held.at(evict->object));
          held.erase(evict->object);
        } else if (const auto* admitted = std::get_if<Admitted>(&*next)) {
          ASSERT_TRUE(held.emplace(admitted->object, admitted->extent).second);
          if (admitted->workspace) extras.emplace(admitted->object, *admitted->workspace);
        }
        inventory_.check_invariants();
      }
      expect_apart({&held, &extras});
    }
    for (const auto& [id, extent] : held) {
      inventory_.mark_needed(id);
      release(extent);
    }
    for (const auto& [id, extent] : extras) release(extent);
    EXPECT_EQ(inventory_.used_bytes(), 0U);
  }
}

}  // namespace
}  // namespace hoplite
