// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/newcomers.h"

#include <gtest/gtest.h>

#include <string>

#include "base/check.h"

namespace hoplite {
namespace {

constexpr std::size_t kMax = 4 * Newcomers::kKept;

class NewcomersTest : public ::testing::Test {
 protected:
  std::uint64_t add_newcomer(const std::string& from) {
    const auto address = parse_address(from + ":7000");
    HOPLITE_CHECK(address.has_value());
    newcomers_.add(++token_, *address);
    return token_;
  }

  Newcomers newcomers_{kMax};
  std::uint64_t token_ = 0;
};

TEST_F(NewcomersTest, TheAddressThatHasMostGivesItsOldestPlace) {
  add_newcomer("192.0.2.1");
  const std::uint64_t oldest = add_newcomer("192.0.2.2");
  while (!newcomers_.is_full()) add_newcomer("192.0.2.2");
  EXPECT_EQ(newcomers_.eviction_candidate(), oldest);
  newcomers_.remove(oldest);
  EXPECT_FALSE(newcomers_.is_full());
  add_newcomer("192.0.2.1");
  EXPECT_TRUE(newcomers_.is_full());
  EXPECT_EQ(newcomers_.eviction_candidate(), oldest + 1);
}

TEST_F(NewcomersTest, WhoHasFewKeepsThem) {
  for (int i = 0; !newcomers_.is_full(); ++i) add_newcomer("192.0.2." + std::to_string(1 + i % 4));
  EXPECT_EQ(newcomers_.eviction_candidate(), std::nullopt);
  newcomers_.remove(2);
  const std::uint64_t one_more_of_the_first = add_newcomer("192.0.2.1");
  EXPECT_EQ(newcomers_.eviction_candidate(), 1U);
  newcomers_.remove(one_more_of_the_first);
  newcomers_.remove(one_more_of_the_first);  // is gone already
  EXPECT_EQ(newcomers_.eviction_candidate(), std::nullopt);
}

TEST_F(NewcomersTest, ANetworkOfIPv6IsOneAddress) {
  const std::uint64_t oldest = add_newcomer("[2001:db8::1]");
  for (int i = 2; !newcomers_.is_full(); ++i) add_newcomer("[2001:db8::" + std::to_string(i) + "]");
  EXPECT_EQ(newcomers_.eviction_candidate(), oldest);
}

}  // namespace
}  // namespace hoplite
