// SPDX-License-Identifier: Apache-2.0
// Batches of folds, by several threads, against the same folds one after the other.
#include "node/fold_crew.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "node/kernels.h"

namespace hoplite {
namespace {

constexpr std::size_t kSpace = 2_MiB;

struct Step {  // a fold, or a finish with `sources`; positions are bytes in the space
  std::size_t into = 0, from = 0, elements = 0;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool first = false;
  std::uint32_t sources = 0;
};

class Space {
 public:
  explicit Space(std::uint64_t seed) : bytes_(kSpace) {
    Prng random(seed);
    // Floats of moderate size: with NaN, an order of operands would not show.
    for (std::size_t at = 0; at < kSpace; at += sizeof(float)) {
      const float value = 1.0F + static_cast<float>(random.below(1 << 20)) / 4096.0F;
      std::memcpy(&bytes_[at], &value, sizeof value);
    }
  }
  template <typename Folds>
  void take(Folds& folds, const Step& step) {
    const std::size_t wide = step.elements * accumulator_bytes(step.dtype);
    const std::size_t narrow = step.elements * element_bytes(step.dtype);
    if (step.sources > 0) {
      folds.finish(step.op, step.dtype, step.sources, at(step.into, narrow), at(step.from, wide));
    } else {
      folds.fold(step.op, step.dtype, step.first, at(step.into, wide), at(step.from, narrow));
    }
  }
  bool operator==(const Space&) const = default;

 private:
  std::span<std::byte> at(std::size_t offset, std::size_t size) {
    return std::span(bytes_).subspan(offset, size);
  }
  std::vector<std::byte> bytes_;
};

struct OneByOne {
  template <typename... Args>
  void fold(Args... args) {
    hoplite::fold(args...);
  }
  template <typename... Args>
  void finish(Args... args) {
    hoplite::finish(args...);
  }
};

// An owner of blocks folds into few ranges, again and again, from ranges that other steps write.
std::vector<Step> draw_steps(Prng& random) {
  const std::size_t places = 2 + random.below(6);
  const std::size_t largest = kSpace / places / sizeof(float);
  const DType dtype =
      std::array{DType::kFloat32, DType::kBfloat16, DType::kInt8}.at(random.below(3));
  const ReduceOp op = random.chance(50) && dtype != DType::kInt8 ? ReduceOp::kMean : ReduceOp::kSum;
  const std::size_t usual = random.chance(50) ? largest : 1 + random.below(largest);
  std::vector<Step> steps(1 + random.below(24));
  for (Step& step : steps) {
    step.dtype = dtype;
    step.op = op;
    step.elements = random.chance(80) ? usual : 1 + random.below(usual);
    const std::size_t into = random.below(places);
    const std::size_t from = (into + 1 + random.below(places - 1)) % places;
    step.into = into * largest * sizeof(float);
    step.from = from * largest * sizeof(float);
    step.first = random.chance(20);
    if (random.chance(20) && needs_finish(dtype, op)) {
      step.sources = 1 + static_cast<std::uint32_t>(random.below(8));
      if (!is_half(dtype)) step.from = step.into;
    } else if (random.chance(10)) {  // a range across the usual ones
      const std::size_t room = largest * sizeof(float) - step.elements * accumulator_bytes(dtype);
      step.into += random.below(room + 1) / 64 * 64;
    }
  }
  return steps;
}

TEST(FoldCrew, GivesTheSameBitsForEveryNumberOfThreads) {
  FoldCrew alone(0), one(1), three(3);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Prng random(seed);
    const std::vector<Step> steps = draw_steps(random);
    const Space before(seed);
    Space expected = before;
    OneByOne one_by_one;
    for (const Step& step : steps) expected.take(one_by_one, step);
    for (FoldCrew* const crew : {&alone, &one, &three}) {
      Space space = before;
      for (const Step& step : steps) {
        space.take(*crew, step);
        if (random.chance(5)) crew->run();
      }
      crew->run();
      ASSERT_TRUE(space == expected) << "seed " << seed;
    }
  }
}

TEST(FoldCrew, AFoldThatUsesAPartOfAnEarlierOnesRangeRunsAfterIt) {
  FoldCrew crew(1);
  const std::size_t count = 256_KiB / sizeof(float);
  const std::vector<Step> steps{
      {.into = 0, .from = 512_KiB, .elements = count},
      {.into = 1_MiB, .from = 128_KiB, .elements = count},     // reads what the first one writes
      {.into = 640_KiB, .from = 1536_KiB, .elements = count},  // writes what the first one reads
  };
  const Space before(7);
  Space expected = before;
  OneByOne one_by_one;
  for (const Step& step : steps) expected.take(one_by_one, step);
  for (int round = 0; round < 50; ++round) {
    Space space = before;
    for (const Step& step : steps) space.take(crew, step);
    crew.run();
    ASSERT_TRUE(space == expected) << "round " << round;
  }
}

std::string read_line(const std::filesystem::path& file, const std::string& begin) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(begin)) return line.substr(begin.size());
  }
  return {};
}

std::vector<std::filesystem::path> fold_threads() {
  std::vector<std::filesystem::path> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (read_line(task.path() / "comm", "hoplite-") == "fold") found.push_back(task.path());
  }
  return found;
}

TEST(FoldCrew, ItsThreadsHaveANameTakeNoSignalsShareTheWorkAndEnd) {
  auto crew = std::make_unique<FoldCrew>(2);
  while (fold_threads().size() < 2) std::this_thread::yield();
  for (const auto& thread : fold_threads()) {
    const std::string blocked = read_line(thread / "status", "SigBlk:\t");
    EXPECT_EQ(std::count(blocked.begin(), blocked.end(), 'f'), 12) << blocked;  // but STOP and KILL
  }
  Space space(1);
  const auto run_ns = [](const std::filesystem::path& thread) {
    return std::stoull("0" + read_line(thread / "schedstat", ""));
  };
  for (const auto& thread : fold_threads()) {
    const auto before = run_ns(thread);
    while (run_ns(thread) < before + 100'000) {
      space.take(*crew, {.into = 0, .from = kSpace / 2, .elements = kSpace / 8});
      crew->run();
    }
  }
  crew.reset();
  EXPECT_TRUE(fold_threads().empty());
}

}  // namespace
}  // namespace hoplite
