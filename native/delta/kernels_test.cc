// SPDX-License-Identifier: Apache-2.0
// Every kernel that this processor runs, against the obvious loop.
#include "delta/kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/prng.h"

namespace hoplite {
namespace {

struct Case {
  DeltaKernels kernels;
  std::uint32_t width;
};

std::vector<Case> list_cases() {
  std::vector<Case> cases;
  for (int each = 0; each < kDeltaKernelCount; ++each) {
    const auto kernels = static_cast<DeltaKernels>(each);
    if (!can_run(kernels)) continue;
    for (const std::uint32_t width : {1U, 2U, 4U, 8U}) cases.push_back({kernels, width});
  }
  return cases;
}

std::string name_case(const testing::TestParamInfo<Case>& info) {
  return kDeltaKernelNames[static_cast<std::size_t>(info.param.kernels)] + std::string("_") +
         std::to_string(info.param.width);
}

class DeltaKernelsTest : public testing::TestWithParam<Case> {
 protected:
  // Compares with bytes that begin at any address.
  static std::vector<std::uint64_t> compare(std::span<const std::byte> base,
                                            std::span<const std::byte> bytes) {
    const auto [kernels, width] = GetParam();
    std::vector<std::uint64_t> masks((bytes.size() / width + 63) / 64, ~std::uint64_t{0});
    compare_elements(kernels, width, base, bytes, masks);
    return masks;
  }
};

TEST_P(DeltaKernelsTest, MarksEachElementWhicheverOfItsBitsDiffers) {
  const std::size_t width = GetParam().width;
  for (const std::size_t elements : {1U, 63U, 64U, 65U, 200U}) {
    std::vector<std::byte> base(elements * width, std::byte{0x5a});
    for (std::size_t bit = 0; bit < 8 * base.size(); ++bit) {
      std::vector<std::byte> bytes = base;
      bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      std::vector<std::uint64_t> expected((elements + 63) / 64);
      const std::size_t element = bit / 8 / width;
      expected[element / 64] = std::uint64_t{1} << (element % 64);
      ASSERT_EQ(compare(base, bytes), expected) << elements << " elements, bit " << bit;
    }
  }
}

TEST_P(DeltaKernelsTest, AgreesWithTheObviousLoopOnEverySizeAndStart) {
  const std::size_t width = GetParam().width;
  Prng prng(width);
  std::vector<std::byte> base(300 * width + 16), bytes(base.size());
  for (auto& byte : base) byte = static_cast<std::byte>(prng.next());
  for (std::size_t elements = 0; elements <= 290; ++elements) {
    const std::size_t start = prng.below(16);
    bytes = base;
    const std::uint64_t percent = prng.below(4) * 33;  // none, some, most, nearly all
    for (auto& byte : bytes) byte ^= static_cast<std::byte>(prng.below(100) < percent ? 1 : 0);
    const auto a = std::span(base).subspan(start, elements * width);
    const auto b = std::span(bytes).subspan(start, elements * width);
    std::vector<std::uint64_t> expected((elements + 63) / 64);
    for (std::size_t i = 0; i < elements; ++i) {
      const bool differs = std::memcmp(&a[i * width], &b[i * width], width) != 0;
      expected[i / 64] |= std::uint64_t{differs ? 1U : 0U} << (i % 64);
    }
    ASSERT_EQ(compare(a, b), expected) << elements << " elements from " << start;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeltaKernelsTest, testing::ValuesIn(list_cases()), name_case);

TEST(DeltaKernelsChoice, RunsOnThisProcessor) {
  EXPECT_TRUE(can_run(DeltaKernels::kPlain));
  EXPECT_TRUE(can_run(choose_kernels()));
}

}  // namespace
}  // namespace hoplite
