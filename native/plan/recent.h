// Of which objects something was said or done lately, and up to which attempt: deletions,
// evictions, orphans. Each is remembered for one length of time, longer than any message that
// crosses the news can be under way; what was noted last is forgotten last. Memory: a note per
// object and life. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/ids.h"

namespace hoplite {

class RecentObjects {
 public:
  explicit RecentObjects(Duration life) : life_(life) {}

  // Begins its life anew. An older attempt takes nothing back. Cost: O(log n), as for all below.
  void note(const ObjectId& object, Incarnation upto, Instant now);
  void forget(const ObjectId& object) { noted_.erase(object); }
  void handle_timeout(Instant now);  // forgets those whose life is over

  [[nodiscard]] bool contains(const ObjectId& object) const { return noted_.contains(object); }
  [[nodiscard]] bool covers(const ObjectId& object, Incarnation incarnation) const;
  [[nodiscard]] std::optional<Instant> poll_timeout() const;

  // Calls visit(object, upto) for each, in the order of their ids.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [object, note] : noted_) visit(object, note.upto);
  }

 private:
  struct Note {
    Incarnation upto;
    Instant until;
  };
  Duration life_;
  std::map<ObjectId, Note> noted_;
  std::deque<std::pair<Instant, ObjectId>> order_;  // of noting, for each life is equally long
};

}  // namespace hoplite
