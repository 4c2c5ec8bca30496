// SPDX-License-Identifier: Apache-2.0
#include "wire/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/prng.h"

namespace hoplite {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32c, GivesTheKnownVectors) {  // RFC 3720, B.4, and the customary check value
  std::vector<std::byte> ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::byte>(i);
  const std::vector<std::byte> zeros(32);
  const std::vector<std::byte> ones(32, std::byte{0xff});
  for (const auto& crc : {crc32c, crc32c_table}) {
    EXPECT_EQ(crc(bytes_of("123456789"), 0), 0xe3069283U);
    EXPECT_EQ(crc(zeros, 0), 0x8a9136aaU);
    EXPECT_EQ(crc(ones, 0), 0x62a8ab43U);
    EXPECT_EQ(crc(ascending, 0), 0x46dd794eU);
    EXPECT_EQ(crc({}, 0), 0U);
  }
}

TEST(Crc32c, InstructionsAndTableAgreeOnEveryLengthAndStart) {
  Prng prng(1);
  std::vector<std::byte> bytes(2 * 3 * 512 + 100);  // twice what is taken in lanes, and a rest
  for (auto& byte : bytes) byte = static_cast<std::byte>(prng.next());
  for (std::size_t start = 0; start < 8; ++start) {
    for (std::size_t size = 0; start + size <= bytes.size(); ++size) {
      const auto part = std::span(bytes).subspan(start, size);
      ASSERT_EQ(crc32c(part), crc32c_table(part)) << start << " " << size;
    }
  }
}

TEST(Crc32c, PartsGiveTheCrcOfTheWhole) {
  std::vector<std::byte> bytes(100, std::byte{7});
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    const auto whole = std::span<const std::byte>(bytes);
    EXPECT_EQ(crc32c(whole.subspan(cut), crc32c(whole.first(cut))), crc32c(whole));
  }
}

TEST(Crc32c, CombinesTheCrcsOfTwoParts) {
  Prng prng(2);
  std::vector<std::byte> bytes(5000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(prng.next());
  const auto whole = std::span<const std::byte>(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    EXPECT_EQ(
        combine_crc32c(crc32c(whole.first(cut)), crc32c(whole.subspan(cut)), bytes.size() - cut),
        crc32c(whole));
  }
}

}  // namespace
}  // namespace hoplite
