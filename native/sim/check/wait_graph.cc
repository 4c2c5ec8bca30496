// SPDX-License-Identifier: Apache-2.0
#include "sim/check/wait_graph.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

namespace hoplite::sim {
namespace {

// The waits with that `key`. REQUIRES: they are sorted by it. Not by std::ranges::equal_range:
// clang 14, which builds the sanitizers' tree, can't read the subrange of GCC 12's library.
template <typename Key, typename KeyOf>
std::span<const Wait> equal_to(std::span<const Wait> waits, const Key& key, const KeyOf& key_of) {
  const auto first = std::ranges::lower_bound(waits, key, {}, key_of);
  return {first, std::ranges::upper_bound(first, waits.end(), key, {}, key_of)};
}

// The waits for which the object is unfinished. REQUIRES: they are sorted by it.
std::span<const Wait> waits_of(const std::vector<Wait>& waits, const ObjectId& object) {
  return equal_to(std::span(waits), object, [](const Wait& w) { return w.name.object; });
}

}  // namespace

void WaitGraph::set(NodeId node, std::vector<Wait> waits) {
  if (waits.empty()) {
    waits_.erase(node);
  } else {
    std::ranges::stable_sort(
        waits, {}, [](const Wait& wait) { return std::tie(wait.name.object, wait.stripe); });
    waits_.insert_or_assign(node, std::move(waits));
  }
}

std::optional<std::string> WaitGraph::circle_through(NodeId node) const {
  const auto own = waits_.find(node);
  if (own == waits_.end() || !leads_to_itself(node)) return std::nullopt;
  for (const Wait& wait : own->second) {
    std::set<Point> seen;
    std::vector<Point> walk{{node, wait.name.object, wait.stripe, wait.ready}};
    if (!leads_back(walk.front(), walk, seen)) continue;
    std::string text = "waits in a circle: ";
    for (const Point& point : walk) {
      text += "stripe " + std::to_string(point.stripe.value) + " of " + short_name(point.object) +
              " on node " + std::to_string(point.node.value - 1) + ", which has " +
              std::to_string(point.ready) + " blocks -> ";
    }
    return text + "the first";
  }
  return std::nullopt;
}

// True if a stripe of the node needs, over any others, a stripe of the node. Without one there is
// no circle through it.
bool WaitGraph::leads_to_itself(NodeId node) const {
  std::set<Point> seen;
  for (const Wait& wait : waits_.at(node)) {
    seen.insert({node, wait.name.object, wait.stripe, wait.ready});
  }
  std::vector<Point> open(seen.begin(), seen.end());
  while (!open.empty()) {
    const Point from = open.back();
    open.pop_back();
    for (const Point& next : needs(from)) {
      if (next.node == node) return true;
      if (seen.insert(next).second) open.push_back(next);
    }
  }
  return false;
}

// Extends `walk` until it is back at its first point.
bool WaitGraph::leads_back(const Point& from, std::vector<Point>& walk,
                           std::set<Point>& seen) const {
  for (const Point& next : needs(from)) {
    if (next == walk.front()) return true;
    if (!seen.insert(next).second) continue;
    walk.push_back(next);
    if (leads_back(next, walk, seen)) return true;
    walk.pop_back();
  }
  return false;
}

// The unfinished stripes that must go on before `from` does.
std::set<WaitGraph::Point> WaitGraph::needs(const Point& from) const {
  std::set<Point> needed;
  const auto own = waits_.find(from.node);
  if (own == waits_.end()) return needed;
  const auto of_object = waits_of(own->second, from.object);
  const auto of_stripe = equal_to(of_object, from.stripe, [](const Wait& w) { return w.stripe; });
  for (const Wait& wait : of_stripe) {
    const auto theirs = waits_.find(wait.sender);
    if (theirs == waits_.end()) continue;
    for (const Wait& other : waits_of(theirs->second, wait.needed.object)) {
      const bool is_it = other.name.bytes == wait.needed.bytes ||
                         (wait.needed.bytes.target_epoch.value == 0 &&
                          other.name.bytes.incarnation == wait.needed.bytes.incarnation);
      const bool lacks = wait.block.value % other.stripe_count == other.stripe.value &&
                         wait.block.value / other.stripe_count >= other.ready;
      if (is_it && lacks)
        needed.insert({wait.sender, other.name.object, other.stripe, other.ready});
    }
  }
  return needed;
}

}  // namespace hoplite::sim
