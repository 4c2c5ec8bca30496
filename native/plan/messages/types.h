// SPDX-License-Identifier: Apache-2.0
// The values that plan/, wire/ and io/ share: what an object is, where its bytes lie, which
// operation to fold with. Plain data. Reached through messages.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/layout.h"
#include "base/limits.h"
#include "plan/messages/dtypes.h"

namespace hoplite {

// A small object's payload on its way through the engine, which moves it and never looks inside.
using Bytes = std::vector<std::byte>;

// A range of this node's arena.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const Extent&) const = default;
};

// A run of an object's bytes that are all of one dtype.
struct Part {
  DType dtype = DType::kOpaque;
  std::uint64_t size_bytes = 0;
  bool operator==(const Part&) const = default;
};

// An object's description: consecutive parts, none if it has no bytes. `layout` belongs to the
// caller (shape and offsets of the leaves): it travels and is compared, never read. All nodes cut
// an object by the `block_bytes` of its first put.
struct ObjectMeta {
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;  // 0: not known yet
  std::vector<Part> parts;
  Layout layout;
  bool operator==(const ObjectMeta&) const = default;

  [[nodiscard]] std::uint32_t block_count() const {
    return size_bytes == 0 || block_bytes == 0
               ? 0
               : static_cast<std::uint32_t>((size_bytes + block_bytes - 1) / block_bytes);
  }
};

// Returns the fault of a description for an error's text, or nullptr if a node can take it. Call
// for every meta that a client or a peer sends. No element straddles two parts or two blocks.
inline const char* fault_of(const ObjectMeta& meta) {
  if (meta.size_bytes > kObjectBytesMax) return "it is larger than any object may be";
  if (meta.layout.size() > kLayoutBytesMax) return "its layout is too long";
  if (meta.parts.size() > kPartsMax) return "it has too many parts";
  if (meta.block_bytes > kBlockBytesMax) return "its blocks are too large";
  if (meta.block_bytes % kPartAlignBytes != 0 && meta.block_bytes < meta.size_bytes) {
    return "its blocks would cut elements in two";
  }
  std::uint64_t left = meta.size_bytes;
  for (const Part& part : meta.parts) {
    if (part.size_bytes == 0 || part.size_bytes > left) return "its parts don't add up to its size";
    left -= part.size_bytes;
    if (part.size_bytes % (left > 0 ? kPartAlignBytes : element_bytes(part.dtype)) != 0) {
      return "a part of it ends inside an element or off the 64-byte grid";
    }
  }
  return left == 0 ? nullptr : "its parts don't add up to its size";
}

// The bytes of block `index`; the last block of an object may be short.
inline Extent block_extent(const ObjectMeta& meta, BlockIndex index) {
  const std::uint64_t offset = std::uint64_t{index.value} * meta.block_bytes;
  const std::uint64_t left = meta.size_bytes - offset;
  return {offset, left < meta.block_bytes ? left : meta.block_bytes};
}

inline bool can_reduce_all(const std::vector<Part>& parts, ReduceOp op) {
  for (const Part& part : parts) {
    if (!can_reduce(part.dtype, op)) return false;
  }
  return true;
}

// The bytes of `range` by dtype, in order.
struct Run {
  DType dtype = DType::kOpaque;
  Extent range;  // in the object
};
inline std::vector<Run> runs_of(const ObjectMeta& meta, Extent range) {
  std::vector<Run> runs;
  std::uint64_t start = 0;
  for (const Part& part : meta.parts) {
    const std::uint64_t begin = start > range.offset ? start : range.offset;
    start += part.size_bytes;
    const std::uint64_t range_end = range.offset + range.size_bytes;
    const std::uint64_t end = start < range_end ? start : range_end;
    if (begin < end) runs.push_back({part.dtype, {begin, end - begin}});
  }
  return runs;
}

// How many of `block_count` blocks are = stripe (mod stripe_count), and the n-th of them.
constexpr std::uint32_t stripe_blocks(std::uint32_t block_count, std::uint16_t stripe_count,
                                      StripeIndex stripe) {
  return block_count <= stripe.value
             ? 0
             : (block_count - stripe.value + stripe_count - 1) / stripe_count;
}
constexpr BlockIndex stripe_block(std::uint16_t stripe_count, StripeIndex stripe, std::uint32_t n) {
  return BlockIndex{stripe.value + n * stripe_count};
}

// The name of the bytes that a message or a copy is about: those of one attempt and, if a reduce
// made them, of one set of its sources. Bytes with a higher name replace the others.
struct BytesName {
  Incarnation incarnation;
  TargetEpoch target_epoch;
  auto operator<=>(const BytesName&) const = default;
};
template <typename T>  // T: a message, a copy, or an entry of the directory
[[nodiscard]] constexpr BytesName name_of_bytes(const T& named) {
  return {named.incarnation, named.target_epoch};
}

// One member of the view. Rails are "address:port" texts that only io/ reads; all members list the
// same networks in the same order, so that rail i of one reaches rail i of another.
struct Member {
  NodeId node;
  Incarnation incarnation;
  std::vector<std::string> rails;
  bool operator==(const Member&) const = default;
};

}  // namespace hoplite
