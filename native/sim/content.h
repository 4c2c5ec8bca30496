// What simulated clients put, and the simulator's own fold: written apart from node/kernels, so
// that one judges the other. Numbers are small integers, so that a sum is exact in every order and
// every dtype. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/prng.h"
#include "plan/messages.h"

namespace hoplite::sim {

inline ObjectId object_named(std::uint64_t number) {
  ObjectId id;
  std::memcpy(id.bytes.data(), &number, sizeof number);
  const std::uint64_t spread = mix64(number);
  std::memcpy(id.bytes.data() + 8, &spread, sizeof spread);
  return id;
}

namespace detail {
template <typename T>
void fill(Bytes& bytes, Prng& prng) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    const T value = static_cast<T>(static_cast<std::int64_t>(prng.below(2001)) - 1000);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
}
template <typename T>
void fold(std::span<std::byte> into, std::span<const std::byte> from, ReduceOp op) {
  for (std::size_t at = 0; at + sizeof(T) <= into.size(); at += sizeof(T)) {
    T a;
    T b;
    std::memcpy(&a, into.data() + at, sizeof a);
    std::memcpy(&b, from.data() + at, sizeof b);
    const T result = op == ReduceOp::kSum ? static_cast<T>(a + b) : std::max(a, b);
    std::memcpy(into.data() + at, &result, sizeof result);
  }
}
}  // namespace detail

// Calls `visit` with a value of the type that `dtype` names. 16-bit floats and opaque bytes have
// none here.
template <typename Visit>
void with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kInt64:
      return visit(std::int64_t{});
    case DType::kInt32:
      return visit(std::int32_t{});
    case DType::kUint64:
      return visit(std::uint64_t{});
    default:
      return visit(std::uint8_t{});
  }
}

// The bytes that attempt `incarnation` puts as `id`: no two attempts and no two objects agree.
inline Bytes content_of(const ObjectId& id, Incarnation incarnation,
                        const std::vector<Part>& parts) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes.data(), sizeof number);
  Prng prng(mix64(number) + incarnation.value);
  Bytes all;
  for (const Part& part : parts) {
    Bytes bytes(part.size_bytes);
    if (part.dtype == DType::kOpaque) {
      for (auto& byte : bytes) byte = static_cast<std::byte>(prng.next());
    } else {
      with_type(part.dtype, [&](auto zero) { detail::fill<decltype(zero)>(bytes, prng); });
    }
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

// into = op(into, from), element by element. REQUIRES: equal sizes.
inline void fold_into(std::span<std::byte> into, std::span<const std::byte> from, DType dtype,
                      ReduceOp op) {
  with_type(dtype, [&](auto zero) { detail::fold<decltype(zero)>(into, from, op); });
}
inline void fold_into(std::span<std::byte> into, std::span<const std::byte> from,
                      const std::vector<Part>& parts, ReduceOp op) {
  std::size_t at = 0;
  for (const Part& part : parts) {
    fold_into(into.subspan(at, part.size_bytes), from.subspan(at, part.size_bytes), part.dtype, op);
    at += part.size_bytes;
  }
}

}  // namespace hoplite::sim
