// The values that plan/, wire/ and io/ share: what an object is, where its bytes lie, which
// operation to fold with. Plain data. Reached through messages.h. SPDX-License-Identifier:
// Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"

namespace hoplite {

// A small object's payload on its way through the engine, which moves it and never looks inside.
using Bytes = std::vector<std::byte>;

// A range of this node's arena.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const Extent&) const = default;
};

enum class DType : std::uint8_t { kOpaque = 0, kFloat32 = 1, kFloat64 = 2, kInt64 = 3 };
inline constexpr int kDTypeCount = 4;
enum class ReduceOp : std::uint8_t { kSum = 0, kMax = 1 };
inline constexpr int kReduceOpCount = 2;

constexpr std::uint64_t element_bytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : dtype == DType::kOpaque ? 1 : 8;
}

// What an object is. `layout` belongs to the caller (dtype, shape, offsets of the leaves): it
// travels and is compared, never read. All nodes cut an object by the `block_bytes` of its first
// put.
struct ObjectMeta {
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;  // 0: not known yet
  DType dtype = DType::kOpaque;
  std::string layout;
  bool operator==(const ObjectMeta&) const = default;

  [[nodiscard]] std::uint32_t block_count() const {
    return size_bytes == 0 || block_bytes == 0
               ? 0
               : static_cast<std::uint32_t>((size_bytes + block_bytes - 1) / block_bytes);
  }
};

// The bytes of block `index`; the last block of an object may be short.
inline Extent block_extent(const ObjectMeta& meta, BlockIndex index) {
  const std::uint64_t offset = std::uint64_t{index.value} * meta.block_bytes;
  const std::uint64_t left = meta.size_bytes - offset;
  return {offset, left < meta.block_bytes ? left : meta.block_bytes};
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

// One member of the view. Rails are "address:port" texts that only io/ reads; all members list the
// same networks in the same order, so that rail i of one reaches rail i of another.
struct Member {
  NodeId node;
  Incarnation incarnation;
  std::vector<std::string> rails;
  bool operator==(const Member&) const = default;
};

struct EngineConfig {
  NodeId node;
  Incarnation incarnation{1};
  std::uint64_t arena_bytes = 64_MiB;
  std::uint64_t block_bytes_min = kBlockBytesMin;
  std::uint64_t block_bytes_max = kBlockBytesMax;
  std::uint64_t inline_bytes_max = kInlineBytesMax;
  std::uint16_t broadcast_stripes = 1;  // 1: Hoplite's own (one tree per object)
  std::uint16_t reduce_stripes = 0;     // owners per reduce; 0: one per node but the caller's
  std::uint32_t credit_blocks_min = kCreditBlocksMin;
  std::uint64_t credit_bytes = kCreditBytes;
  std::uint64_t rail_queue_bytes = kRailQueueBytes;
  Duration push_retry = kPushRetry;
  Duration regrant_delay = kRegrantDelay;
  Duration lost_grace = kLostGrace;
  Duration admission_grace = kAdmissionGrace;
  Duration tombstone_life = kTombstoneLife;
};

}  // namespace hoplite
