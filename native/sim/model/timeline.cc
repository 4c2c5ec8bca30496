// SPDX-License-Identifier: Apache-2.0
#include "sim/model/timeline.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/check.h"

namespace hoplite::sim {

void Timeline::at(Instant when, std::function<void()> what, Stream stream) {
  events_.push_back({std::max(when, now_), next_++, stream, std::move(what)});
  std::push_heap(events_.begin(), events_.end(), Later{});
}

std::optional<Instant> Timeline::next_at() const {
  if (events_.empty()) return std::nullopt;
  return events_.front().when;
}

void Timeline::step() {
  std::pop_heap(events_.begin(), events_.end(), Later{});
  Event event = std::move(events_.back());
  events_.pop_back();
  now_ = std::max(now_, event.when);
  event.what();
}

std::vector<Stream> Timeline::streams_in_flight() {
  constexpr Stream kAtOnce{Stream::Kind::kAtOnce};
  const auto is_at_once = [&](const Event& e) { return e.stream.kind == kAtOnce.kind; };
  while (std::any_of(events_.begin(), events_.end(), is_at_once)) step(kAtOnce);
  std::set<Stream> streams;
  for (const Event& event : events_) {
    if (event.stream.kind != Stream::Kind::kTimer) streams.insert(event.stream);
  }
  return {streams.begin(), streams.end()};
}

void Timeline::step(const Stream& stream) {
  const bool is_timer = stream.kind == Stream::Kind::kTimer;
  // Two timers of one instant come in the order of their nodes, whichever was posted first.
  const auto place = [&](const Event& e) {
    return is_timer ? std::tuple(e.when, e.stream.to, e.order)
                    : std::tuple(Instant{}, std::uint64_t{0}, e.order);
  };
  auto first = events_.end();
  for (auto it = events_.begin(); it != events_.end(); ++it) {
    const bool is_of_it = is_timer || stream.kind == Stream::Kind::kAtOnce
                              ? it->stream.kind == stream.kind
                              : it->stream == stream;
    if (is_of_it && (first == events_.end() || place(*it) < place(*first))) first = it;
  }
  HOPLITE_CHECK(first != events_.end());
  Event event = std::move(*first);
  events_.erase(first);
  std::make_heap(events_.begin(), events_.end(), Later{});
  if (is_timer) now_ = std::max(now_, event.when);
  event.what();
}

}  // namespace hoplite::sim
