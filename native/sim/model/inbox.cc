// SPDX-License-Identifier: Apache-2.0
#include "sim/model/inbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kEventsPerTurnMax = 16;

}  // namespace

void Inbox::add(Item item) {
  auto& queue = item.origin.lane == Origin::Lane::kLocal ? local_ : links_[item.origin.peer];
  queue.push_back(std::move(item));
}

std::optional<Instant> Inbox::next_at(Instant now) const {
  if (!local_.empty()) return now;
  if (links_.empty()) return std::nullopt;
  const bool waits = is_alone_ && now < favoured_until_ && !links_.contains(favourite_);
  return waits ? favoured_until_ : now;
}

// Takes a batch like node/ does: it ends before the LinkDown of a link that went up in it.
std::vector<Inbox::Item> Inbox::take(const TurnLimits& limits, Duration stretch_max, Instant now,
                                     Prng& prng) {
  std::vector<Item> batch;
  while (!local_.empty() && batch.size() < limits.commands_max) {
    batch.push_back(std::move(local_.front()));
    local_.pop_front();
  }
  std::uint64_t bytes = 0;
  bool went_up = false;
  for (std::uint64_t n = 1 + prng.below(kEventsPerTurnMax); n > 0; --n) {
    std::deque<Item>* queue =
        bytes < limits.bytes_max / 2 ? next_queue(stretch_max, now, prng) : nullptr;
    if (queue == nullptr) break;
    if (went_up && queue->front().origin.link == Origin::Link::kGoesDown) break;
    Item item = take_from(*queue);
    bytes += item.origin.bytes;
    went_up = went_up || item.origin.link == Origin::Link::kGoesUp;
    if (queue->empty()) links_.erase(item.origin.peer);
    batch.push_back(std::move(item));
  }
  return batch;
}

// Returns the favourite's queue. If it is empty, returns another peer's, except when the favourite
// is heard alone.
std::deque<Inbox::Item>* Inbox::next_queue(Duration stretch_max, Instant now, Prng& prng) {
  if (links_.empty()) return nullptr;
  const auto any = [&] {
    const auto skipped = static_cast<std::ptrdiff_t>(prng.below(links_.size()));
    return std::next(links_.begin(), skipped);
  };
  if (now >= favoured_until_) {
    favourite_ = any()->first;
    favoured_until_ = now + Duration{1 + static_cast<std::int64_t>(prng.below(
                                             static_cast<std::uint64_t>(stretch_max.ns) + 1))};
    is_alone_ = prng.chance(50);
    first_ = prng.chance(50) ? Origin::Lane::kControl : Origin::Lane::kBulk;
  }
  const auto own = links_.find(favourite_);
  if (own != links_.end()) return &own->second;
  return is_alone_ ? nullptr : &any()->second;
}

// The oldest of the lane that comes first, else the oldest; nothing that is behind a notice.
Inbox::Item Inbox::take_from(std::deque<Item>& queue) const {
  const auto notice = std::ranges::find_if(
      queue, [](const Item& item) { return item.origin.lane == Origin::Lane::kNotice; });
  auto at = std::find_if(queue.begin(), notice,
                         [this](const Item& item) { return item.origin.lane == first_; });
  if (at == notice) at = queue.begin();
  Item item = std::move(*at);
  queue.erase(at);
  return item;
}

}  // namespace hoplite::sim
