// SPDX-License-Identifier: Apache-2.0
#include "plan/inventory.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace hoplite {
namespace {

constexpr std::uint64_t kPageBytes = 4_KiB;
constexpr std::uint64_t kSlabBytes =
    256_KiB;  // four of the largest slots: little is lost to rounding
constexpr std::uint64_t kSlotBytesMin = 64;  // a cache line; also serves empty objects
static_assert(kSlabBytes % kInlineBytesMax == 0);

std::uint64_t pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
bool is_small(std::uint64_t bytes) { return bytes <= kInlineBytesMax; }
std::uint64_t slot_bytes_for(std::uint64_t bytes) {
  return std::bit_ceil(std::max(bytes, kSlotBytesMin));
}
std::uint64_t rounded(std::uint64_t bytes) {
  return is_small(bytes) ? slot_bytes_for(bytes) : pages(bytes);
}

}  // namespace

Inventory::Inventory(std::uint64_t arena_bytes, Duration grace)
    : capacity_bytes_(arena_bytes / kPageBytes * kPageBytes), grace_(grace) {
  if (capacity_bytes_ > 0) free_.emplace(0, capacity_bytes_);
}

void Inventory::request(const ObjectId& object, std::uint64_t size_bytes, Instant now) {
  HOPLITE_CHECK(rounded(size_bytes) <= capacity_bytes_);
  if (waiting_.empty()) last_progress_ = now;
  waiting_.push_back({object, size_bytes});
}

void Inventory::cancel(const ObjectId& object) {
  std::erase_if(waiting_, [&](const Waiting& w) { return w.object == object; });
}

bool Inventory::is_waiting(const ObjectId& object) const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const Waiting& w) { return w.object == object; });
}

void Inventory::mark_evictable(const ObjectId& object) {
  mark_needed(object);
  idle_since_.emplace(object, idle_next_);
  idle_order_.emplace(idle_next_++, object);
}

void Inventory::mark_needed(const ObjectId& object) {
  const auto it = idle_since_.find(object);
  if (it == idle_since_.end()) return;
  idle_order_.erase(it->second);
  idle_since_.erase(it);
}

std::optional<Admission> Inventory::poll_admission(Instant now) {
  if (waiting_.empty()) return std::nullopt;
  const Waiting head = waiting_.front();
  if (const auto extent = allocate(head.size_bytes)) {
    waiting_.pop_front();
    last_progress_ = now;
    return Admitted{head.object, *extent};
  }
  if (!idle_order_.empty()) {
    const ObjectId victim = idle_order_.begin()->second;
    mark_needed(victim);
    return Evict{victim};
  }
  if (now - last_progress_ < grace_) return std::nullopt;
  waiting_.pop_front();
  last_progress_ = now;
  return Refused{head.object, head.size_bytes};
}

std::optional<Instant> Inventory::poll_timeout() const {
  if (waiting_.empty()) return std::nullopt;
  return last_progress_ + grace_;
}

std::optional<Extent> Inventory::allocate(std::uint64_t size_bytes) {
  const std::uint64_t bytes = rounded(size_bytes);
  const auto offset = is_small(size_bytes) ? allocate_slot(bytes) : allocate_pages(bytes);
  if (!offset) return std::nullopt;
  used_bytes_ += bytes;
  return Extent{*offset, size_bytes};
}

// Best fit: the smallest free range that is large enough, so that large ranges stay whole.
std::optional<std::uint64_t> Inventory::allocate_pages(std::uint64_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  }
  if (best == free_.end()) return std::nullopt;
  const auto [offset, free_bytes] = *best;
  free_.erase(best);
  if (free_bytes > bytes) free_.emplace(offset + bytes, free_bytes - bytes);
  return offset;
}

std::optional<std::uint64_t> Inventory::allocate_slot(std::uint64_t slot_bytes) {
  auto& open = slabs_open_[slot_bytes];
  if (open.empty()) {
    const auto offset = allocate_pages(kSlabBytes);
    if (!offset) return std::nullopt;
    slabs_.emplace(*offset, Slab{slot_bytes, std::vector<bool>(kSlabBytes / slot_bytes), 0});
    open.insert(*offset);
  }
  const std::uint64_t base = *open.begin();
  Slab& slab = slabs_.at(base);
  const auto slot = std::find(slab.taken.begin(), slab.taken.end(), false);
  HOPLITE_CHECK(slot != slab.taken.end());
  *slot = true;
  if (++slab.taken_count == slab.taken.size()) open.erase(base);
  return base + static_cast<std::uint64_t>(slot - slab.taken.begin()) * slot_bytes;
}

void Inventory::release(Extent extent, Instant now) {
  const std::uint64_t bytes = rounded(extent.size_bytes);
  HOPLITE_CHECK(used_bytes_ >= bytes);
  used_bytes_ -= bytes;
  last_progress_ = now;
  if (!is_small(extent.size_bytes)) return release_pages(extent.offset, bytes);
  const auto it = std::prev(slabs_.upper_bound(extent.offset));
  Slab& slab = it->second;
  const auto slot = (extent.offset - it->first) / slab.slot_bytes;
  HOPLITE_CHECK(slot < slab.taken.size());
  HOPLITE_CHECK(slab.taken[slot]);
  slab.taken[slot] = false;
  slabs_open_[slab.slot_bytes].insert(it->first);
  if (--slab.taken_count > 0) return;
  slabs_open_[slab.slot_bytes].erase(it->first);
  release_pages(it->first, kSlabBytes);
  slabs_.erase(it);
}

void Inventory::release_pages(std::uint64_t offset, std::uint64_t bytes) {
  auto [it, inserted] = free_.emplace(offset, bytes);
  HOPLITE_CHECK(inserted);
  const auto next = std::next(it);
  if (next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  const auto previous = std::prev(it);
  if (previous->first + previous->second == it->first) {
    previous->second += it->second;
    free_.erase(it);
  }
}

void Inventory::check_invariants() const {
  std::uint64_t free_bytes = 0;
  std::uint64_t end_of_last = 0;
  for (const auto& [offset, bytes] : free_) {
    HOPLITE_CHECK(bytes > 0);
    HOPLITE_CHECK(free_bytes == 0 || offset > end_of_last);  // coalesced
    end_of_last = offset + bytes;
    free_bytes += bytes;
  }
  HOPLITE_CHECK(end_of_last <= capacity_bytes_);
  std::uint64_t slack = 0;  // unused slots of slabs that are open
  for (const auto& [offset, slab] : slabs_) {
    slack += (slab.taken.size() - slab.taken_count) * slab.slot_bytes;
  }
  HOPLITE_CHECK(free_bytes + slack + used_bytes_ == capacity_bytes_);
  HOPLITE_CHECK(idle_since_.size() == idle_order_.size());
}

}  // namespace hoplite
