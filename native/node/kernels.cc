// SPDX-License-Identifier: Apache-2.0
#include "node/kernels.h"

#include <cstdint>

#include "base/check.h"

// One function per processor, chosen at load time. Not under sanitizers: the loader calls the
// chooser before their run-time is ready.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOPLITE_FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HOPLITE_FOR_EACH_PROCESSOR
#endif

namespace hoplite {
namespace {

// Elements as they lie in the arena: at any address, written by anybody.
using Float32 = float __attribute__((aligned(1), may_alias));
using Float64 = double __attribute__((aligned(1), may_alias));
using Int64 = std::uint64_t __attribute__((aligned(1), may_alias));       // sums wrap around
using SignedInt64 = std::int64_t __attribute__((aligned(1), may_alias));  // max compares

static_assert(sizeof(Float32) == 4 && sizeof(Float64) == 8);

#define HOPLITE_KERNEL(name, type, expression)                                                 \
  HOPLITE_FOR_EACH_PROCESSOR                                                                   \
  void name(std::byte* __restrict into, const std::byte* __restrict from, std::size_t count) { \
    auto* const a_first = reinterpret_cast<type*>(into);                                       \
    const auto* const b_first = reinterpret_cast<const type*>(from);                           \
    for (std::size_t i = 0; i < count; ++i) {                                                  \
      const auto a = a_first[i];                                                               \
      const auto b = b_first[i];                                                               \
      a_first[i] = expression;                                                                 \
    }                                                                                          \
  }

HOPLITE_KERNEL(sum_float32, Float32, a + b)
HOPLITE_KERNEL(sum_float64, Float64, a + b)
HOPLITE_KERNEL(sum_int64, Int64, a + b)
// a where it is larger or NaN, else b (which may be NaN too).
HOPLITE_KERNEL(max_float32, Float32, (a > b || a != a) ? a : b)
HOPLITE_KERNEL(max_float64, Float64, (a > b || a != a) ? a : b)
HOPLITE_KERNEL(max_int64, SignedInt64, a > b ? a : b)

#undef HOPLITE_KERNEL

}  // namespace

void fold(ReduceOp op, DType dtype, std::span<std::byte> into, std::span<const std::byte> from) {
  HOPLITE_CHECK(dtype != DType::kOpaque);
  HOPLITE_CHECK(into.size() == from.size());
  HOPLITE_CHECK(into.size() % element_bytes(dtype) == 0);
  const std::size_t count = into.size() / element_bytes(dtype);
  const bool is_sum = op == ReduceOp::kSum;
  switch (dtype) {
    case DType::kFloat32:
      return (is_sum ? sum_float32 : max_float32)(into.data(), from.data(), count);
    case DType::kFloat64:
      return (is_sum ? sum_float64 : max_float64)(into.data(), from.data(), count);
    case DType::kInt64:
      return (is_sum ? sum_int64 : max_int64)(into.data(), from.data(), count);
    case DType::kOpaque:
      break;
  }
}

}  // namespace hoplite
