// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/local_object.h"

#include <algorithm>

namespace hoplite {

void LocalObject::begin(const BytesName& name, const ObjectMeta& described, Keep why,
                        Finality how) {
  if (why == Keep::kMade) adopting = false;  // the home asked this node to keep other bytes
  incarnation = name.incarnation;
  target_epoch = name.target_epoch;
  meta = described;
  keep = why;
  finality = how;
  sums.clear();
  takes_sums = true;
}

void LocalObject::keep_sum(BlockIndex block, std::uint32_t crc32c) {
  if (block.value >= meta.block_count()) return;
  sums.resize(meta.block_count());
  sums[block.value] = crc32c;
}

bool LocalObject::is_complete() const {
  return extent && !is_writing() && !is_read_back() && !stripes.empty() &&
         std::all_of(stripes.begin(), stripes.end(),
                     [](const LocalStripe& s) { return s.state == StripeState::kComplete; });
}

bool LocalObject::has_block(BlockIndex block) const {
  if (!extent || stripes.empty()) return false;
  if (is_writing() || is_read_back()) {
    const Extent range = block_extent(meta, block);
    return range.offset + range.size_bytes <= written_bytes;
  }
  const auto count = static_cast<std::uint32_t>(stripes.size());
  const LocalStripe& stripe = stripes[block.value % count];
  const std::uint32_t n = block.value / count;
  return stripe.state == StripeState::kComplete || n < stripe.ready || stripe.beyond.contains(n);
}

// A stripe's blocks lie between those of the others, so the first one that a stripe lacks ends the
// prefix.
std::uint64_t LocalObject::ready_bytes() const {
  if (!extent || stripes.empty()) return 0;
  if (is_writing() || is_read_back()) return written_bytes;
  std::uint64_t blocks = meta.block_count();
  for (std::size_t i = 0; i < stripes.size(); ++i) {
    if (stripes[i].state == StripeState::kComplete) continue;
    blocks = std::min<std::uint64_t>(blocks, i + stripes[i].ready * stripes.size());
  }
  return std::min(blocks * meta.block_bytes, meta.size_bytes);
}

bool LocalObject::is_idle() const {
  const bool is_spare = orphaned || elsewhere;  // also in part, as an owner's stripes
  return extent && !is_writing() && !spilling && is_final() && pins.empty() && !is_wanted() &&
         (is_complete() || is_spare);
}

bool LocalObject::has_range(Extent range) const {
  if (!spans(range) || (meta.block_bytes == 0 && range.size_bytes > 0)) return false;
  const std::uint64_t end = range.offset + range.size_bytes;
  if (is_writing() || is_read_back()) return extent && end <= written_bytes;
  for (std::uint64_t at = range.offset; at < end; at += meta.block_bytes - at % meta.block_bytes) {
    if (!has_block(BlockIndex{static_cast<std::uint32_t>(at / meta.block_bytes)})) return false;
  }
  return true;
}

Claim make_claim(const ObjectId& id, const LocalObject& object, bool waits) {
  const bool is_kept = object.elsewhere || !object.orphaned;
  const bool is_others = object.adopting || (object.keep == Keep::kAdopted && is_kept);
  Claim claim{.object = id,
              .incarnation = object.incarnation,
              .target_epoch = object.target_epoch,
              .meta = object.meta,
              .wants = object.is_wanted() && !object.is_whole() && !object.is_writing() &&
                       (!waits || object.is_late_copy()),
              .exists = object.exists,
              .pinned = object.is_pinned() || object.adopting,
              .orphaned = object.orphaned,
              .elsewhere = object.elsewhere,
              .committed = object.is_final(),
              .excerpt = object.is_excerpt,
              .owner = is_others ? object.owner : kNoNode,
              .copies = object.is_pinned() || object.adopting ? object.copies : std::uint8_t{0},
              .awaits_copies = false,
              .stripes = {}};
  if (!object.is_here()) return claim;
  if (object.is_writing() || object.is_whole()) {
    const auto state = object.is_writing() ? StripeState::kRoot : StripeState::kComplete;
    claim.stripes.push_back({StripeIndex{0}, state, object.stripes[0].lease, kNoNode, 0});
    return claim;
  }
  for (std::size_t i = 0; i < object.stripes.size(); ++i) {
    const LocalStripe& stripe = object.stripes[i];
    claim.stripes.push_back({StripeIndex{static_cast<std::uint16_t>(i)}, stripe.state, stripe.lease,
                             stripe.sender, stripe.ready});
  }
  return claim;
}

}  // namespace hoplite
