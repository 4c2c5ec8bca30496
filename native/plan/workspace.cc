// SPDX-License-Identifier: Apache-2.0
#include "plan/workspace.h"

#include <algorithm>

#include "base/check.h"

namespace hoplite {
namespace {

std::uint64_t accumulator_bytes(const ObjectMeta& meta, BlockIndex block) {
  std::uint64_t bytes = 0;
  for (const Run& run : runs_of(meta, block_extent(meta, block))) {
    if (is_half(run.dtype)) bytes += 2 * run.range.size_bytes;
  }
  return (bytes + kPartAlignBytes - 1) / kPartAlignBytes * kPartAlignBytes;
}

}  // namespace

ObjectId workspace_key(const ObjectId& target) {
  ObjectId key = target;
  for (auto& byte : key.bytes) byte = static_cast<std::uint8_t>(byte ^ 0xa5);
  return key;
}

std::optional<std::uint64_t> Workspace::ask(const ReduceOwn& own, std::uint64_t slots_bytes) {
  std::map<BlockIndex, std::uint64_t> missing;
  const bool has_halves = std::any_of(own.meta.parts.begin(), own.meta.parts.end(),
                                      [](const Part& part) { return is_half(part.dtype); });
  for (const StripeIndex stripe : own.owned) {
    const auto total = stripe_blocks(own.meta.block_count(), own.stripe_count, stripe);
    for (std::uint32_t n = 0; has_halves && n < total; ++n) {
      const BlockIndex block = stripe_block(own.stripe_count, stripe, n);
      if (accumulators_.contains(block)) continue;
      if (const auto bytes = accumulator_bytes(own.meta, block)) missing.emplace(block, bytes);
    }
  }
  const bool is_known = std::includes(asked_.begin(), asked_.end(), missing.begin(), missing.end());
  if (is_asking_ ? is_known : slots_ && missing.empty()) return std::nullopt;
  is_asking_ = true;
  asked_ = std::move(missing);
  slots_asked_bytes_ = slots_ ? 0 : slots_bytes;
  std::uint64_t total = slots_asked_bytes_;
  for (const auto& [block, bytes] : asked_) total += bytes;
  return total;
}

void Workspace::place(Extent range) {
  HOPLITE_CHECK(is_asking_);
  is_asking_ = false;
  ranges_.push_back(range);
  std::uint64_t at = range.offset;
  for (const auto& [block, bytes] : asked_) {
    accumulators_.emplace(block, at);
    at += bytes;
  }
  asked_.clear();
  if (!slots_) slots_ = Extent{at, slots_asked_bytes_};
  HOPLITE_CHECK(at + slots_asked_bytes_ <= range.offset + range.size_bytes);
}

}  // namespace hoplite
