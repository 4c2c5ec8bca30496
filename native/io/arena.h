// The node's memory for objects: one memfd without a name on disk (nothing is left after SIGKILL),
// of fixed size, mapped shared in the node. Owns the mapping and two descriptors: the writable one
// that producers pwrite(2) through, and a read-only one that receivers map privately. Which range
// belongs to what is decided by plan/inventory. Reactor thread only; clients use the descriptors. A
// range is never truncated or punched, so a stale mapping can read old bytes but never fault.
// Design decision 6; each rule is a test and a line in docs/gotchas.md. SPDX-License-Identifier:
// Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "io/mapping.h"
#include "io/unique_fd.h"
#include "plan/messages.h"

namespace hoplite {

class Arena {
 public:
  // Takes no memory yet: pages come when they are first written.
  // kInvalidArgument unless size_bytes is a positive multiple of the page and fits this machine.
  [[nodiscard]] static Result<Arena> open(std::uint64_t size_bytes);

  [[nodiscard]] std::uint64_t size_bytes() const { return mapping_.bytes().size(); }
  [[nodiscard]] int writable_fd() const { return writable_.value(); }
  [[nodiscard]] int readonly_fd() const { return readonly_.value(); }
  // REQUIRES: the extent lies inside the arena.
  [[nodiscard]] std::span<std::byte> at(Extent extent) const;
  [[nodiscard]] bool contains(Extent extent) const;

 private:
  Arena(UniqueFd writable, UniqueFd readonly, Mapping mapping);
  UniqueFd writable_;
  UniqueFd readonly_;
  Mapping mapping_;
};

}  // namespace hoplite
