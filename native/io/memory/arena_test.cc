// SPDX-License-Identifier: Apache-2.0
// The rules of design decision 6, one test each; docs/internals/gotchas.md has their lines.
#include "io/memory/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace hoplite {
namespace {

constexpr std::uint64_t kSize = 4_MiB;
const std::uint64_t kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

Arena open_arena() {
  auto arena = Arena::open(kSize);
  HOPLITE_CHECK(arena.has_value());
  return std::move(*arena);
}

std::byte byte(int value) { return static_cast<std::byte>(value); }

TEST(Arena, HasNoNameOnDisk) {
  const Arena arena = open_arena();
  struct stat status{};
  ASSERT_EQ(::fstat(arena.writable_fd(), &status), 0);
  EXPECT_EQ(status.st_nlink, 0U);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), kSize);
}

TEST(Arena, TakesNoMemoryBeforeItIsWritten) {
  const Arena arena = open_arena();
  struct stat status{};
  ASSERT_EQ(::fstat(arena.writable_fd(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  arena.at({0, 1})[0] = byte(1);
  ASSERT_EQ(::fstat(arena.writable_fd(), &status), 0);
  EXPECT_GT(status.st_blocks, 0);
}

TEST(Arena, CannotBeTruncatedOrGrownByAnyHolderOfADescriptor) {
  const Arena arena = open_arena();
  EXPECT_EQ(::ftruncate(arena.writable_fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(arena.writable_fd(), static_cast<off_t>(2 * kSize)), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Arena, ItsReadOnlyDescriptorAllowsNoWritesAndNoSharedWritableMapping) {
  const Arena arena = open_arena();
  EXPECT_EQ(::pwrite(arena.readonly_fd(), "x", 1, 0), -1);
  EXPECT_EQ(errno, EBADF);
  auto shared = Mapping::open(arena.readonly_fd(), 0, kPage, PROT_READ | PROT_WRITE, MAP_SHARED);
  EXPECT_FALSE(shared.has_value());
}

TEST(Arena, APrivateMappingOfItsReadOnlyDescriptorIsWritableAndSeenByNobodyElse) {
  const Arena arena = open_arena();
  arena.at({0, 1})[0] = byte(1);
  auto mine = Mapping::open(arena.readonly_fd(), 0, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  auto other = Mapping::open(arena.readonly_fd(), 0, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  ASSERT_TRUE(mine.has_value());
  ASSERT_TRUE(other.has_value());
  mine->bytes()[0] = byte(9);
  EXPECT_EQ(arena.at({0, 1})[0], byte(1));
  EXPECT_EQ(other->bytes()[0], byte(1));
}

TEST(Arena, APrivateMappingSeesLaterWritesUntilItsPageIsCopied) {
  // Why an object is mapped only once it is complete, and a range is reused only after the unpin.
  const Arena arena = open_arena();
  auto mine = Mapping::open(arena.readonly_fd(), 0, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  ASSERT_TRUE(mine.has_value());
  EXPECT_EQ(mine->bytes()[0], byte(0));
  arena.at({0, 1})[0] = byte(7);
  EXPECT_EQ(mine->bytes()[0], byte(7));
  mine->bytes()[1] = byte(1);
  arena.at({0, 1})[0] = byte(8);
  EXPECT_EQ(mine->bytes()[0], byte(7));
}

TEST(Arena, WhatAProducerWritesThroughTheDescriptorIsInTheSharedMapping) {
  const Arena arena = open_arena();
  const std::vector<char> text(100'000, 'x');
  ASSERT_EQ(::pwrite(arena.writable_fd(), text.data(), text.size(), 4096),
            static_cast<ssize_t>(text.size()));
  const auto bytes = arena.at({4096, text.size()});
  EXPECT_EQ(std::memcmp(bytes.data(), text.data(), text.size()), 0);
}

long minor_faults() {
  rusage usage{};
  HOPLITE_CHECK(::getrusage(RUSAGE_THREAD, &usage) == 0);
  return usage.ru_minflt;
}

TEST(Arena, PagesThatWereMappedByReadFaultsTakeWritesWithoutAFault) {
  const Arena arena = open_arena();
  std::ranges::fill(arena.at({0, kSize}), byte(1));
  auto window = Mapping::open(arena.writable_fd(), 0, kSize, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(window.has_value());
  ASSERT_EQ(::madvise(window->bytes().data(), kSize, MADV_POPULATE_READ), 0);
  const long before = minor_faults();
  for (std::uint64_t at = 0; at < kSize; at += kPage) {
    // The kernel writes, so that a sanitizer doesn't touch memory of its own.
    ASSERT_EQ(::syscall(SYS_getrandom, window->bytes().data() + at, 1, 0), 1);
  }
  EXPECT_LT(minor_faults() - before, static_cast<long>(kSize / kPage / 16));
}

TEST(Arena, ItsDescriptorsDoNotSurviveExec) {
  const Arena arena = open_arena();
  EXPECT_NE(::fcntl(arena.writable_fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(arena.readonly_fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Arena, RefusesSizesThatCannotBe) {
  for (const std::uint64_t size : {std::uint64_t{0}, kPage + 1, std::uint64_t{1} << 60}) {
    auto arena = Arena::open(size);
    ASSERT_FALSE(arena.has_value());
    EXPECT_EQ(arena.error().code, Code::kInvalidArgument);
    EXPECT_NE(arena.error().text.find("arena_bytes"), std::string::npos);
  }
}

TEST(Arena, KnowsWhatLiesInside) {
  const Arena arena = open_arena();
  EXPECT_TRUE(arena.contains({0, kSize}));
  EXPECT_TRUE(arena.contains({kSize, 0}));
  EXPECT_FALSE(arena.contains({1, kSize}));
  EXPECT_FALSE(arena.contains({~std::uint64_t{0}, 2}));
  EXPECT_DEATH(static_cast<void>(arena.at({kSize, 1})), "check failed");
}

}  // namespace
}  // namespace hoplite
