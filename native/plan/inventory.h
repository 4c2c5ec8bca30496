// The arena as numbers: which ranges are free, who waits for one, which unpinned copy goes first.
// Admission is all or nothing, in order of asking; an object is never given part of its range
// (design decision 3). Small objects share 256 KiB slabs in power-of-two sizes; larger ones own
// whole pages. Invariants: extents handed out never overlap; used_bytes() is their sum as rounded.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

struct Admitted {
  ObjectId object;
  Extent extent;
};
struct Evict {  // free this copy, then ask again
  ObjectId object;
};
struct Refused {  // nothing that runs can free what it asks for
  ObjectId object;
  std::uint64_t size_bytes = 0;
};
using Admission = std::variant<Admitted, Evict, Refused>;

class Inventory {
 public:
  Inventory(std::uint64_t arena_bytes, Duration grace);

  // REQUIRES: size_bytes <= capacity_bytes() and `object` has no reservation waiting.
  void request(const ObjectId& object, std::uint64_t size_bytes, Instant now);
  void cancel(const ObjectId& object);
  void release(Extent extent, Instant now);
  // A copy that nobody needs: the longest idle one is evicted first.
  void mark_evictable(const ObjectId& object);
  void mark_needed(const ObjectId& object);

  // What to do next, until nothing: the head of the line is served or everybody behind it waits.
  [[nodiscard]] std::optional<Admission> poll_admission(Instant now);
  [[nodiscard]] std::optional<Instant> poll_timeout() const;

  [[nodiscard]] std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  [[nodiscard]] std::uint64_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] bool is_waiting(const ObjectId& object) const;
  void check_invariants() const;

 private:
  struct Waiting {
    ObjectId object;
    std::uint64_t size_bytes = 0;
  };
  struct Slab {
    std::uint64_t slot_bytes = 0;
    std::vector<bool> taken;
    std::size_t taken_count = 0;
  };

  std::optional<Extent> allocate(std::uint64_t size_bytes);
  std::optional<std::uint64_t> allocate_pages(std::uint64_t bytes);
  std::optional<std::uint64_t> allocate_slot(std::uint64_t slot_bytes);
  void release_pages(std::uint64_t offset, std::uint64_t bytes);

  std::uint64_t capacity_bytes_;
  Duration grace_;
  std::uint64_t used_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> free_;                  // offset -> bytes, coalesced
  std::map<std::uint64_t, Slab> slabs_;                          // by offset
  std::map<std::uint64_t, std::set<std::uint64_t>> slabs_open_;  // slot size -> slabs with room
  std::deque<Waiting> waiting_;
  Instant last_progress_;  // the last time something was freed or the head of the line changed
  std::map<ObjectId, std::uint64_t> idle_since_;  // evictable -> order
  std::map<std::uint64_t, ObjectId> idle_order_;
  std::uint64_t idle_next_ = 0;
};

}  // namespace hoplite
