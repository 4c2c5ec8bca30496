// SPDX-License-Identifier: Apache-2.0
// The node's memory for objects: one memfd of fixed size, mapped shared in the node. It has no name
// on disk, so nothing is left after SIGKILL. Owns the mapping and two descriptors. Producers
// pwrite(2) through the writable one; receivers map the read-only one privately. plan/inventory
// decides which range belongs to which object. Reactor thread only; clients use the descriptors.
// A range is never truncated or punched, so a stale mapping can read old bytes but never fault.
// Design decision 6; each rule is a test and a line in docs/internals/gotchas.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/units.h"
#include "io/memory/mapping.h"
#include "io/sockets/unique_fd.h"
#include "plan/messages.h"

namespace hoplite {

inline constexpr std::uint64_t kLargePage = 2_MiB;  // of the processor

class Arena {
 public:
  // Takes no memory yet: the kernel allocates a page at the first write to it. It begins with a
  // large page's address.
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
