// SPDX-License-Identifier: Apache-2.0
// Pages that are made ahead of the bytes. Where the kernel makes no large ones, only idle pages
// come.
#include "node/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "base/must_test.h"

namespace hoplite {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kArena = 8 * kLargePage;
constexpr std::chrono::seconds kSoon{30};

class PagesTest : public ::testing::Test {
 protected:
  // How many small pages of the range are there.
  std::uint64_t count(Extent range) {
    const auto bytes = arena_.at(range);
    std::vector<unsigned char> residency(range.size_bytes / kPage);
    EXPECT_EQ(::mincore(bytes.data(), bytes.size(), residency.data()), 0);
    return static_cast<std::uint64_t>(
        std::ranges::count_if(residency, [](unsigned char page) { return (page & 1) != 0; }));
  }
  bool comes(Extent range) {
    const auto until = std::chrono::steady_clock::now() + kSoon;
    while (count(range) < range.size_bytes / kPage) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  // True if this kernel makes large pages of a memfd.
  static bool can_collapse() {
    Arena other = must(Arena::open(kLargePage));
    const auto bytes = other.at({0, kLargePage});
    bytes[0] = std::byte{1};
    constexpr int kCollapse = 25;
    return ::madvise(bytes.data(), bytes.size(), kCollapse) == 0;
  }

  Arena arena_{must(Arena::open(kArena))};
};

TEST_F(PagesTest, AnArenaTakesNoMemoryByItself) {
  const Pages pages(arena_, 0);
  EXPECT_EQ(count({0, kArena}), 0U);
}

TEST_F(PagesTest, IdlePagesComeFromTheStartOn) {
  const Pages pages(arena_, 3 * kLargePage);
  EXPECT_TRUE(comes({0, 3 * kLargePage}));
  EXPECT_EQ(count({3 * kLargePage, kArena - 3 * kLargePage}), 0U);
}

TEST_F(PagesTest, AWantedRangeGetsTheLargePagesThatLieInside) {
  if (!can_collapse()) GTEST_SKIP() << "this kernel makes no large pages of a memfd";
  Pages pages(arena_, 0);
  pages.want({kLargePage / 2, 3 * kLargePage});
  EXPECT_TRUE(comes({kLargePage, 2 * kLargePage}));
  EXPECT_EQ(count({0, kLargePage}), 0U) << "half of it is somebody else's";
  EXPECT_EQ(count({3 * kLargePage, kArena - 3 * kLargePage}), 0U);
}

TEST_F(PagesTest, BytesThatAreThereStay) {
  const auto bytes = arena_.at({0, 2 * kLargePage});
  bytes[0] = bytes[kLargePage + kPage] = std::byte{7};
  Pages pages(arena_, 2 * kLargePage);
  pages.want({0, 2 * kLargePage});
  EXPECT_TRUE(comes({kLargePage, kLargePage}));
  EXPECT_EQ(bytes[0], std::byte{7});
  EXPECT_EQ(bytes[kLargePage + kPage], std::byte{7});
  EXPECT_EQ(bytes[kLargePage], std::byte{0});
  EXPECT_EQ(count({kPage, kLargePage - kPage}), 0U) << "it was written before";
}

TEST_F(PagesTest, TakesNoMoreRangesThanItHasRoomFor) {
  Pages pages(arena_, 0);
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    pages.want({i % 2 * kLargePage, (2 + i % 3) * kLargePage});
  }
  EXPECT_EQ(count({5 * kLargePage, kArena - 5 * kLargePage}), 0U);
}

}  // namespace
}  // namespace hoplite
