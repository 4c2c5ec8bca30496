// SPDX-License-Identifier: Apache-2.0
#include "plan/links/rails.h"

#include <algorithm>

#include "base/check.h"

namespace hoplite {
namespace {

// Until a rail has sent something it counts as this fast (10 Gbit/s), so that each is tried once.
constexpr std::uint64_t kRateGuess = 1250ULL * 1000 * 1000;

// A single rail may queue what the link carries in a busy turn of the reactor: 256 KiB at 10 Gbit/s
// (decision 19c). Further blocks wait.
constexpr std::uint64_t kBusyTurnUs = 210;

// Every block has a fixed cost, so a small one is booked as a block of kBlockBytesMin.
std::uint64_t booked(std::uint64_t size_bytes) { return std::max(size_bytes, kBlockBytesMin); }

std::uint64_t finish_ns(std::uint64_t queued, std::uint64_t size, std::uint64_t rate) {
  const auto bytes_per_us = std::max<std::uint64_t>(rate / 1'000'000, 1);
  return (queued + size) * 1000 / bytes_per_us;
}

}  // namespace

void Rails::handle_link_up(NodeId peer, std::size_t rail_count) {
  links_[peer].assign(std::clamp<std::size_t>(rail_count, 1, kRailsMax), Rail{});
}

void Rails::handle_link_down(NodeId peer) { links_.erase(peer); }

void Rails::handle_sent(const BlockSent& event, Instant now) {
  const auto it = links_.find(event.to);
  // The link may have been down meanwhile. Blocks queued on the old link are not counted.
  if (it == links_.end() || event.rail.value >= it->second.size()) return;
  Rail& rail = it->second[event.rail.value];
  if (rail.queued_bytes < booked(event.size_bytes)) return;
  rail.queued_bytes -= booked(event.size_bytes);
  const auto elapsed =
      static_cast<std::uint64_t>(std::max<std::int64_t>((now - rail.busy_since).ns, 1));
  const std::uint64_t rate =
      event.size_bytes * 1'000'000 / std::max<std::uint64_t>(elapsed / 1000, 1);
  rail.rate_bytes_per_s =
      rail.rate_bytes_per_s == 0 ? rate : (rail.rate_bytes_per_s * 7 + rate) / 8;
  rail.busy_since = now;
}

std::optional<RailId> Rails::take(NodeId peer, std::uint64_t size_bytes, Instant now) {
  const auto it = links_.find(peer);
  if (it == links_.end()) return std::nullopt;
  const auto rail = choose(it->second, booked(size_bytes));
  if (!rail) return std::nullopt;
  Rail& taken = it->second[rail->value];
  if (taken.queued_bytes == 0) taken.busy_since = now;
  taken.queued_bytes += booked(size_bytes);
  return rail;
}

bool Rails::has_room(NodeId peer, std::uint64_t size_bytes) const {
  const auto it = links_.find(peer);
  return it != links_.end() && choose(it->second, booked(size_bytes)).has_value();
}

// The one admission rule.
std::optional<RailId> Rails::choose(const std::vector<Rail>& rails,
                                    std::uint64_t size_bytes) const {
  const auto rate = [](const Rail& r) {
    return r.rate_bytes_per_s == 0 ? kRateGuess : r.rate_bytes_per_s;
  };
  const auto fastest = std::max_element(
      rails.begin(), rails.end(), [&](const Rail& a, const Rail& b) { return rate(a) < rate(b); });
  const auto patience = finish_ns(fastest->queued_bytes, size_bytes, rate(*fastest));
  // Long queues show which of several rails is the faster. A single one is kept busy by two blocks,
  // or by a turn's bytes of small ones. More would be wasted if the receiver gets another sender,
  // and would let the stripe that was asked for first go ahead of the others.
  const std::uint64_t of_a_turn = link_bytes_per_s_ / 1'000'000 * kBusyTurnUs;
  const auto most = rails.size() > 1
                        ? queue_bytes_max_
                        : std::min(queue_bytes_max_, std::max(2 * size_bytes, of_a_turn));
  const Rail* best = nullptr;
  std::uint64_t best_ns = 0;
  for (const Rail& rail : rails) {
    if (rail.queued_bytes > 0 && rail.queued_bytes + size_bytes > most) continue;
    const auto ns = finish_ns(rail.queued_bytes, size_bytes, rate(rail));
    if (&rail != &*fastest && ns >= patience) continue;
    if (best == nullptr || ns < best_ns) {
      best = &rail;
      best_ns = ns;
    }
  }
  if (best == nullptr) return std::nullopt;
  return RailId{static_cast<std::uint8_t>(best - rails.data())};
}

void Rails::check_invariants() const {
  for (const auto& [peer, rails] : links_) {
    HOPLITE_CHECK(!rails.empty());
    for (const Rail& rail : rails) {
      HOPLITE_CHECK(rail.queued_bytes <= queue_bytes_max_ + kBlockBytesMax);
    }
  }
}

}  // namespace hoplite
