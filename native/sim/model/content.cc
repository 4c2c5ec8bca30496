// SPDX-License-Identifier: Apache-2.0
#include "sim/model/content.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "wire/crc32c.h"

namespace hoplite::sim {
namespace {

// ---- 16-bit floats, by their definition

struct Format {
  int mantissa_bits;
  int bias;
};
constexpr Format format_of(DType dtype) {
  return dtype == DType::kFloat16 ? Format{10, 15} : Format{7, 127};
}

float widened(std::uint32_t bits, Format format) {
  const std::uint32_t one = 1U << format.mantissa_bits;
  const std::uint32_t mantissa = bits & (one - 1);
  const int exponent = static_cast<int>(bits & 0x7fffU) >> format.mantissa_bits;
  float magnitude = std::numeric_limits<float>::infinity();
  if (exponent == 2 * format.bias + 1) {
    if (mantissa != 0) magnitude = std::numeric_limits<float>::quiet_NaN();
  } else {
    const std::uint32_t digits = exponent == 0 ? mantissa : mantissa + one;
    const int scale = std::max(exponent, 1) - format.bias - format.mantissa_bits;
    magnitude = std::ldexp(static_cast<float>(digits), scale);
  }
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

const std::vector<float>& all_widened(DType dtype) {
  static const auto make = [](DType each) {
    std::vector<float> all(0x10000);
    for (std::uint32_t bits = 0; bits < all.size(); ++bits)
      all[bits] = widened(bits, format_of(each));
    return all;
  };
  static const std::vector<float> float16 = make(DType::kFloat16);
  static const std::vector<float> bfloat16 = make(DType::kBfloat16);
  return dtype == DType::kFloat16 ? float16 : bfloat16;
}

std::uint16_t rounded(float value, Format format) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const auto infinity = static_cast<std::uint32_t>(2 * format.bias + 1) << format.mantissa_bits;
  std::uint32_t bits = infinity;
  if (std::isnan(value)) {
    bits = infinity + (1U << (format.mantissa_bits - 1));
  } else if (std::isfinite(value)) {
    int exponent = 0;
    std::frexp(value, &exponent);
    exponent = std::max(exponent - 1, 1 - format.bias);
    const float digits =
        std::nearbyint(std::ldexp(std::abs(value), format.mantissa_bits - exponent));
    const auto carried = static_cast<std::uint32_t>(exponent + format.bias - 1)
                         << format.mantissa_bits;
    bits = std::min(carried + static_cast<std::uint32_t>(digits), infinity);
  }
  return static_cast<std::uint16_t>(bits | sign);
}

// ---- elements

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}
template <typename T>
void store(std::span<std::byte> bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof value, &value, sizeof value);
}

// Calls `visit` with a value of the accumulators' type.
template <typename Visit>
void with_accumulator(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kBfloat16:
    case DType::kFloat16:
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
    case DType::kUint8:
    case DType::kBool:
    case DType::kSame:
    case DType::kOpaque:
      return visit(std::uint8_t{});
  }
}

template <typename T>
T combined(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kMax) return std::max(a, b);
  if (op == ReduceOp::kMin) return std::min(a, b);
  if constexpr (std::is_floating_point_v<T>) {
    return op == ReduceOp::kProd ? a * b : a + b;
  } else {
    using Unsigned = std::make_unsigned_t<T>;  // wraps around
    const std::uint64_t x = static_cast<Unsigned>(a);
    const std::uint64_t y = static_cast<Unsigned>(b);
    return static_cast<T>(op == ReduceOp::kProd ? x * y : x + y);
  }
}

// One or three times a power of two: products of a few have as few bits.
float some_float(Prng& prng) {
  const float digits = prng.chance(50) ? 1 : 3;
  const float value = digits * static_cast<float>(1U << prng.below(7));
  return prng.chance(50) ? value : -value;
}

// Sums of these depend on their order, of 16-bit ones too: their magnitudes lie far apart.
double rough_float(Prng& prng) {
  const double digits = 1 + static_cast<double>(prng.below(1ULL << 52)) * 0x1p-52;
  const double value = std::ldexp(digits, static_cast<int>(prng.below(27)) - 13);
  return prng.chance(50) ? value : -value;
}

void fill_floats(std::span<std::byte> bytes, DType dtype, Prng& prng, bool rough) {
  for (std::size_t i = 0; i < bytes.size() / element_bytes(dtype); ++i) {
    const double value = rough ? rough_float(prng) : some_float(prng);
    if (is_half(dtype)) {
      store(bytes, i, rounded(static_cast<float>(value), format_of(dtype)));
    } else if (dtype == DType::kFloat32) {
      store(bytes, i, static_cast<float>(value));
    } else {
      store(bytes, i, value);
    }
  }
}

void fill(std::span<std::byte> bytes, DType dtype, Prng& prng, bool rough) {
  if (is_float(dtype)) return fill_floats(bytes, dtype, prng, rough);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t mask = dtype == DType::kBool ? 0x0101010101010101U : ~std::uint64_t{0};
    const std::uint64_t word = prng.next() & mask;
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

}  // namespace

std::string layout_of(const std::vector<Part>& parts) {
  std::string layout = "layout";
  if (parts.size() < 2) return layout;
  for (const Part& part : parts) {
    layout += " of elements of the dtype " + std::to_string(static_cast<int>(part.dtype)) + " and";
  }
  return layout;
}

Bytes content_of(const ObjectId& id, Incarnation incarnation, const std::vector<Part>& parts,
                 bool rough) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes.data(), sizeof number);
  Prng prng(mix64(number) + incarnation.value);
  Bytes all;
  for (const Part& part : parts) {
    Bytes bytes(part.size_bytes);
    Prng same(part.size_bytes);  // all objects have these bytes
    fill(bytes, part.dtype, part.dtype == DType::kSame ? same : prng, rough);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Bytes delta_between(std::span<const std::byte> base, std::span<const std::byte> whole) {
  Bytes delta(kDeltaChecksumBytes + whole.size());
  store(delta, 0, crc32c(base));
  store(delta, 1, crc32c(whole));
  for (std::size_t i = 0; i < whole.size(); ++i)
    delta[kDeltaChecksumBytes + i] = base[i] ^ whole[i];
  return delta;
}

bool apply_deltas(std::span<const std::byte> base,
                  std::span<const std::span<const std::byte>> deltas, std::uint64_t from,
                  std::uint64_t upto, std::span<std::byte> target) {
  for (const auto& delta : deltas) {
    if (delta.size() != target.size() + kDeltaChecksumBytes) return false;
  }
  for (std::uint64_t i = from; i < upto; ++i) {
    target[i] = base[i];
    for (const auto& delta : deltas) target[i] ^= delta[kDeltaChecksumBytes + i];
  }
  return true;
}

bool are_deltas_of(std::span<const std::byte> base, std::span<const std::byte> whole,
                   std::span<const std::span<const std::byte>> deltas) {
  std::uint32_t before = crc32c(base);
  for (const auto& delta : deltas) {
    if (load<std::uint32_t>(delta, 0) != before) return false;
    before = load<std::uint32_t>(delta, 1);
  }
  return before == crc32c(whole);
}

void gather_runs(std::span<const StridedRuns> runs, std::span<const std::byte> source,
                 std::uint64_t from, std::uint64_t upto, std::span<std::byte> excerpt) {
  for (std::uint64_t i = from; i < upto; ++i) {
    excerpt[i] = std::byte{0};
    for (const StridedRuns& run : runs) {
      if (i < run.into || i >= run.into + run.run_bytes * run.count) continue;
      const std::uint64_t at = i - run.into;
      excerpt[i] = source[run.from + at / run.run_bytes * run.stride_bytes + at % run.run_bytes];
    }
  }
}

void fold_into(std::span<std::byte> into, std::span<const std::byte> from, DType dtype, ReduceOp op,
               bool first) {
  with_accumulator(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < into.size() / sizeof(T); ++i) {
      T value;
      if constexpr (std::is_same_v<T, float>) {
        value = is_half(dtype) ? all_widened(dtype)[load<std::uint16_t>(from, i)]
                               : load<float>(from, i);
      } else {
        value = load<T>(from, i);
      }
      if (!first && dtype == DType::kSame) continue;
      store(into, i, first ? value : combined(op, load<T>(into, i), value));
    }
  });
}

void finish_into(std::span<std::byte> into, std::span<const std::byte> from, DType dtype,
                 ReduceOp op, std::uint32_t sources) {
  const std::uint32_t divisor = op == ReduceOp::kMean ? sources : 1;
  for (std::size_t i = 0; i < into.size() / element_bytes(dtype); ++i) {
    if (dtype == DType::kFloat64) {
      store(into, i, load<double>(from, i) / divisor);
      continue;
    }
    const float value = load<float>(from, i) / static_cast<float>(divisor);
    if (is_half(dtype)) {
      store(into, i, rounded(value, format_of(dtype)));
    } else {
      store(into, i, value);
    }
  }
}

namespace {

// The result's bytes of a part from its accumulators.
void finish_part(std::span<std::byte> into, const Bytes& accumulators, DType dtype, ReduceOp op,
                 std::size_t sources) {
  if (needs_finish(dtype, op)) {
    finish_into(into, accumulators, dtype, op, static_cast<std::uint32_t>(sources));
  } else {
    std::copy(accumulators.begin(), accumulators.end(), into.begin());
  }
}

Bytes accumulators_for(const Part& part) {
  return Bytes(part.size_bytes / element_bytes(part.dtype) * accumulator_bytes(part.dtype));
}

// The accumulators of the sources with an index of [first, first + span), span a power of two;
// empty when there is none.
Bytes pairwise(const std::map<std::uint32_t, std::span<const std::byte>>& sources,
               std::uint64_t first, std::uint64_t span, const Part& part, std::size_t at,
               ReduceOp op) {
  if (span == 1) {
    const auto source = sources.find(static_cast<std::uint32_t>(first));
    if (source == sources.end()) return {};
    Bytes leaf = accumulators_for(part);
    fold_into(leaf, source->second.subspan(at, part.size_bytes), part.dtype, op, true);
    return leaf;
  }
  Bytes left = pairwise(sources, first, span / 2, part, at, op);
  Bytes right = pairwise(sources, first + span / 2, span / 2, part, at, op);
  if (left.empty()) return right;
  if (right.empty()) return left;
  fold_into(left, right, is_half(part.dtype) ? DType::kFloat32 : part.dtype, op, false);
  return left;
}

}  // namespace

Bytes reduce_all(const std::vector<Part>& parts, ReduceOp op,
                 const std::vector<std::span<const std::byte>>& sources) {
  Bytes result(sources[0].size());
  std::size_t at = 0;
  for (const Part& part : parts) {
    Bytes accumulators = accumulators_for(part);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto source = sources[i].subspan(at, part.size_bytes);
      fold_into(accumulators, source, part.dtype, op, i == 0);
    }
    finish_part(std::span(result).subspan(at, part.size_bytes), accumulators, part.dtype, op,
                sources.size());
    at += part.size_bytes;
  }
  return result;
}

Bytes reduce_pairwise(const std::vector<Part>& parts, ReduceOp op,
                      const std::map<std::uint32_t, std::span<const std::byte>>& sources) {
  Bytes result(sources.begin()->second.size());
  const std::uint64_t span = std::bit_ceil(std::uint64_t{sources.rbegin()->first} + 1);
  std::size_t at = 0;
  for (const Part& part : parts) {
    finish_part(std::span(result).subspan(at, part.size_bytes),
                pairwise(sources, 0, span, part, at, op), part.dtype, op, sources.size());
    at += part.size_bytes;
  }
  return result;
}

}  // namespace hoplite::sim
