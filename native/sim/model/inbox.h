// SPDX-License-Identifier: Apache-2.0
// The events that wait for a turn of a simulated node. A turn takes some of them, and unfairly: for
// long stretches one peer is a favourite, whose frames come first or alone. The messages of a link
// may come before its blocks or behind them. The events of one stream stay in order, and none
// overtakes a notice of its link. Plain and single-threaded; owned by ClusterNode.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/prng.h"
#include "base/turn_limits.h"

namespace hoplite::sim {

struct ClusterNode;

// The source of an event, and the properties that decide its place in the order.
struct Origin {
  enum class Lane : std::uint8_t { kLocal, kNotice, kControl, kBulk, kSent };
  enum class Link : std::uint8_t { kStays, kGoesUp, kGoesDown };
  Lane lane = Lane::kLocal;  // of clients, the disk and the view, in order of arrival
  NodeId peer;               // of all other lanes
  std::uint64_t bytes = 0;   // that the turn reads
  Link link = Link::kStays;
};

inline Origin notice_of(NodeId peer) { return {Origin::Lane::kNotice, peer}; }

class Inbox {
 public:
  struct Item {
    std::function<void(ClusterNode&)> deed;
    Origin origin;
  };

  void add(Item item);
  void clear() { *this = {}; }
  // Returns the events of a turn at `now`. `stretch_max`: how long a peer may stay the favourite.
  std::vector<Item> take(const TurnLimits& limits, Duration stretch_max, Instant now, Prng& prng);
  // When a turn has something to hear: `now`, later when the favourite is alone, or never.
  [[nodiscard]] std::optional<Instant> next_at(Instant now) const;

 private:
  std::deque<Item>* next_queue(Duration stretch_max, Instant now, Prng& prng);
  Item take_from(std::deque<Item>& queue) const;

  std::deque<Item> local_;
  std::map<NodeId, std::deque<Item>> links_;  // those not empty
  NodeId favourite_;
  Instant favoured_until_;
  bool is_alone_ = false;  // True if no other peer is heard during the stretch
  Origin::Lane first_ = Origin::Lane::kControl;
};

}  // namespace hoplite::sim
