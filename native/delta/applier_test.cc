// SPDX-License-Identifier: Apache-2.0
// Deltas give the version they were made for, in place and beside, in any steps and chains; and
// corrupt ones give errors, and touch no byte outside the target.
#include "delta/applier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/must_test.h"
#include "base/prng.h"
#include "delta/delta_model_test.h"

namespace hoplite {
namespace {

using delta_model::ByteVector;
using delta_model::Ranges;

// Versions of one whole, and the deltas between them.
struct History {
  Ranges ranges;
  std::vector<ByteVector> versions;
  std::vector<ByteVector> deltas;

  [[nodiscard]] std::vector<std::span<const std::byte>> borrow(std::size_t first,
                                                               std::size_t end) const {
    return {deltas.begin() + static_cast<std::ptrdiff_t>(first),
            deltas.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  [[nodiscard]] DeltaApplier open(std::size_t first, std::size_t end) const {
    return must(DeltaApplier::open(borrow(first, end)));
  }
};

// Each version has some changed elements, all or none.
History draw_history(std::size_t deltas, std::uint32_t section_bytes, Prng& prng) {
  History history{.ranges = delta_model::draw_ranges(prng), .versions = {}, .deltas = {}};
  history.versions.push_back(
      delta_model::draw_bytes(delta_model::count_bytes(history.ranges), prng));
  for (std::size_t i = 0; i < deltas; ++i) {
    const ByteVector& before = history.versions.back();
    ByteVector after = delta_model::change_some(before, history.ranges, prng.below(4) * 300,
                                                1 + prng.below(70), prng);
    history.deltas.push_back(delta_model::encode(before, after, history.ranges, section_bytes));
    history.versions.push_back(std::move(after));
  }
  return history;
}

std::uint32_t draw_section_bytes(Prng& prng) {
  return static_cast<std::uint32_t>(64 + 8 * prng.below(200));
}

TEST(DeltaApplier, GivesTheVersionBesideAndInPlaceInAnySteps) {
  Prng prng(51);
  for (int round = 0; round < 300; ++round) {
    const History history = draw_history(5, draw_section_bytes(prng), prng);
    const std::size_t first = prng.below(5);
    const std::size_t end = first + 1 + prng.below(5 - first);
    const ByteVector& base = history.versions[first];
    const ByteVector& expected = history.versions[end];

    DeltaApplier beside = history.open(first, end);
    EXPECT_EQ(beside.size_bytes(), expected.size());
    EXPECT_EQ(beside.base_crc(), crc32c_table(base));
    EXPECT_EQ(beside.new_crc(), crc32c_table(expected));
    ByteVector target(base.size());
    while (!beside.is_done()) {
      const auto done = beside.step(base, target, prng.below(4096));
      ASSERT_TRUE(done.has_value()) << done.error().text;
    }
    ASSERT_EQ(target, expected) << "round " << round << ", deltas " << first << " to " << end;

    const DeltaApplier in_place = history.open(first, end);
    ByteVector place = base;
    ASSERT_TRUE(in_place.apply(0, in_place.section_count(), place, place).has_value());
    ASSERT_EQ(place, expected) << "round " << round;
  }
}

TEST(DeltaApplier, GivesSectionsInAnyOrderAndByManyThreads) {
  Prng prng(52);
  const History history = draw_history(3, 64, prng);
  const DeltaApplier applier = history.open(0, 3);
  const ByteVector& base = history.versions[0];
  ByteVector target(base.size());
  std::vector<std::thread> threads;
  constexpr std::size_t kThreads = 4;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t section = i; section < applier.section_count(); section += kThreads) {
        EXPECT_TRUE(
            applier.apply(applier.section_count() - 1 - section, 1, base, target).has_value());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(target, history.versions[3]);
}

TEST(DeltaApplier, StepsOfALargeWholeKeepToTheirBudget) {
  const Ranges ranges{{8_MiB + 24, 8}};
  const ByteVector base(delta_model::count_bytes(ranges));
  ByteVector whole = base;
  whole[5_MiB] = std::byte{1};
  whole.back() = std::byte{1};
  const ByteVector delta = delta_model::encode(base, whole, ranges, kDeltaSectionBytes);
  const std::vector<std::span<const std::byte>> deltas{delta};
  DeltaApplier applier = must(DeltaApplier::open(deltas));
  ByteVector target(base.size());
  int steps = 0;
  for (; !applier.is_done(); ++steps) ASSERT_TRUE(applier.step(base, target, 4_MiB).has_value());
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(target, whole);
}

TEST(DeltaApplier, GivesAnEmptyWhole) {
  const ByteVector delta = delta_model::encode({}, {}, {}, kDeltaSectionBytes);
  const std::vector<std::span<const std::byte>> deltas{delta};
  EXPECT_TRUE(must(DeltaApplier::open(deltas)).is_done());
}

// ---- wrong uses

TEST(DeltaApplier, RefusesAnotherBase) {
  Prng prng(53);
  for (int round = 0; round < 50; ++round) {
    const History history = draw_history(1, draw_section_bytes(prng), prng);
    ByteVector base = history.versions[0];
    base[prng.below(base.size())] ^= std::byte{0x10};
    const DeltaApplier applier = history.open(0, 1);
    ByteVector target(base.size());
    const auto beside = applier.apply(0, applier.section_count(), base, target);
    if (beside) {  // only an element that the delta replaces differs
      ASSERT_EQ(target, history.versions[1]);
    } else {
      EXPECT_NE(beside.error().text.find("the base is not the one"), std::string::npos);
    }
    ASSERT_FALSE(applier.apply(0, applier.section_count(), base, base).has_value());
  }
}

TEST(DeltaApplier, InPlaceASectionOfAnotherBaseStaysAsItIs) {
  const Ranges ranges{{128, 1}};
  const ByteVector zeros(128);
  const ByteVector delta =
      delta_model::encode(zeros, ByteVector(128, std::byte{1}), ranges, kDeltaSectionBytesMin);
  const std::vector<std::span<const std::byte>> deltas{delta};
  ByteVector place(128);
  place[64] = std::byte{7};
  const auto refused = must(DeltaApplier::open(deltas)).apply(0, 2, place, place);
  ASSERT_FALSE(refused.has_value());
  ByteVector expected(64, std::byte{1});  // the section in front was rebuilt
  expected.resize(128);
  expected[64] = std::byte{7};
  EXPECT_EQ(place, expected);
}

TEST(DeltaApplier, RefusesOtherSizes) {
  Prng prng(54);
  const History history = draw_history(1, 64, prng);
  DeltaApplier applier = history.open(0, 1);
  ByteVector base = history.versions[0];
  ByteVector longer(base.size() + 1);
  for (const auto& refused : {applier.step(base, longer, 64), applier.apply(0, 1, longer, base)}) {
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().text.find("doesn't fit"), std::string::npos);
  }
}

TEST(DeltaApplier, RefusesDeltasThatAreNotConsecutive) {
  Prng prng(55);
  History history = draw_history(0, 64, prng);
  for (std::size_t i = 0; i < 3; ++i) {  // each changes something
    ByteVector after = history.versions.back();
    after[i] ^= std::byte{1};
    history.deltas.push_back(
        delta_model::encode(history.versions.back(), after, history.ranges, 64));
    history.versions.push_back(std::move(after));
  }
  const auto deltas = history.borrow(0, 3);
  const std::vector<std::vector<std::size_t>> wrong{{}, {1, 0}, {0, 2}, {0, 0}};
  for (const auto& order : wrong) {
    std::vector<std::span<const std::byte>> chosen;
    for (const std::size_t i : order) chosen.push_back(deltas[i]);
    const auto refused = DeltaApplier::open(chosen);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
}

TEST(DeltaApplier, RefusesAnotherCutWhoseRowsClaimToFit) {
  const ByteVector zeros(100);
  const ByteVector first = delta_model::encode(zeros, zeros, {{100, 1}}, 64);
  ByteVector recut = delta_model::encode(zeros, zeros, {{100, 1}}, 72);  // two sections as well
  DeltaHeader header;
  std::memcpy(&header, recut.data(), sizeof header);
  header.base_crc = 0;
  constexpr std::size_t kRows = sizeof(DeltaHeader) + sizeof(DeltaRange);
  for (std::size_t i = 0; i < 2; ++i) {
    DeltaSection fitting, row;
    std::memcpy(&fitting, &first[kRows + i * sizeof row], sizeof row);
    std::memcpy(&row, &recut[kRows + i * sizeof row], sizeof row);
    row.base_crc = fitting.new_crc;
    std::memcpy(&recut[kRows + i * sizeof row], &row, sizeof row);
    header.base_crc = combine_crc32c(header.base_crc, row.base_crc, i == 0 ? 72 : 28);
  }
  std::memcpy(recut.data(), &header, sizeof header);
  ASSERT_TRUE(Delta::open(recut).has_value());
  const std::vector<std::span<const std::byte>> mixed{first, recut};
  EXPECT_FALSE(DeltaApplier::open(mixed).has_value());
}

TEST(DeltaApplier, TakesSoManyDeltasAndNoMore) {
  const ByteVector zeros(100);
  const ByteVector unchanged = delta_model::encode(zeros, zeros, {{100, 1}}, 64);
  std::vector<std::span<const std::byte>> deltas(kDeltasPerPassMax, unchanged);
  EXPECT_TRUE(DeltaApplier::open(deltas).has_value());
  deltas.push_back(unchanged);
  EXPECT_FALSE(DeltaApplier::open(deltas).has_value());
}

// ---- corrupt deltas

// Applies what may be a delta to a target inside a frame of bytes that must stay. Returns true if
// it gave a version without an error.
bool apply_framed(std::span<const std::byte> delta, const ByteVector& base,
                  const ByteVector& expected) {
  constexpr std::size_t kFrame = 64;
  const std::vector<std::span<const std::byte>> deltas{delta};
  auto applier = DeltaApplier::open(deltas);
  if (!applier) {
    EXPECT_EQ(applier.error().code, Code::kInvalidArgument);
    return false;
  }
  ByteVector framed(base.size() + 2 * kFrame, std::byte{0xee});
  const auto target = std::span(framed).subspan(kFrame, base.size());
  const auto done = applier->apply(0, applier->section_count(), base, target);
  for (std::size_t i = 0; i < kFrame; ++i) {
    EXPECT_EQ(framed[i], std::byte{0xee});
    EXPECT_EQ(framed[framed.size() - 1 - i], std::byte{0xee});
  }
  EXPECT_TRUE(!done || std::ranges::equal(target, expected));
  return done.has_value();
}

TEST(DeltaApplier, RefusesEveryTruncatedDelta) {
  Prng prng(56);
  const History history = draw_history(1, 128, prng);
  for (std::size_t size = 0; size < history.deltas[0].size(); ++size) {
    ASSERT_FALSE(apply_framed(std::span(history.deltas[0]).first(size), history.versions[0],
                              history.versions[1]))
        << size;
  }
  ByteVector longer = history.deltas[0];
  longer.push_back(std::byte{0});
  EXPECT_FALSE(apply_framed(longer, history.versions[0], history.versions[1]));
}

TEST(DeltaApplier, GivesAnErrorOrTheVersionWhicheverByteIsCorrupt) {
  Prng prng(57);
  for (int round = 0; round < 10; ++round) {
    const History history = draw_history(1, draw_section_bytes(prng), prng);
    ByteVector delta = history.deltas[0];
    for (std::size_t at = 0; at < delta.size(); ++at) {
      const std::byte kept = delta[at];
      for (const std::byte wrong : {kept ^ std::byte{1}, kept ^ std::byte{0x80}, std::byte{255}}) {
        delta[at] = wrong;
        (void)apply_framed(delta, history.versions[0], history.versions[1]);
        if (HasFailure()) FAIL() << "round " << round << ", byte " << at;
      }
      delta[at] = kept;
    }
  }
}

// A delta of 64 zeros in one section, all of whose sums and checksums agree: only gaps and values
// can be wrong. Values of 0 change nothing.
ByteVector forge(std::initializer_list<int> gaps, std::uint32_t changed, int value = 0) {
  const std::uint32_t crc = crc32c(ByteVector(64));
  const DeltaSection row{static_cast<std::uint32_t>(gaps.size()), changed, crc, crc};
  const DeltaHeader header{.range_count = 1,
                           .size_bytes = 64,
                           .changed = changed,
                           .payload_bytes = gaps.size() + changed,
                           .base_crc = crc,
                           .new_crc = crc,
                           .section_bytes = 64,
                           .section_count = 1};
  ByteVector delta;
  delta_model::append(delta, header);
  delta_model::append(delta, DeltaRange{64, 1});
  delta_model::append(delta, row);
  for (const int gap : gaps) delta.push_back(static_cast<std::byte>(gap));
  delta.resize(delta.size() + changed, static_cast<std::byte>(value));
  return ByteVector(delta);  // without room behind its end, for the address sanitizer
}

TEST(DeltaApplier, RefusesGapsThatDoNotFitTheirSection) {
  const ByteVector base(64);
  EXPECT_TRUE(apply_framed(forge({63}, 1), base, base));
  EXPECT_TRUE(apply_framed(forge({62, 0}, 2), base, base));
  EXPECT_TRUE(apply_framed(forge({}, 0), base, base));
  const ByteVector forged[] = {
      forge({64}, 1),                // the first element behind the section
      forge({255, 255, 255, 0}, 1),  // far behind it
      forge({63, 0}, 2),             // the second one
      forge({255}, 1, 255),          // a gap without an end
      forge({0, 255}, 2, 255),       // likewise
      forge({0}, 2),                 // fewer gaps than values
      forge({}, 1, 255),             // none
      forge({0, 0, 0}, 2),           // more gaps than values
      forge({0}, 0),                 // a gap without a value
      forge({0}, 65),                // more values than elements
      forge({0}, 1, 1),              // another result than the checksum's
  };
  for (const ByteVector& delta : forged) {
    EXPECT_FALSE(apply_framed(delta, base, base)) << &delta - forged;
  }
  std::vector<std::span<const std::byte>> pair{forged[0], forged[0]};
  for (const ByteVector& delta : forged) {  // in either place of two
    const ByteVector right = forge({}, 0);
    for (const bool is_last : {false, true}) {
      pair = {is_last ? right : delta, is_last ? delta : right};
      ByteVector target(64);
      EXPECT_FALSE(must(DeltaApplier::open(pair)).apply(0, 1, base, target).has_value())
          << &delta - forged;
    }
  }
}

}  // namespace
}  // namespace hoplite
