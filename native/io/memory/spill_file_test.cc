// SPDX-License-Identifier: Apache-2.0
#include "io/memory/spill_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <vector>

namespace hoplite {
namespace {

const std::string kDirectory = std::filesystem::temp_directory_path();

std::vector<std::byte> bytes(std::size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

TEST(SpillFile, GivesBackWhatWasWrittenAndHasNoName) {
  std::string directory = kDirectory + "/hoplite-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);  // another run may be at the same test
  auto file = SpillFile::open(directory);
  ASSERT_TRUE(file) << file.error().text;
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove(directory);
  ASSERT_TRUE(file->write(bytes(10'000, 1), 0));
  ASSERT_TRUE(file->write(bytes(10'000, 2), 10'000));
  file->free({0, 10'000});
  auto read = bytes(10'000, 0);
  ASSERT_TRUE(file->read(read, 10'000));
  EXPECT_EQ(read, bytes(10'000, 2));
}

TEST(SpillFile, SaysWhereNoFileCanBe) {
  auto file = SpillFile::open("/nowhere");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Code::kInvalidArgument);
  EXPECT_NE(file.error().text.find("/nowhere"), std::string::npos) << file.error().text;
  EXPECT_NE(file.error().text.find("errno 2"), std::string::npos) << file.error().text;
}

TEST(SpillFile, SaysThatNoMoreGoesInAndThatAReadFindsNothing) {
  auto file = SpillFile::open(kDirectory);
  ASSERT_TRUE(file) << file.error().text;
  auto none = bytes(10, 0);
  const auto read = file->read(none, 0);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().text.find("reading 10 bytes from " + kDirectory), std::string::npos);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto written = file->write(bytes(10'000, 1), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().text.find("errno 27"), std::string::npos) << written.error().text;
}

}  // namespace
}  // namespace hoplite
