// SPDX-License-Identifier: Apache-2.0
// Space in the arena, as numbers: free ranges, requests that wait, and the order of eviction.
// Admission is all or nothing, and in order of asking within a line (design decision 6):
//   folds   a reduce's result and workspace. Ending folds free memory, so they may use
//           everything and pass the other two lines
//   copies  of gets: 7/8. They pass waiting puts, because a copy may let a consumer
//           finish and delete; a copy can be evicted afterwards
//   puts    7/8. They pass no line
// A passed line does not starve: a head that has waited for a grace and sees memory freed holds the
// passing lines back. The oldest head fails after one grace in which nothing happened that could
// free memory, or after ten in which nothing was freed that had been given before it asked. With
// WhenFull::kFail no put waits; with kSpill pinned objects are spilled one by one if no copy is
// left. Small objects share 256 KiB slabs. Invariants: extents never overlap; 1/8 has only folds.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "plan/messages.h"
#include "plan/objects/free_ranges.h"

namespace hoplite {

enum class Line : std::uint8_t { kFolds, kCopies, kPuts };
inline constexpr std::size_t kLineCount = 3;
enum class Rank : std::uint8_t { kOrphan, kCopy, kPinned };  // in this order they go

struct Need {
  std::uint64_t size_bytes = 0;
  std::uint64_t workspace_bytes = 0;  // of a fold; 0: none
};

struct Admitted {
  ObjectId object;
  Extent extent;
  std::optional<Extent> workspace;
};
struct Evict {  // the caller frees this copy, then polls again
  ObjectId object;
};
struct Spill {  // the caller writes it to the file, and marks it evictable then
  ObjectId object;
};
struct Refused {  // no running operation can free what it asks for
  ObjectId object;
  std::uint64_t size_bytes = 0;
};
using Admission = std::variant<Admitted, Evict, Spill, Refused>;

class Inventory {
 public:
  Inventory(std::uint64_t arena_bytes, Duration grace, WhenFull when_full = WhenFull::kWait);

  // True if an empty arena could hold it.
  [[nodiscard]] bool can_hold(Need need, Line line) const;
  // REQUIRES: can_hold() and `object` has no reservation waiting.
  void request(const ObjectId& object, Need need, Line line, Instant now);
  void cancel(const ObjectId& object, Instant now);
  void release(Extent extent, Instant now);
  // Borrows a range briefly, with a fold's rights. Returns nothing if there is no room now or a
  // fold waits. Does not count as progress.
  [[nodiscard]] std::optional<Extent> borrow(std::uint64_t size_bytes) {
    if (!queue(Line::kFolds).empty()) return std::nullopt;
    return allocate(size_bytes, true);
  }
  void release_borrowed(Extent extent) { free(extent); }
  void note_progress(Instant now) { last_progress_ = now; }  // what runs may free memory soon
  void handle_spilled(bool done, Instant now);               // the one that was asked for
  // An idle object: evicted in order of rank, then longest idle first; kPinned may be spilled.
  void mark_evictable(const ObjectId& object, Extent extent, Rank rank);
  void mark_needed(const ObjectId& object);

  // Returns what to do next; call until it returns nothing. Cost: O(log of everything held).
  [[nodiscard]] std::optional<Admission> poll_admission(Instant now);
  [[nodiscard]] std::optional<Instant> poll_timeout() const;

  [[nodiscard]] std::uint64_t capacity_bytes() const { return common().bytes + headroom().bytes; }
  [[nodiscard]] std::uint64_t common_bytes() const { return common().bytes; }
  [[nodiscard]] std::uint64_t used_bytes() const { return common().used + headroom().used; }
  [[nodiscard]] std::uint64_t evictable_bytes() const { return common().idle + headroom().idle; }
  [[nodiscard]] bool is_waiting(const ObjectId& object) const { return lines_of_.contains(object); }
  [[nodiscard]] std::optional<Rank> rank(const ObjectId& object) const;
  void check_invariants() const;

 private:
  struct Waiting {
    ObjectId object;
    Need need;
    Instant asked;
    Instant head_since;  // of the head of a line only
  };
  struct Slab {
    std::uint64_t slot_bytes = 0;
    std::vector<bool> taken;
    std::size_t taken_count = 0;
  };
  using IdleOrder = std::pair<Rank, std::uint64_t>;
  struct Zone {
    Zone(std::uint64_t from, std::uint64_t size) : bytes(size), free(from, size) {}
    std::uint64_t bytes, used = 0, idle = 0, may_spill = 0;
    FreeRanges free;
    std::map<std::uint64_t, std::set<std::uint64_t>> open_slabs;  // slot size -> slabs with room
    std::map<IdleOrder, ObjectId> idle_order;
  };
  struct Idle {
    IdleOrder order;
    Extent extent;
  };
  using Queue = std::map<std::uint64_t, Waiting>;  // by ticket

  [[nodiscard]] const Zone& common() const { return zones_[0]; }
  [[nodiscard]] const Zone& headroom() const { return zones_[1]; }
  [[nodiscard]] Zone& zone_of(Extent extent);
  [[nodiscard]] Queue& queue(Line line) { return queues_[static_cast<std::size_t>(line)]; }
  [[nodiscard]] std::optional<Admission> serve(Line line, Instant now);
  [[nodiscard]] std::optional<std::pair<std::uint64_t, Line>> oldest() const;
  [[nodiscard]] std::optional<Admission> refuse_oldest(Instant now);
  [[nodiscard]] Refused refuse(Line line, Instant now);
  [[nodiscard]] Instant refusal_time_of(const Waiting& head) const;
  [[nodiscard]] bool holds_back(Line passed, Line passing, Instant now);
  [[nodiscard]] bool is_older(Line line, Line than);
  void leave(Line line, std::uint64_t ticket, Instant now);
  std::optional<Extent> allocate(std::uint64_t size_bytes, bool all_zones);
  std::optional<std::uint64_t> allocate_slot(Zone& zone, std::uint64_t slot_bytes);
  void free(Extent extent);

  std::vector<Zone> zones_;  // common, headroom
  Duration grace_;
  WhenFull when_full_;
  std::map<std::uint64_t, Slab> slabs_;           // by offset
  std::map<std::uint64_t, std::uint64_t> given_;  // offset -> the ticket that was next
  std::array<Queue, kLineCount> queues_;
  std::map<ObjectId, std::pair<Line, std::uint64_t>> lines_of_;  // -> ticket
  std::uint64_t next_ticket_ = 0, next_idle_ = 0;
  Instant last_progress_;    // a range was freed or given, or a block landed
  Instant spills_again_at_;  // no write to the file before it, after a write that failed
  Instant last_freed_;       // a range was freed, but not by an eviction
  Instant last_gained_;      // so too, and the range had been given before the oldest head asked
  std::optional<std::uint64_t> evicting_;  // an offset, from an Evict to the release of its range
  bool is_spilling_ = false;
  std::optional<Instant> lets_pass_at_;  // when a line that is held back may pass again
  std::map<ObjectId, Idle> idle_;
};

}  // namespace hoplite
