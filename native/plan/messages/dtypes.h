// SPDX-License-Identifier: Apache-2.0
// Element types that the kernels know, operations of reduces, and the pairs that are allowed.
// Numbers are the wire's: never reuse one. Reached through messages.h.
#pragma once

#include <cstdint>
#include <iterator>

namespace hoplite {

enum class DType : std::uint8_t {
  kOpaque = 0,  // bytes that no kernel knows: they travel and can't be reduced
  kFloat32 = 1,
  kFloat64 = 2,
  kInt64 = 3,
  kBfloat16 = 4,
  kFloat16 = 5,
  kInt8 = 6,
  kInt16 = 7,
  kInt32 = 8,
  kUint8 = 9,
  kUint16 = 10,
  kUint32 = 11,
  kUint64 = 12,
  kBool = 13,
  kSame = 14,  // bytes that are equal in all sources, as a layout's text (decision 40): copied
};
inline constexpr int kDTypeCount = 15;
inline constexpr const char* kDTypeNames[] = {
    "opaque bytes", "float32", "float64", "int64",  "bfloat16", "float16", "int8", "int16",
    "int32",        "uint8",   "uint16",  "uint32", "uint64",   "bool",    "same"};
static_assert(std::size(kDTypeNames) == kDTypeCount, "a new dtype needs its name here");

enum class ReduceOp : std::uint8_t { kSum = 0, kMax = 1, kMin = 2, kProd = 3, kMean = 4 };
inline constexpr int kReduceOpCount = 5;
inline constexpr const char* kReduceOpNames[] = {"sum", "max", "min", "prod", "mean"};
static_assert(std::size(kReduceOpNames) == kReduceOpCount, "a new operation needs its name here");

constexpr std::uint64_t element_bytes(DType dtype) {
  constexpr std::uint8_t kBytes[] = {1, 4, 8, 8, 2, 2, 1, 2, 4, 1, 2, 4, 8, 1, 1};
  static_assert(std::size(kBytes) == kDTypeCount, "a new dtype needs its bytes here");
  return kBytes[static_cast<std::uint8_t>(dtype)];
}

// These are folded into a float32 accumulator and rounded once, when the last member is in.
constexpr bool is_half(DType dtype) {
  return dtype == DType::kBfloat16 || dtype == DType::kFloat16;
}
constexpr bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || is_half(dtype);
}

constexpr std::uint64_t accumulator_bytes(DType dtype) {
  return is_half(dtype) ? 4 : element_bytes(dtype);
}
// True if the folded value needs a last step to become the result.
constexpr bool needs_finish(DType dtype, ReduceOp op) {
  return is_half(dtype) || (op == ReduceOp::kMean && dtype != DType::kSame);
}

// Means of integers would need another dtype, and a sum of bools is no bool.
constexpr bool can_reduce(DType dtype, ReduceOp op) {
  if (dtype == DType::kOpaque) return false;
  if (dtype == DType::kBool) return op == ReduceOp::kMax || op == ReduceOp::kMin;
  return op != ReduceOp::kMean || is_float(dtype) || dtype == DType::kSame;
}

}  // namespace hoplite
