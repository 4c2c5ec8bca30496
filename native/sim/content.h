// What simulated clients put, and the simulator's own fold: written apart from node/kernels, so
// that one judges the other. Numbers are small integers, so that a sum is exact in every order and
// every dtype. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

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

// The bytes that attempt `incarnation` puts as `id`: no two attempts and no two objects agree.
inline Bytes content_of(const ObjectId& id, Incarnation incarnation, DType dtype,
                        std::uint64_t size_bytes) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes.data(), sizeof number);
  Prng prng(mix64(number) + incarnation.value);
  Bytes bytes(size_bytes);
  switch (dtype) {
    case DType::kFloat32:
      detail::fill<float>(bytes, prng);
      break;
    case DType::kFloat64:
      detail::fill<double>(bytes, prng);
      break;
    case DType::kInt64:
      detail::fill<std::int64_t>(bytes, prng);
      break;
    case DType::kOpaque:
      for (auto& byte : bytes) byte = static_cast<std::byte>(prng.next());
      break;
  }
  return bytes;
}

// into = op(into, from), element by element. REQUIRES: equal sizes.
inline void fold_into(std::span<std::byte> into, std::span<const std::byte> from, DType dtype,
                      ReduceOp op) {
  if (dtype == DType::kFloat32) detail::fold<float>(into, from, op);
  if (dtype == DType::kFloat64) detail::fold<double>(into, from, op);
  if (dtype == DType::kInt64) detail::fold<std::int64_t>(into, from, op);
}

}  // namespace hoplite::sim
