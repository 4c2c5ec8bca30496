// SPDX-License-Identifier: Apache-2.0
#include "plan/recent.h"

#include <algorithm>

namespace hoplite {

void RecentObjects::note(const ObjectId& object, Incarnation upto, Instant now) {
  Note& note = noted_[object];
  note.upto = std::max(note.upto, upto);
  note.until = now + life_;
  order_.emplace_back(note.until, object);
}

void RecentObjects::handle_timeout(Instant now) {
  while (!order_.empty() && order_.front().first <= now) {
    const auto it = noted_.find(order_.front().second);
    order_.pop_front();
    if (it != noted_.end() && it->second.until <= now) noted_.erase(it);  // else: noted again
  }
}

bool RecentObjects::covers(const ObjectId& object, Incarnation incarnation) const {
  const auto it = noted_.find(object);
  return it != noted_.end() && incarnation <= it->second.upto;
}

std::optional<Instant> RecentObjects::poll_timeout() const {
  if (order_.empty()) return std::nullopt;
  return order_.front().first;
}

}  // namespace hoplite
