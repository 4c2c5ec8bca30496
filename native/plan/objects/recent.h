// SPDX-License-Identifier: Apache-2.0
// Remembers which objects were recently deleted, evicted or orphaned, and up to which attempt. A
// note lives longer than any message that crosses the news can be in flight; the newest note is
// forgotten last. Beyond `notes_max` the oldest is forgotten early. Memory: 150 bytes a note.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/ids.h"

namespace hoplite {

class RecentObjects {
 public:
  RecentObjects(Duration life, std::size_t notes_max) : life_(life), notes_max_(notes_max) {}

  // Begins its life anew. An older attempt takes nothing back. Cost: O(log n), as for all below.
  void note(const ObjectId& object, Incarnation upto, Instant now);
  void forget(const ObjectId& object);
  void handle_timeout(Instant now);  // forgets those whose life is over

  [[nodiscard]] bool contains(const ObjectId& object) const { return noted_.contains(object); }
  [[nodiscard]] bool covers(const ObjectId& object, Incarnation incarnation) const;
  [[nodiscard]] std::optional<Incarnation> find(const ObjectId& object) const;
  [[nodiscard]] std::size_t size() const { return noted_.size(); }
  // True if a note that was forgotten early would still live. "Not noted" then means "not known".
  [[nodiscard]] bool is_short(Instant now) const { return now < short_until_; }
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
    std::list<ObjectId>::iterator place;
  };
  Duration life_;
  std::size_t notes_max_;
  std::map<ObjectId, Note> noted_;
  std::list<ObjectId> order_;  // of noting, for each life is equally long
  Instant short_until_;
};

}  // namespace hoplite
