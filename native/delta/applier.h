// SPDX-License-Identifier: Apache-2.0
// Rebuilds a version from its base and the deltas of the versions after the base, in one pass over
// the target: a later delta wins. Borrows the deltas' bytes, which must outlive it.
//  - No byte outside the target is written, whatever the deltas hold.
//  - A section that was applied has the CRC that its last delta names. A target is the version when
//    every section was applied without an error, and void after an error.
//  - apply() is const: several threads may call it for different sections. step() is of one thread.
// Decision 41.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "delta/delta.h"

namespace hoplite {

// Deltas of one pass. Each costs 64 bytes of memory for each section.
inline constexpr std::size_t kDeltasPerPassMax = 32;

class DeltaApplier {
 public:
  // `deltas`: of consecutive versions, the oldest first, at least one.
  // Returns kInvalidArgument if one is corrupt, or is not made for the version before it.
  [[nodiscard]] static Result<DeltaApplier> open(
      std::span<const std::span<const std::byte>> deltas);

  [[nodiscard]] std::uint64_t size_bytes() const { return deltas_.front().header().size_bytes; }
  [[nodiscard]] std::uint32_t base_crc() const { return deltas_.front().header().base_crc; }
  [[nodiscard]] std::uint32_t new_crc() const { return deltas_.back().header().new_crc; }
  [[nodiscard]] std::size_t section_count() const { return deltas_.front().sections().size(); }

  // Rebuilds `count` sections from number `first` on. `base` and `target` are the wholes: the same
  // bytes, or bytes that don't overlap.
  // Returns kInvalidArgument for another size, another base or a corrupt delta. In place a section
  // of another base is found before it is changed; sections in front of it are changed by then.
  // REQUIRES: first + count <= section_count().
  [[nodiscard]] Result<void> apply(std::size_t first, std::size_t count,
                                   std::span<const std::byte> base,
                                   std::span<std::byte> target) const;

  // Rebuilds the next sections: `budget_bytes` of the target, at least one section. REQUIRES:
  // !is_done(); no step has failed; every step has the same base and target.
  [[nodiscard]] Result<void> step(std::span<const std::byte> base, std::span<std::byte> target,
                                  std::uint64_t budget_bytes);
  // True if every section is rebuilt.
  [[nodiscard]] bool is_done() const { return next_ == section_count(); }

 private:
  explicit DeltaApplier(std::vector<Delta> deltas) : deltas_(std::move(deltas)) {}
  [[nodiscard]] Result<void> rebuild(std::size_t section, std::span<const std::byte> base,
                                     std::span<std::byte> target) const;

  std::vector<Delta> deltas_;  // of the same places
  std::size_t next_ = 0;       // the section of the next step
};

}  // namespace hoplite
