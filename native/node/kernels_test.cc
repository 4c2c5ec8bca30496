// SPDX-License-Identifier: Apache-2.0
// Every kernel against the obvious loop, in long double, on values whose results it knows exactly;
// 16-bit floats against a rounding that is written another way.
#include "node/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/prng.h"

namespace hoplite {
namespace {

using Values = std::vector<long double>;

// Returns `value` rounded to the nearest 16-bit float with this many bits of mantissa and this
// largest exponent; ties go to the even one.
long double rounded(long double value, int mantissa_bits, int exponent_max) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = [0.5, 1) * 2^exponent
  const int quantum = std::max(exponent - 1, 1 - exponent_max) - mantissa_bits;
  const long double result = std::ldexp(std::nearbyint(std::ldexp(value, -quantum)), quantum);
  const long double overflow = std::ldexp(1.0L, exponent_max + 1);
  return std::abs(result) >= overflow ? std::copysign(INFINITY, value) : result;
}
long double rounded(long double value, DType dtype) {
  if (dtype == DType::kFloat16) return rounded(value, 10, 15);
  if (dtype == DType::kBfloat16) return rounded(value, 7, 127);
  return value;
}

// The value of the 16-bit float with these bits, by its definition.
long double value_of(std::uint16_t bits, int mantissa_bits, int exponent_max) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const long double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 2 * exponent_max + 1) return mantissa == 0 ? sign * INFINITY : NAN;
  const int hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
  const int scale = std::max(exponent, 1) - exponent_max - mantissa_bits;
  return sign * std::ldexp(static_cast<long double>(mantissa + hidden), scale);
}
long double half_value(std::uint16_t bits, DType dtype) {
  return dtype == DType::kFloat16 ? value_of(bits, 10, 15) : value_of(bits, 7, 127);
}
// The bits of a value that the dtype has: found, not computed.
std::uint16_t half_bits(long double value, DType dtype) {
  static std::vector<std::map<long double, std::uint16_t>> tables(kDTypeCount);
  auto& table = tables[static_cast<std::size_t>(dtype)];
  for (std::uint32_t bits = 0; table.size() < 0xf000 && bits < 0x10000; ++bits) {
    const long double each = half_value(static_cast<std::uint16_t>(bits), dtype);
    if (!std::isnan(each)) table.emplace(each, static_cast<std::uint16_t>(bits));
  }
  return table.at(value);
}

template <typename Visit>
void with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kInt8:
      return visit(std::int8_t{});
    case DType::kInt16:
      return visit(std::int16_t{});
    case DType::kInt32:
      return visit(std::int32_t{});
    case DType::kInt64:
      return visit(std::int64_t{});
    case DType::kUint16:
      return visit(std::uint16_t{});
    case DType::kUint32:
      return visit(std::uint32_t{});
    case DType::kUint64:
      return visit(std::uint64_t{});
    default:
      return visit(std::uint8_t{});
  }
}

std::vector<std::byte> encoded(const Values& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * element_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_half(dtype)) {
      const std::uint16_t bits = half_bits(values[i], dtype);
      std::memcpy(bytes.data() + i * 2, &bits, 2);
    } else {
      with_type(dtype, [&](auto value) {
        value = static_cast<decltype(value)>(values[i]);
        std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
      });
    }
  }
  return bytes;
}

Values decoded(std::span<const std::byte> bytes, DType dtype) {
  Values values(bytes.size() / element_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_half(dtype)) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * 2, 2);
      values[i] = half_value(bits, dtype);
    } else {
      with_type(dtype, [&](auto value) {
        std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
        values[i] = static_cast<long double>(value);
      });
    }
  }
  return values;
}

// Values that the dtype has, with few enough bits that no sum or product of three is inexact in it
// (for a 16-bit float: in float32). Every eighth is zero.
Values values_of(DType dtype, std::size_t count, Prng& prng) {
  Values all(count);
  for (long double& each : all) {
    const auto small = static_cast<std::int64_t>(prng.below(100));
    if (dtype == DType::kBool) {
      each = small % 2;
    } else if (prng.chance(12)) {
      each = 0;
    } else if (is_float(dtype)) {
      each = std::ldexp(static_cast<long double>(small - 50), static_cast<int>(prng.below(6)) - 3);
    } else {
      each = static_cast<long double>(small % 3 + 1);
    }
  }
  return all;
}

long double combined(ReduceOp op, long double a, long double b) {
  switch (op) {
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kProd:
      return a * b;
    default:
      return a + b;
  }
}

// Three sources through fold() and finish(), everything `shift` bytes behind an aligned address.
std::vector<std::byte> reduced(ReduceOp op, DType dtype,
                               const std::vector<std::vector<std::byte>>& sources,
                               std::size_t shift) {
  const std::size_t count = sources[0].size() / element_bytes(dtype);
  std::vector<std::byte> accumulators(count * accumulator_bytes(dtype) + shift);
  const auto accumulator = std::span(accumulators).subspan(shift);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::vector<std::byte> moved(sources[i].size() + shift);
    std::copy(sources[i].begin(), sources[i].end(),
              moved.begin() + static_cast<std::ptrdiff_t>(shift));
    fold(op, dtype, i == 0, accumulator, std::span<const std::byte>(moved).subspan(shift));
  }
  if (!needs_finish(dtype, op)) return {accumulator.begin(), accumulator.end()};
  const auto sources_in = static_cast<std::uint32_t>(sources.size());
  if (!is_half(dtype)) {
    finish(op, dtype, sources_in, accumulator, accumulator);
    return {accumulator.begin(), accumulator.end()};
  }
  std::vector<std::byte> result(count * 2 + shift);
  finish(op, dtype, sources_in, std::span(result).subspan(shift), accumulator);
  return {result.begin() + static_cast<std::ptrdiff_t>(shift), result.end()};
}

class Kernels : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Kernels, AgreeWithTheObviousLoopAtEveryLengthAndAlignment) {
  const auto dtype = static_cast<DType>(std::get<0>(GetParam()));
  const auto op = static_cast<ReduceOp>(std::get<1>(GetParam()));
  if (!can_reduce(dtype, op)) {
    std::vector<std::byte> bytes(64);
    EXPECT_DEATH(fold(op, dtype, false, bytes, bytes), "check failed");
    return;
  }
  Prng prng(static_cast<std::uint64_t>(std::get<0>(GetParam()) * 8 + std::get<1>(GetParam())));
  for (std::size_t count = 0; count < 140; ++count) {
    std::vector<Values> sources;
    std::vector<std::vector<std::byte>> bytes;
    for (int i = 0; i < 4; ++i) {
      sources.push_back(values_of(dtype, count, prng));
      bytes.push_back(encoded(sources.back(), dtype));
    }
    Values expected = sources[0];
    for (std::size_t i = 0; i < count; ++i) {
      for (int s = 1; s < 4 && dtype != DType::kSame; ++s)
        expected[i] = combined(op, expected[i], sources[static_cast<std::size_t>(s)][i]);
      if (op == ReduceOp::kMean && dtype != DType::kSame) expected[i] /= 4;
      expected[i] = rounded(expected[i], dtype);
    }
    for (const std::size_t shift : {0, 1, 4, 7}) {
      ASSERT_EQ(decoded(reduced(op, dtype, bytes, shift), dtype), expected)
          << count << " at " << shift;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    EveryDtypeAndOperation, Kernels,
    testing::Combine(testing::Range(0, kDTypeCount), testing::Range(0, kReduceOpCount)),
    [](const auto& tried) {
      const auto dtype = static_cast<std::size_t>(std::get<0>(tried.param));
      const std::string name = dtype == 0 ? "opaque" : kDTypeNames[dtype];
      return name + "_" + kReduceOpNames[static_cast<std::size_t>(std::get<1>(tried.param))];
    });

class Halves : public ::testing::TestWithParam<DType> {
 protected:
  static std::vector<float> widened(const std::vector<std::uint16_t>& bits) {
    std::vector<float> wide(bits.size());
    fold(ReduceOp::kSum, GetParam(), true, std::as_writable_bytes(std::span(wide)),
         std::as_bytes(std::span(bits)));
    return wide;
  }
  static std::vector<std::uint16_t> narrowed(const std::vector<float>& wide) {
    std::vector<std::uint16_t> bits(wide.size());
    finish(ReduceOp::kSum, GetParam(), 2, std::as_writable_bytes(std::span(bits)),
           std::as_bytes(std::span(wide)));
    return bits;
  }
};

TEST_P(Halves, EveryOneIsWidenedExactlyAndComesBack) {
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto wide = widened(all);
  const auto back = narrowed(wide);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const long double value = half_value(all[i], GetParam());
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(wide[i])) << i;
      EXPECT_TRUE(std::isnan(half_value(back[i], GetParam()))) << i;
      EXPECT_EQ(back[i] >> 15, all[i] >> 15) << "the sign of a NaN stays: " << i;
    } else {
      ASSERT_EQ(wide[i], value) << i;
      ASSERT_EQ(std::signbit(wide[i]), std::signbit(value)) << i;
      ASSERT_EQ(back[i], all[i]) << i;
    }
  }
}

TEST_P(Halves, FloatsAreRoundedToTheNearestAndTiesToEven) {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {  // every tie, and beside every tie
    for (const std::uint32_t low : {0x0000U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U})
      bits.push_back(high << 16 | low);
  }
  Prng prng(5);
  for (int i = 0; i < 100'000; ++i) bits.push_back(static_cast<std::uint32_t>(prng.next()));
  std::vector<float> wide(bits.size());
  std::memcpy(wide.data(), bits.data(), bits.size() * 4);
  const auto narrow = narrowed(wide);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const long double value = half_value(narrow[i], GetParam());
    if (std::isnan(wide[i])) {
      ASSERT_TRUE(std::isnan(value)) << bits[i];
    } else {
      ASSERT_EQ(value, rounded(wide[i], GetParam())) << bits[i];
      ASSERT_EQ(std::signbit(value), std::signbit(wide[i])) << bits[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Both, Halves, testing::Values(DType::kBfloat16, DType::kFloat16),
                         [](const auto& tried) {
                           return std::string(kDTypeNames[static_cast<std::size_t>(tried.param)]);
                         });

// A sum that a 16-bit accumulator would get wrong: 2048 + 1 is 2048 in float16, 256 + 1 in
// bfloat16.
TEST(KernelsHalf, SumsAreRoundedOnce) {
  for (const auto& [dtype, large] :
       {std::pair(DType::kFloat16, 2048.0L), {DType::kBfloat16, 256.0L}}) {
    std::vector<std::vector<std::byte>> sources{encoded({large}, dtype)};
    for (int i = 0; i < 6; ++i) sources.push_back(encoded({1}, dtype));
    EXPECT_EQ(decoded(reduced(ReduceOp::kSum, dtype, sources, 0), dtype)[0], large + 6);
  }
}

template <typename T>
std::vector<T> folded(ReduceOp op, DType dtype, std::vector<T> into, const std::vector<T>& from) {
  fold(op, dtype, false, std::as_writable_bytes(std::span(into)), std::as_bytes(std::span(from)));
  return into;
}

template <typename T>
void expect_nan_wins(DType dtype) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T infinity = std::numeric_limits<T>::infinity();
  std::vector<T> a{nan, 1, nan, infinity, -infinity, infinity};
  std::vector<T> b{1, nan, nan, nan, 5, -infinity};
  for (std::size_t i = 0; i < 186; ++i) {  // the vector loop too, not only its rest
    a.push_back(a[i]);
    b.push_back(b[i]);
  }
  const auto max = folded(ReduceOp::kMax, dtype, a, b);
  const auto min = folded(ReduceOp::kMin, dtype, a, b);
  const auto sum = folded(ReduceOp::kSum, dtype, a, b);
  const auto prod = folded(ReduceOp::kProd, dtype, a, b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::isnan(max[i]), i % 6 < 4) << i;
    EXPECT_EQ(std::isnan(min[i]), i % 6 < 4) << i;
    EXPECT_EQ(std::isnan(sum[i]), i % 6 < 4 || i % 6 == 5) << i;
    EXPECT_EQ(std::isnan(prod[i]), i % 6 < 4) << i;
  }
  EXPECT_EQ(max[4], 5);
  EXPECT_EQ(min[4], -infinity);
}

TEST(KernelsNan, NanWinsAsInNumpy) {
  expect_nan_wins<float>(DType::kFloat32);
  expect_nan_wins<double>(DType::kFloat64);
}

template <typename T>
void expect_wraps(DType dtype) {
  Prng prng(9);
  std::vector<T> a(99);
  std::vector<T> b(99);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<T>(prng.next());
    b[i] = static_cast<T>(prng.next());
  }
  const auto sum = folded(ReduceOp::kSum, dtype, a, b);
  const auto prod = folded(ReduceOp::kProd, dtype, a, b);
  const auto max = folded(ReduceOp::kMax, dtype, a, b);
  const auto min = folded(ReduceOp::kMin, dtype, a, b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<std::uint64_t>(a[i]);
    const auto y = static_cast<std::uint64_t>(b[i]);
    ASSERT_EQ(sum[i], static_cast<T>(x + y));
    ASSERT_EQ(prod[i], static_cast<T>(x * y));
    ASSERT_EQ(max[i], std::max(a[i], b[i]));
    ASSERT_EQ(min[i], std::min(a[i], b[i]));
  }
}

TEST(KernelsIntegers, WrapAroundAsInNumpy) {
  expect_wraps<std::int8_t>(DType::kInt8);
  expect_wraps<std::int16_t>(DType::kInt16);
  expect_wraps<std::int32_t>(DType::kInt32);
  expect_wraps<std::int64_t>(DType::kInt64);
  expect_wraps<std::uint8_t>(DType::kUint8);
  expect_wraps<std::uint16_t>(DType::kUint16);
  expect_wraps<std::uint32_t>(DType::kUint32);
  expect_wraps<std::uint64_t>(DType::kUint64);
}

TEST(KernelsCheck, WrongSizesAreAProgrammersError) {
  std::vector<std::byte> a(8);
  std::vector<std::byte> b(12);
  EXPECT_DEATH(fold(ReduceOp::kSum, DType::kFloat32, false, a, b), "check failed");
  EXPECT_DEATH(fold(ReduceOp::kSum, DType::kFloat64, false, b, b), "check failed");
  EXPECT_DEATH(fold(ReduceOp::kSum, DType::kFloat16, false, a, a), "check failed");
  EXPECT_DEATH(finish(ReduceOp::kSum, DType::kFloat32, 1, a, a), "check failed");
  EXPECT_DEATH(finish(ReduceOp::kMean, DType::kFloat32, 0, a, a), "check failed");
}

}  // namespace
}  // namespace hoplite
