// Every kernel against the obvious loop.
// SPDX-License-Identifier: Apache-2.0
#include "node/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/prng.h"

namespace hoplite {
namespace {

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  return DType::kInt64;
}

template <typename T>
std::vector<T> values(std::size_t count, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<T> all(count);
  for (T& each : all)
    each = static_cast<T>(static_cast<std::int64_t>(prng.below(2'000'001)) - 1'000'000);
  return all;
}

// Folds at `shift` bytes behind an aligned address.
template <typename T>
std::vector<T> folded(ReduceOp op, std::vector<T> into, const std::vector<T>& from,
                      std::size_t shift) {
  const std::size_t size = into.size() * sizeof(T);
  std::vector<std::byte> a(size + shift);
  std::vector<std::byte> b(size + shift);
  if (size > 0) {
    std::memcpy(a.data() + shift, into.data(), size);
    std::memcpy(b.data() + shift, from.data(), size);
  }
  fold(op, dtype_of<T>(), false, std::span(a).subspan(shift),
       std::span<const std::byte>(b).subspan(shift));
  if (size > 0) std::memcpy(into.data(), a.data() + shift, size);
  return into;
}

template <typename T>
class Kernels : public ::testing::Test {};
using Types = ::testing::Types<float, double, std::int64_t>;
TYPED_TEST_SUITE(Kernels, Types, );

TYPED_TEST(Kernels, SumAndMaxOfEveryLengthAndAlignment) {
  for (std::size_t count = 0; count < 70; ++count) {
    const auto a = values<TypeParam>(count, 2 * count);
    const auto b = values<TypeParam>(count, 2 * count + 1);
    auto sum = a;
    auto max = a;
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += b[i];
      max[i] = std::max(a[i], b[i]);
    }
    for (const std::size_t shift : {0, 1, 4, 7}) {
      EXPECT_EQ(folded(ReduceOp::kSum, a, b, shift), sum) << count << " at " << shift;
      EXPECT_EQ(folded(ReduceOp::kMax, a, b, shift), max) << count << " at " << shift;
    }
  }
}

template <typename T>
void expect_nan_wins() {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T infinity = std::numeric_limits<T>::infinity();
  const std::vector<T> a{nan, 1, nan, infinity, -infinity};
  const std::vector<T> b{1, nan, nan, nan, 5};
  const auto max = folded(ReduceOp::kMax, a, b, 0);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(max[i])) << i;
  EXPECT_EQ(max[4], 5);
  EXPECT_TRUE(std::isnan(folded(ReduceOp::kSum, a, b, 0)[0]));
}

TEST(KernelsNan, MaxIsNanWhenEitherIs) {
  expect_nan_wins<float>();
  expect_nan_wins<double>();
}

TEST(KernelsInt64, SumsWrapAround) {
  const std::vector<std::int64_t> a{std::numeric_limits<std::int64_t>::max()};
  EXPECT_EQ(folded(ReduceOp::kSum, a, {1}, 0)[0], std::numeric_limits<std::int64_t>::min());
}

TEST(KernelsCheck, WrongSizesAreAProgrammersError) {
  std::vector<std::byte> a(8);
  std::vector<std::byte> b(12);
  EXPECT_DEATH(fold(ReduceOp::kSum, DType::kFloat32, false, a, b), "check failed");
  EXPECT_DEATH(fold(ReduceOp::kSum, DType::kFloat64, false, b, b), "check failed");
  EXPECT_DEATH(fold(ReduceOp::kSum, DType::kOpaque, false, a, a), "check failed");
}

}  // namespace
}  // namespace hoplite
