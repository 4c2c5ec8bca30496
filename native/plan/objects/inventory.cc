// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/inventory.h"

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
constexpr std::uint64_t kHeadroomShare = 8;  // design decision 6
constexpr std::int64_t kGracesMax =
    10;  // graces without a deletion until the oldest head is refused

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
// How many bytes of pages it takes: a small object may need a slab of its own.
std::uint64_t pages_for(std::uint64_t bytes) { return is_small(bytes) ? kSlabBytes : pages(bytes); }

}  // namespace

Inventory::Inventory(std::uint64_t arena_bytes, Duration grace, WhenFull when_full)
    : grace_(grace), when_full_(when_full) {
  const std::uint64_t capacity = arena_bytes / kPageBytes * kPageBytes;
  const std::uint64_t headroom = capacity / kHeadroomShare / kPageBytes * kPageBytes;
  zones_.emplace_back(0, capacity - headroom);
  zones_.emplace_back(capacity - headroom, headroom);
}

bool Inventory::can_hold(Need need, Line line) const {
  const std::uint64_t result = pages_for(need.size_bytes);
  if (line != Line::kFolds) return result <= common().bytes;
  if (need.workspace_bytes == 0) return result <= std::max(common().bytes, headroom().bytes);
  const std::uint64_t workspace = pages_for(need.workspace_bytes);
  return result + workspace <= std::max(common().bytes, headroom().bytes) ||
         (std::max(result, workspace) <= common().bytes &&
          std::min(result, workspace) <= headroom().bytes);
}

Inventory::Zone& Inventory::zone_of(Extent extent) {
  return zones_[extent.offset < common().bytes ? 0 : 1];
}

// ---- the lines ----

void Inventory::request(const ObjectId& object, Need need, Line line, Instant now) {
  HOPLITE_CHECK(can_hold(need, line));
  const bool is_new = lines_of_.emplace(object, std::pair(line, next_ticket_)).second;
  HOPLITE_CHECK(is_new);
  queue(line).emplace(next_ticket_++, Waiting{object, need, now, now});
}

void Inventory::cancel(const ObjectId& object, Instant now) {
  const auto it = lines_of_.find(object);
  if (it == lines_of_.end()) return;
  const auto [line, ticket] = it->second;
  leave(line, ticket, now);
}

void Inventory::leave(Line line, std::uint64_t ticket, Instant now) {
  Queue& waiting = queue(line);
  const auto it = waiting.find(ticket);
  const bool was_head = it == waiting.begin();
  lines_of_.erase(it->second.object);
  waiting.erase(it);
  if (was_head && !waiting.empty()) waiting.begin()->second.head_since = now;
}

// Serves folds, then copies, then puts. A line that is passed may hold the others back.
std::optional<Admission> Inventory::poll_admission(Instant now) {
  lets_pass_at_.reset();
  if (lines_of_.empty()) return std::nullopt;
  if (evicting_) return refuse_oldest(now);  // a receive may still write there; room is to come
  if (auto next = serve(Line::kFolds, now)) return next;
  if (!holds_back(Line::kFolds, Line::kCopies, now) &&
      !holds_back(Line::kPuts, Line::kCopies, now)) {
    if (auto next = serve(Line::kCopies, now)) return next;
  }
  if (!is_older(Line::kFolds, Line::kPuts) && !is_older(Line::kCopies, Line::kPuts)) {
    if (auto next = serve(Line::kPuts, now)) return next;
  }
  if (when_full_ == WhenFull::kFail && !queue(Line::kPuts).empty()) {
    return refuse(Line::kPuts, now);
  }
  return refuse_oldest(now);
}

bool Inventory::is_older(Line line, Line than) {
  if (queue(line).empty() || queue(than).empty()) return false;
  return queue(line).begin()->first < queue(than).begin()->first;
}

bool Inventory::holds_back(Line passed, Line passing, Instant now) {
  if (!is_older(passed, passing)) return false;
  const Instant lets_pass_at = last_freed_ + Duration{grace_.ns / 2};
  const bool has_waited = now - queue(passed).begin()->second.head_since >= grace_;
  if (!has_waited || now >= lets_pass_at) return false;
  lets_pass_at_ = lets_pass_at;
  return true;
}

std::optional<Admission> Inventory::serve(Line line, Instant now) {
  if (queue(line).empty()) return std::nullopt;
  const auto [ticket, head] = *queue(line).begin();
  const bool is_fold = line == Line::kFolds;
  if (const auto extent = allocate(head.need.size_bytes, is_fold)) {
    Admitted admitted{head.object, *extent, std::nullopt};
    const bool needs_more = head.need.workspace_bytes > 0;
    if (needs_more) admitted.workspace = allocate(head.need.workspace_bytes, is_fold);
    if (!needs_more || admitted.workspace) {
      leave(line, ticket, now);
      last_progress_ = now;
      given_[extent->offset] = next_ticket_;
      if (needs_more) given_[admitted.workspace->offset] = next_ticket_;
      return admitted;
    }
    free(*extent);
  }
  for (std::size_t i = is_fold ? zones_.size() : 1; i-- > 0;) {
    const Zone& zone = zones_[i];
    const std::uint64_t could_be_free = zone.bytes - zone.used + zone.idle + zone.may_spill;
    const bool may_do =
        head.need.workspace_bytes > 0 || could_be_free >= rounded(head.need.size_bytes);
    if (zone.idle_order.empty() || !may_do) continue;
    const auto [order, victim] = *zone.idle_order.begin();
    if (order.first == Rank::kPinned) {
      if (is_spilling_ || now < spills_again_at_) continue;
      mark_needed(victim);
      is_spilling_ = true;
      return Spill{victim};
    }
    evicting_ = idle_.at(victim).extent.offset;
    mark_needed(victim);
    return Evict{victim};
  }
  return std::nullopt;
}

Instant Inventory::refusal_time_of(const Waiting& head) const {
  const Instant idle_since = std::max(last_progress_, head.asked);
  const Instant full_since = std::max(last_gained_, head.asked);
  const Instant latest = full_since + grace_ * kGracesMax;
  return is_spilling_ ? latest : std::min(idle_since + grace_, latest);
}

std::optional<std::pair<std::uint64_t, Line>> Inventory::oldest() const {
  std::optional<std::pair<std::uint64_t, Line>> found;
  for (const Line line : {Line::kFolds, Line::kCopies, Line::kPuts}) {
    const Queue& waiting = queues_[static_cast<std::size_t>(line)];
    if (waiting.empty()) continue;
    const std::uint64_t ticket = waiting.begin()->first;
    if (!found || ticket < found->first) found = {ticket, line};
  }
  return found;
}

std::optional<Admission> Inventory::refuse_oldest(Instant now) {
  const auto head = oldest();
  if (!head || now < refusal_time_of(queue(head->second).begin()->second)) return std::nullopt;
  return refuse(head->second, now);  // the next call refuses the next head that waited as long
}

Refused Inventory::refuse(Line line, Instant now) {
  const auto [ticket, head] = *queue(line).begin();
  leave(line, ticket, now);
  return {head.object, head.need.size_bytes};
}

std::optional<Instant> Inventory::poll_timeout() const {
  std::optional<Instant> earliest = lets_pass_at_;
  for (const Queue& waiting : queues_) {
    if (waiting.empty()) continue;
    earliest = earlier(earliest, refusal_time_of(waiting.begin()->second));
  }
  return earliest;
}

// ---- eviction ----

// After a failed write, waits two graces before the next one. Waiting requests are refused by then,
// so their callers hear of it.
void Inventory::handle_spilled(bool done, Instant now) {
  is_spilling_ = false;
  if (done) last_progress_ = last_freed_ = last_gained_ = now;
  if (!done) spills_again_at_ = now + grace_ * 2;
}

std::optional<Rank> Inventory::rank(const ObjectId& object) const {
  const auto it = idle_.find(object);
  return it == idle_.end() ? std::nullopt : std::optional(it->second.order.first);
}

void Inventory::mark_evictable(const ObjectId& object, Extent extent, Rank rank) {
  mark_needed(object);
  const IdleOrder order{rank, next_idle_++};
  Zone& zone = zone_of(extent);
  idle_.emplace(object, Idle{order, extent});
  zone.idle_order.emplace(order, object);
  (rank == Rank::kPinned ? zone.may_spill : zone.idle) += rounded(extent.size_bytes);
}

void Inventory::mark_needed(const ObjectId& object) {
  const auto it = idle_.find(object);
  if (it == idle_.end()) return;
  Zone& zone = zone_of(it->second.extent);
  const IdleOrder order = it->second.order;
  (order.first == Rank::kPinned ? zone.may_spill : zone.idle) -=
      rounded(it->second.extent.size_bytes);
  zone.idle_order.erase(it->second.order);
  idle_.erase(it);
}

// ---- ranges ----

// Folds use the headroom first, and then the space that copies and puts leave.
std::optional<Extent> Inventory::allocate(std::uint64_t size_bytes, bool all_zones) {
  const std::uint64_t bytes = rounded(size_bytes);
  for (std::size_t i = all_zones ? zones_.size() : 1; i-- > 0;) {
    Zone& zone = zones_[i];
    const auto offset = is_small(size_bytes) ? allocate_slot(zone, bytes) : zone.free.take(bytes);
    if (!offset) continue;
    zone.used += bytes;
    return Extent{*offset, size_bytes};
  }
  return std::nullopt;
}

std::optional<std::uint64_t> Inventory::allocate_slot(Zone& zone, std::uint64_t slot_bytes) {
  auto& open = zone.open_slabs[slot_bytes];
  if (open.empty()) {
    const auto offset = zone.free.take(kSlabBytes);
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
  const auto given = given_.extract(extent.offset);
  const auto head = oldest();
  const bool was_held = !head || given.empty() || given.mapped() <= head->first;
  const bool is_eviction = evicting_ == extent.offset;
  last_progress_ = now;
  if (!is_eviction) last_freed_ = now;
  if (!is_eviction && was_held) last_gained_ = now;
  if (is_eviction) evicting_.reset();
  free(extent);
}

void Inventory::free(Extent extent) {
  Zone& zone = zone_of(extent);
  const std::uint64_t bytes = rounded(extent.size_bytes);
  HOPLITE_CHECK(zone.used >= bytes);
  zone.used -= bytes;
  if (!is_small(extent.size_bytes)) return zone.free.release(extent.offset, bytes);
  const auto it = std::prev(slabs_.upper_bound(extent.offset));
  Slab& slab = it->second;
  const auto slot = (extent.offset - it->first) / slab.slot_bytes;
  HOPLITE_CHECK(slot < slab.taken.size());
  HOPLITE_CHECK(slab.taken[slot]);
  slab.taken[slot] = false;
  auto& open = zone.open_slabs[slab.slot_bytes];
  open.insert(it->first);
  if (--slab.taken_count > 0) return;
  open.erase(it->first);
  zone.free.release(it->first, kSlabBytes);
  slabs_.erase(it);
}

void Inventory::check_invariants() const {
  std::uint64_t slack[2] = {0, 0};  // unused slots of slabs that are open
  for (const auto& [offset, slab] : slabs_) {
    const bool is_common = offset < common().bytes;
    HOPLITE_CHECK(!is_common || offset + kSlabBytes <= common().bytes);
    slack[is_common ? 0 : 1] += (slab.taken.size() - slab.taken_count) * slab.slot_bytes;
  }
  for (std::size_t i = 0; i < zones_.size(); ++i) {
    const Zone& zone = zones_[i];
    zone.free.check_invariants();
    HOPLITE_CHECK(zone.free.free_bytes() + slack[i] + zone.used == zone.bytes);
    HOPLITE_CHECK(zone.idle + zone.may_spill <= zone.used);
  }
  std::size_t waiting = 0;
  for (const Queue& line : queues_) waiting += line.size();
  HOPLITE_CHECK(waiting == lines_of_.size());
  HOPLITE_CHECK(idle_.size() == common().idle_order.size() + headroom().idle_order.size());
}

}  // namespace hoplite
