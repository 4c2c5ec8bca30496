// SPDX-License-Identifier: Apache-2.0
// The bytes of a delta against the model's, by every kernel and however the new bytes are cut.
#include "delta/finder.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "base/must_test.h"
#include "base/prng.h"
#include "delta/delta_model_test.h"

namespace hoplite {
namespace {

using delta_model::ByteVector;
using delta_model::Ranges;

constexpr std::uint64_t kNoLimit = 1_GiB;

void must_add(DeltaFinder& finder, std::span<const std::byte> bytes) {
  const auto added = finder.add(bytes);
  ASSERT_TRUE(added.has_value()) << added.error().text;
}

// Adds `whole` in pieces of whole elements, drawn by chance.
void add_in_pieces(DeltaFinder& finder, const ByteVector& whole, std::size_t piece_max,
                   Prng& prng) {
  for (std::size_t at = 0; at < whole.size();) {
    const std::size_t size = std::min(whole.size() - at, 8 * (1 + prng.below(piece_max)));
    must_add(finder, std::span(whole).subspan(at, size));
    at += size;
    EXPECT_EQ(finder.added_bytes(), at);
  }
}

TEST(DeltaFinder, GivesTheModelsBytesByEveryKernel) {
  Prng prng(41);
  for (int round = 0; round < 300; ++round) {
    Ranges ranges = delta_model::draw_ranges(prng);
    for (auto& range : ranges) range.size_bytes = (range.size_bytes + 7) / 8 * 8;  // for the pieces
    const auto section_bytes = static_cast<std::uint32_t>(64 + 8 * prng.below(200));
    const ByteVector base = delta_model::draw_bytes(delta_model::count_bytes(ranges), prng);
    const ByteVector whole =
        delta_model::change_some(base, ranges, prng.below(4) * 300, 1 + prng.below(70), prng);
    const ByteVector expected = delta_model::encode(base, whole, ranges, section_bytes);
    for (int each = 0; each < kDeltaKernelCount; ++each) {
      const DeltaOptions options{kNoLimit, section_bytes, static_cast<DeltaKernels>(each)};
      if (!can_run(options.kernels)) continue;
      ByteVector copy(round % 2 == 0 ? whole.size() : 0);
      auto finder = must(DeltaFinder::start(ranges, base, copy, options));
      add_in_pieces(finder, whole, 40, prng);
      ASSERT_EQ(finder.finish(), expected) << "round " << round << ", kernels " << each;
      ASSERT_TRUE(copy.empty() || copy == whole);
    }
  }
}

TEST(DeltaFinder, TakesSectionsOfTheUsualSize) {
  Prng prng(1);
  const Ranges ranges{{2 * kDeltaSectionBytes + 4096, 2}, {kDeltaSectionBytes / 2 + 3, 1}};
  const ByteVector base = delta_model::draw_bytes(delta_model::count_bytes(ranges), prng);
  const ByteVector whole = delta_model::change_some(base, ranges, 20, 1, prng);
  ByteVector copy(whole.size());
  auto finder = must(DeltaFinder::start(ranges, base, copy, {.limit_bytes = kNoLimit}));
  must_add(finder, whole);
  EXPECT_EQ(finder.finish(), delta_model::encode(base, whole, ranges, kDeltaSectionBytes));
  EXPECT_EQ(copy, whole);
}

// ---- what counts as a change

ByteVector find_all(const ByteVector& base, const ByteVector& whole, const Ranges& ranges) {
  auto finder = must(DeltaFinder::start(ranges, base, {}, {.limit_bytes = kNoLimit}));
  must_add(finder, whole);
  return *finder.finish();
}

template <typename T>
std::uint64_t count_changed(T before, T after) {
  ByteVector base, whole;
  delta_model::append(base, before);
  delta_model::append(whole, after);
  const ByteVector delta = find_all(base, whole, {{sizeof(T), sizeof(T)}});
  return must(Delta::open(delta)).header().changed;
}

TEST(DeltaFinder, ComparesBitsAndNoNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float other_nan = std::bit_cast<float>(std::bit_cast<std::uint32_t>(nan) | 1U);
  EXPECT_EQ(count_changed(nan, nan), 0U);
  EXPECT_EQ(count_changed(nan, other_nan), 1U);
  EXPECT_EQ(count_changed(0.0F, -0.0F), 1U);
  EXPECT_EQ(count_changed(0.0, -0.0), 1U);
  EXPECT_EQ(count_changed(std::uint16_t{0x8000}, std::uint16_t{0}), 1U);  // bf16 -0 and 0
}

TEST(DeltaFinder, HasNoPayloadIfNothingChanges) {
  Prng prng(2);
  const ByteVector base = delta_model::draw_bytes(1000, prng);
  const ByteVector delta = find_all(base, base, {{1000, 2}});
  EXPECT_EQ(delta.size(), sizeof(DeltaHeader) + sizeof(DeltaRange) + sizeof(DeltaSection));
  const ByteVector none = find_all({}, {}, {});
  EXPECT_EQ(none.size(), sizeof(DeltaHeader));
}

TEST(DeltaFinder, IsThreePercentOfTheBytesWhenTwoPercentOfBfloat16Change) {
  Prng prng(3);
  const Ranges ranges{{4_MiB, 2}};
  const ByteVector base = delta_model::draw_bytes(4_MiB, prng);
  for (const std::uint64_t run_max : {1U, 127U}) {
    const ByteVector whole = delta_model::change_some(base, ranges, 20, run_max, prng);
    EXPECT_LE(find_all(base, whole, ranges).size(), 33 * base.size() / 1000);
  }
}

// ---- giving up

TEST(DeltaFinder, GivesUpAtTheLimitAndCopiesTheRest) {
  Prng prng(4);
  const Ranges ranges{{4096, 2}};
  const ByteVector base = delta_model::draw_bytes(4096, prng);
  const ByteVector whole = delta_model::change_some(base, ranges, 1000, 1, prng);
  const std::size_t needed = delta_model::encode(base, whole, ranges, 64).size();
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{100}, needed / 2, needed - 1}) {
    ByteVector copy(whole.size());
    auto finder = must(DeltaFinder::start(ranges, base, copy, {limit, 64}));
    add_in_pieces(finder, whole, 4, prng);
    EXPECT_TRUE(finder.has_given_up()) << limit;
    EXPECT_EQ(finder.finish(), std::nullopt) << limit;
    EXPECT_EQ(copy, whole) << limit;
  }
  auto finder = must(DeltaFinder::start(ranges, base, {}, {needed, 64}));
  must_add(finder, whole);
  EXPECT_FALSE(finder.has_given_up());
  EXPECT_EQ(finder.finish()->size(), needed);
}

TEST(DeltaFinder, GivesUpEarly) {
  Prng prng(5);
  const Ranges ranges{{65536, 2}};
  const ByteVector base = delta_model::draw_bytes(65536, prng);
  const ByteVector whole = delta_model::change_some(base, ranges, 1000, 1, prng);
  auto finder = must(DeltaFinder::start(ranges, base, {}, {32768, 1024}));
  while (!finder.has_given_up()) {
    must_add(finder, std::span(whole).subspan(finder.added_bytes(), 1024));
  }
  EXPECT_LE(finder.added_bytes(), 24576U);  // each KiB adds a half more than itself
}

TEST(DeltaFinder, UsesTheCallersBuffer) {
  const ByteVector base(1000);
  ByteVector buffer(5000);
  buffer.clear();
  const std::byte* memory = buffer.data();
  auto finder = must(DeltaFinder::start(Ranges{{1000, 2}}, base, {}, {.limit_bytes = kNoLimit},
                                        std::move(buffer)));
  must_add(finder, ByteVector(1000, std::byte{1}));
  EXPECT_EQ(finder.finish()->data(), memory);
}

// ---- wrong uses

TEST(DeltaFinder, RefusesWrongRangesAndSizes) {
  const ByteVector base(96);
  Ranges wrong[] = {{{95, 1}},
                    {{97, 1}},
                    {},
                    {{96, 3}},
                    {{96, 0}},
                    {{96, 16}},
                    {{95, 2}, {1, 1}},
                    {{96, 1}, {0, 1}},
                    {{~std::uint64_t{0}, 1}, {97, 1}},
                    {}};
  wrong[9].assign(kDeltaRangesMax, {2, 1});
  wrong[9].push_back({96 - 2 * kDeltaRangesMax, 1});
  for (const Ranges& ranges : wrong) {
    const auto refused = DeltaFinder::start(ranges, base, {}, {.limit_bytes = kNoLimit});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
  ByteVector copy(95);
  EXPECT_FALSE(DeltaFinder::start(Ranges{{96, 1}}, base, copy, {kNoLimit}).has_value());
  for (const std::uint32_t section_bytes : {0U, 56U, 65U, kDeltaSectionBytesMax + 8}) {
    EXPECT_FALSE(
        DeltaFinder::start(Ranges{{96, 1}}, base, {}, {kNoLimit, section_bytes}).has_value());
  }
}

TEST(DeltaFinder, RefusesHalfElementsAndBytesBeyondTheWhole) {
  const ByteVector base(96);
  auto finder = must(DeltaFinder::start(Ranges{{64, 4}, {32, 1}}, base, {}, {kNoLimit}));
  EXPECT_FALSE(finder.add(std::span(base).first(6)).has_value());
  must_add(finder, std::span(base).first(67));  // ends between elements of the second range
  EXPECT_FALSE(finder.add(std::span(base).first(30)).has_value());
  must_add(finder, std::span(base).first(29));
  EXPECT_TRUE(finder.finish().has_value());
}

}  // namespace
}  // namespace hoplite
