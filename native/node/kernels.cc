// SPDX-License-Identifier: Apache-2.0
#include "node/kernels.h"

#include <cstdint>
#include <cstring>

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

// Elements lie at any address, so they are copied in and out; the compiler makes vector loads of
// it.
template <typename T>
[[gnu::always_inline]] inline T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

#define HOPLITE_KERNEL(name, type, expression)                                                 \
  HOPLITE_FOR_EACH_PROCESSOR                                                                   \
  void name(std::byte* __restrict into, const std::byte* __restrict from, std::size_t count) { \
    for (std::size_t i = 0; i < count * sizeof(type); i += sizeof(type)) {                     \
      const auto a = load<type>(into + i);                                                     \
      const auto b = load<type>(from + i);                                                     \
      const type folded = expression;                                                          \
      std::memcpy(into + i, &folded, sizeof folded);                                           \
    }                                                                                          \
  }

HOPLITE_KERNEL(sum_float32, float, a + b)
HOPLITE_KERNEL(sum_float64, double, a + b)
HOPLITE_KERNEL(sum_int64, std::uint64_t, a + b)  // unsigned, so that it wraps around
// a where it is larger or NaN, else b (which may be NaN too).
HOPLITE_KERNEL(max_float32, float, (a > b || a != a) ? a : b)
HOPLITE_KERNEL(max_float64, double, (a > b || a != a) ? a : b)
HOPLITE_KERNEL(max_int64, std::int64_t, a > b ? a : b)

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
