// SPDX-License-Identifier: Apache-2.0
// Spilling: pinned objects leave the arena for a file and come back when a client or a peer reads
// them (decision 6c). Writing makes a copy in the file. An object with such a copy may be evicted
// from the arena, like a copy of another node's object, and keeps its pin. There is no state in
// between: an object that is being written is read from the arena, and an object that is being read
// back is served as far as it has come. Owns the file's ranges and what is under way.
// Invariant: a pin of this node keeps the range of each object that is under way.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "plan/messages.h"
#include "plan/objects/free_ranges.h"
#include "plan/objects/local_object.h"
#include "plan/objects/spilling.h"

namespace hoplite {

struct Owners;

class Spills {
 public:
  explicit Spills(Owners& engine) : engine_(engine) {}

  void handle_spill_done(const SpillDone& event);
  void spill(const ObjectId& id);
  void begin_spill(const Spilling& spilling, LocalObject& object);
  void fetch_spilled(const ObjectId& id);
  void forget_file_copy(const ObjectId& id, Extent file);
  void note_orphan_in_file(const ObjectId& id);
  bool unpin_read_back();

  [[nodiscard]] bool may_spill(const ObjectId& id, const LocalObject& object) const;
  [[nodiscard]] bool is_under_way(SpillId spill) const { return under_way_.contains(spill); }
  [[nodiscard]] const std::string& spill_error() const { return error_; }
  void check_invariants() const;

 private:
  // `live`: the object, or nullptr if it was dropped meanwhile.
  void note_step(Spilling& spilling, LocalObject* live);
  void end_write(const Spilling& ended, LocalObject* live, const std::string& error);
  void end_read(const Spilling& ended, LocalObject* live, const std::string& error);
  void free_file_range(const ObjectId& id, Extent file);

  Owners& engine_;
  FreeRanges ranges_{0, kSpillFileBytesMax};
  std::map<SpillId, Spilling> under_way_;
  // Read back and still pinned, so that folds have their turn before the range is given away.
  std::vector<Spilling> ended_;
  std::set<ObjectId> orphans_;  // orphaned while only the file had them
  std::string error_;           // of the last write; empty: it went well
  SpillId last_;
};

}  // namespace hoplite
