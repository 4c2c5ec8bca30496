// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/recent.h"

#include <algorithm>

namespace hoplite {

void RecentObjects::note(const ObjectId& object, Incarnation upto, Instant now) {
  const auto [it, is_new] = noted_.try_emplace(object);
  Note& note = it->second;
  if (is_new) {
    note.place = order_.insert(order_.end(), object);
  } else {
    order_.splice(order_.end(), order_, note.place);
  }
  note.upto = std::max(note.upto, upto);
  note.until = now + life_;
  if (noted_.size() <= notes_max_) return;
  const auto oldest = noted_.find(order_.front());
  short_until_ = std::max(short_until_, oldest->second.until);
  forget(oldest->first);
}

void RecentObjects::forget(const ObjectId& object) {
  const auto it = noted_.find(object);
  if (it == noted_.end()) return;
  order_.erase(it->second.place);
  noted_.erase(it);
}

void RecentObjects::handle_timeout(Instant now) {
  while (!order_.empty() && noted_.at(order_.front()).until <= now) forget(order_.front());
}

bool RecentObjects::covers(const ObjectId& object, Incarnation incarnation) const {
  const auto it = noted_.find(object);
  return it != noted_.end() && incarnation <= it->second.upto;
}

std::optional<Incarnation> RecentObjects::find(const ObjectId& object) const {
  const auto it = noted_.find(object);
  if (it == noted_.end()) return std::nullopt;
  return it->second.upto;
}

std::optional<Instant> RecentObjects::poll_timeout() const {
  if (order_.empty()) return std::nullopt;
  return noted_.at(order_.front()).until;
}

}  // namespace hoplite
