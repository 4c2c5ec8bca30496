// SPDX-License-Identifier: Apache-2.0
// The rows of a delta, read and refused.
#include "delta/delta.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/must_test.h"
#include "base/prng.h"
#include "delta/delta_model_test.h"

namespace hoplite {
namespace {

using delta_model::ByteVector;
using delta_model::Ranges;

TEST(Delta, CutsEachRangeFromItsStart) {
  const Ranges ranges{{130, 2}, {64, 8}, {1, 1}};
  const std::vector<DeltaPlace> expected{
      {0, 64, 2}, {64, 64, 2}, {128, 2, 2}, {130, 64, 8}, {194, 1, 1}};
  EXPECT_EQ(must(cut_into_sections(ranges, 64)), expected);
  EXPECT_TRUE(must(cut_into_sections({}, 64)).empty());
}

TEST(Delta, ReadsItsRows) {
  Prng prng(1);
  const Ranges ranges{{600, 2}, {8, 8}};
  ByteVector base(608), whole(608);
  whole[0] = whole[598] = whole[607] = std::byte{9};  // elements 0, 299 and the last one
  const ByteVector bytes = delta_model::encode(base, whole, ranges, 1024);
  const Delta delta = must(Delta::open(bytes));
  EXPECT_EQ(delta.header().changed, 3U);
  EXPECT_EQ(delta.header().size_bytes, 608U);
  EXPECT_EQ(delta.header().base_crc, crc32c(base));
  EXPECT_EQ(delta.header().new_crc, crc32c(whole));
  ASSERT_EQ(delta.ranges().size(), 2U);
  EXPECT_EQ(delta.ranges()[1], ranges[1]);
  ASSERT_EQ(delta.sections().size(), 2U);
  const ByteVector gaps{std::byte{0}, std::byte{255}, std::byte{298 - 255}};
  EXPECT_TRUE(std::ranges::equal(delta.sections()[0].gaps, gaps));
  EXPECT_EQ(delta.sections()[0].values.size(), 4U);
  EXPECT_EQ(delta.sections()[1].gaps.size(), 1U);
  EXPECT_EQ(delta.sections()[1].values.size(), 8U);
}

// Returns a delta of 1,000 bytes in one range, whose header a test spoils.
template <typename Spoil>
Error refuse(Spoil spoil) {
  const ByteVector base(1000);
  ByteVector bytes = delta_model::encode(base, ByteVector(1000, std::byte{1}), {{1000, 2}}, 64);
  DeltaHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  spoil(header);
  std::memcpy(bytes.data(), &header, sizeof header);
  const auto opened = Delta::open(bytes);
  return opened ? Error{} : opened.error();
}

TEST(Delta, RefusesBytesThatBelongToNoSection) {
  const ByteVector base(100);
  ByteVector bytes = delta_model::encode(base, base, {{100, 2}}, 64);
  ASSERT_TRUE(Delta::open(bytes).has_value());
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(Delta::open(bytes).has_value());
  DeltaHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  ++header.payload_bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  EXPECT_FALSE(Delta::open(bytes).has_value());
}

TEST(Delta, RefusesAHeaderThatContradictsItself) {
  EXPECT_EQ(refuse([](DeltaHeader&) {}).code, Code::kOk);
  EXPECT_NE(refuse([](DeltaHeader& h) { h.magic = 0; }).text.find("no delta"), std::string::npos);
  EXPECT_NE(refuse([](DeltaHeader& h) { h.version = 2; }).text.find("format 2"), std::string::npos);
  const std::vector<void (*)(DeltaHeader&)> spoils{
      [](DeltaHeader& h) { h.range_count = 0xffff; },
      [](DeltaHeader& h) { h.range_count = 0; },
      [](DeltaHeader& h) { h.size_bytes += 2; },
      [](DeltaHeader& h) { --h.changed; },
      [](DeltaHeader& h) { h.payload_bytes = ~std::uint64_t{0}; },
      [](DeltaHeader& h) { h.base_crc ^= 1; },
      [](DeltaHeader& h) { h.new_crc ^= 1; },
      [](DeltaHeader& h) { h.section_bytes = 0; },
      [](DeltaHeader& h) { h.section_bytes = 128; },
      [](DeltaHeader& h) { h.section_bytes = kDeltaSectionBytesMax + 8; },
      [](DeltaHeader& h) { h.section_count = ~std::uint32_t{0}; },
      [](DeltaHeader& h) { h.section_count = 0; },
  };
  for (const auto spoil : spoils) {
    const Error error = refuse(spoil);
    EXPECT_EQ(error.code, Code::kInvalidArgument) << error.text;
    EXPECT_NE(error.text.find("fetch the whole version"), std::string::npos) << error.text;
  }
}

}  // namespace
}  // namespace hoplite
