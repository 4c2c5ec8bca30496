// SPDX-License-Identifier: Apache-2.0
#include "node/kernels.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "base/check.h"

// One function per processor, chosen at load time. Not under sanitizers: the loader calls the
// chooser before their run-time is ready.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOPLITE_FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HOPLITE_FOR_EACH_PROCESSOR
#endif
#define HOPLITE_INLINE [[gnu::always_inline]] inline

namespace hoplite {
namespace {

// ---- 16-bit floats: branch-free integer arithmetic, which the compiler makes vectors of

struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

HOPLITE_INLINE float widen(Bfloat16 half) {
  return std::bit_cast<float>(std::uint32_t{half.bits} << 16);
}

// The exponent's bias changes by a multiplication, which takes care of subnormals.
HOPLITE_INLINE float widen(Float16 half) {
  const std::uint32_t magnitude = (half.bits & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const std::uint32_t special = scaled >= 0x1p16F ? 0x7f800000U : 0U;  // infinity or NaN
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special |
                              (half.bits & 0x8000U) << 16);
}

HOPLITE_INLINE std::uint16_t narrow_bits(float value, Bfloat16) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffU + (bits >> 16 & 1U);
  return static_cast<std::uint16_t>((value != value ? bits | 0x400000U : rounded) >> 16);
}

HOPLITE_INLINE std::uint16_t narrow_bits(float value, Float16) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Normal: the bias changes from 127 to 15; a carry out of the mantissa is the next exponent.
  const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
  // Subnormal: an addition shifts the mantissa to where its last bit counts 2^-24, and rounds it.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - (126U << 23);
  const std::uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  const std::uint32_t finite = magnitude < (113U << 23) ? subnormal : normal;
  return static_cast<std::uint16_t>((magnitude >= (143U << 23) ? special : finite) |
                                    (bits >> 16 & 0x8000U));
}

// ---- one element

template <typename T>
constexpr bool is_half_type = std::is_same_v<T, Bfloat16> || std::is_same_v<T, Float16>;
template <typename T>
using AccumulatorOf = std::conditional_t<is_half_type<T>, float, T>;

// Elements lie at any address, so they are copied in and out; the compiler makes vector loads of
// it.
template <typename T>
HOPLITE_INLINE T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <typename T>
HOPLITE_INLINE AccumulatorOf<T> load_element(const std::byte* from) {
  if constexpr (is_half_type<T>) {
    return widen(load<T>(from));
  } else {
    return load<T>(from);
  }
}

// Integers are added and multiplied as unsigned ones of at least 32 bits, so that they wrap around.
template <typename T>
using Wrapping =
    std::conditional_t<std::is_floating_point_v<T>, T,
                       std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>>;

template <ReduceOp kOp, typename T>
HOPLITE_INLINE T combined(T a, T b) {
  if constexpr (kOp == ReduceOp::kSum) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  } else if constexpr (kOp == ReduceOp::kProd) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  } else if constexpr (kOp == ReduceOp::kMax) {  // a where it is larger or NaN
    return a > b || a != a ? a : b;
  } else {
    return a < b || a != a ? a : b;
  }
}

// ---- loops

template <ReduceOp kOp, typename T>
HOPLITE_INLINE void fold_all(std::byte* __restrict into, const std::byte* __restrict from,
                             std::size_t count) {
  using Accumulator = AccumulatorOf<T>;
  for (std::size_t i = 0; i < count; ++i) {
    const auto folded = combined<kOp>(load<Accumulator>(into + i * sizeof(Accumulator)),
                                      load_element<T>(from + i * sizeof(T)));
    std::memcpy(into + i * sizeof folded, &folded, sizeof folded);
  }
}

template <typename T>
HOPLITE_INLINE void widen_all(std::byte* __restrict into, const std::byte* __restrict from,
                              std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float wide = load_element<T>(from + i * sizeof(T));
    std::memcpy(into + i * sizeof wide, &wide, sizeof wide);
  }
}

// `divisor` 1 changes nothing.
template <typename T>
HOPLITE_INLINE void narrow_all(std::byte* __restrict into, const std::byte* __restrict from,
                               std::size_t count, float divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t bits = narrow_bits(load<float>(from + i * sizeof(float)) / divisor, T{});
    std::memcpy(into + i * sizeof bits, &bits, sizeof bits);
  }
}

template <typename T>
HOPLITE_INLINE void divide_all(std::byte* values, std::size_t count, T divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    const T value = load<T>(values + i * sizeof(T)) / divisor;
    std::memcpy(values + i * sizeof value, &value, sizeof value);
  }
}

// Equal bytes: those of the first source stay.
void keep_first(std::byte* __restrict, const std::byte* __restrict, std::size_t) {}

using FoldKernel = void (*)(std::byte*, const std::byte*, std::size_t);

// Named functions, because that is what the compiler can clone.
#define HOPLITE_KERNEL(name, body, ...)                                                        \
  HOPLITE_FOR_EACH_PROCESSOR                                                                   \
  void name(std::byte* __restrict into, const std::byte* __restrict from, std::size_t count) { \
    body<__VA_ARGS__>(into, from, count);                                                      \
  }
#define HOPLITE_KERNELS(type, T)                                                       \
  HOPLITE_KERNEL(sum_##type, fold_all, ReduceOp::kSum, T)                              \
  HOPLITE_KERNEL(max_##type, fold_all, ReduceOp::kMax, T)                              \
  HOPLITE_KERNEL(min_##type, fold_all, ReduceOp::kMin, T)                              \
  HOPLITE_KERNEL(prod_##type, fold_all, ReduceOp::kProd, T)                            \
  constexpr FoldKernel k_##type[kReduceOpCount] = {sum_##type, max_##type, min_##type, \
                                                   prod_##type, sum_##type};

constexpr FoldKernel k_same[kReduceOpCount] = {keep_first, keep_first, keep_first, keep_first,
                                               keep_first};

HOPLITE_KERNELS(float32, float)
HOPLITE_KERNELS(float64, double)
HOPLITE_KERNELS(int64, std::int64_t)
HOPLITE_KERNELS(bfloat16, Bfloat16)
HOPLITE_KERNELS(float16, Float16)
HOPLITE_KERNELS(int8, std::int8_t)
HOPLITE_KERNELS(int16, std::int16_t)
HOPLITE_KERNELS(int32, std::int32_t)
HOPLITE_KERNELS(uint8, std::uint8_t)
HOPLITE_KERNELS(uint16, std::uint16_t)
HOPLITE_KERNELS(uint32, std::uint32_t)
HOPLITE_KERNELS(uint64, std::uint64_t)
HOPLITE_KERNEL(widen_bfloat16, widen_all, Bfloat16)
HOPLITE_KERNEL(widen_float16, widen_all, Float16)

#undef HOPLITE_KERNELS
#undef HOPLITE_KERNEL

HOPLITE_FOR_EACH_PROCESSOR
void narrow_bfloat16(std::byte* __restrict into, const std::byte* __restrict from,
                     std::size_t count, float divisor) {
  narrow_all<Bfloat16>(into, from, count, divisor);
}
HOPLITE_FOR_EACH_PROCESSOR
void narrow_float16(std::byte* __restrict into, const std::byte* __restrict from, std::size_t count,
                    float divisor) {
  narrow_all<Float16>(into, from, count, divisor);
}
HOPLITE_FOR_EACH_PROCESSOR
void divide_float32(std::byte* values, std::size_t count, float divisor) {
  divide_all<float>(values, count, divisor);
}
HOPLITE_FOR_EACH_PROCESSOR
void divide_float64(std::byte* values, std::size_t count, double divisor) {
  divide_all<double>(values, count, divisor);
}

// By the number of the dtype; bools are bytes, whose max is any and whose min is all.
constexpr const FoldKernel* kFolds[] = {nullptr,   k_float32, k_float64, k_int64, k_bfloat16,
                                        k_float16, k_int8,    k_int16,   k_int32, k_uint8,
                                        k_uint16,  k_uint32,  k_uint64,  k_uint8, k_same};
static_assert(std::size(kFolds) == kDTypeCount, "a new dtype needs its kernels here");

void check_sizes(DType dtype, std::size_t accumulators, std::size_t elements) {
  HOPLITE_CHECK(accumulators % accumulator_bytes(dtype) == 0);
  HOPLITE_CHECK(elements % element_bytes(dtype) == 0);
  HOPLITE_CHECK(accumulators / accumulator_bytes(dtype) == elements / element_bytes(dtype));
}

}  // namespace

void fold(ReduceOp op, DType dtype, bool first, std::span<std::byte> into,
          std::span<const std::byte> from) {
  HOPLITE_CHECK(can_reduce(dtype, op));
  check_sizes(dtype, into.size(), from.size());
  const std::size_t count = from.size() / element_bytes(dtype);
  if (count == 0) return;
  if (!first) {
    kFolds[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)](into.data(), from.data(),
                                                                          count);
  } else if (dtype == DType::kBfloat16) {
    widen_bfloat16(into.data(), from.data(), count);
  } else if (dtype == DType::kFloat16) {
    widen_float16(into.data(), from.data(), count);
  } else {
    std::memcpy(into.data(), from.data(), from.size());
  }
}

void finish(ReduceOp op, DType dtype, std::uint32_t sources, std::span<std::byte> into,
            std::span<const std::byte> from) {
  HOPLITE_CHECK(needs_finish(dtype, op));
  HOPLITE_CHECK(sources >= 1);
  check_sizes(dtype, from.size(), into.size());
  const std::size_t count = into.size() / element_bytes(dtype);
  const std::uint32_t divisor = op == ReduceOp::kMean ? sources : 1;
  if (dtype == DType::kBfloat16) {
    narrow_bfloat16(into.data(), from.data(), count, static_cast<float>(divisor));
  } else if (dtype == DType::kFloat16) {
    narrow_float16(into.data(), from.data(), count, static_cast<float>(divisor));
  } else {
    HOPLITE_CHECK(into.data() == from.data());
    if (dtype == DType::kFloat32) divide_float32(into.data(), count, static_cast<float>(divisor));
    if (dtype == DType::kFloat64) divide_float64(into.data(), count, divisor);
  }
}

}  // namespace hoplite
