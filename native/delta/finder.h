// SPDX-License-Identifier: Apache-2.0
// Makes the delta of a new version against its base, while the new bytes are copied to where the
// whole is kept: the new bytes are read once. With a copy the delta is that of the copy, even if
// the new bytes change meanwhile. A finder borrows base and copy, which must outlive it, and is
// used by one thread. The bytes of a delta depend neither on how the new bytes were cut nor on the
// processor. Decision 41.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "delta/delta.h"
#include "delta/kernels.h"

namespace hoplite {

struct DeltaOptions {
  // Bytes of the delta. A finder gives up as soon as the delta would be larger.
  std::uint64_t limit_bytes = 0;
  std::uint32_t section_bytes = kDeltaSectionBytes;
  DeltaKernels kernels = choose_kernels();
};

class DeltaFinder {
 public:
  // `copy`: empty, or as large as the base, and no part of it. `buffer`: memory for the delta, so
  // that a caller with many versions makes no fresh pages for each.
  // Returns kInvalidArgument if the ranges don't cover the base, or a range or an option is bad.
  [[nodiscard]] static Result<DeltaFinder> start(std::span<const DeltaRange> ranges,
                                                 std::span<const std::byte> base,
                                                 std::span<std::byte> copy,
                                                 const DeltaOptions& options,
                                                 std::vector<std::byte> buffer = {});

  // Compares the next bytes of the new whole with the base, and copies them, also after it has
  // given up. Returns kInvalidArgument for bytes beyond the whole, or if they end inside an
  // element.
  [[nodiscard]] Result<void> add(std::span<const std::byte> bytes);

  // True if the delta would be larger than the limit. Without a copy no more bytes are needed then.
  [[nodiscard]] bool has_given_up() const { return has_given_up_; }
  // Bytes of the new whole that add() has taken.
  [[nodiscard]] std::uint64_t added_bytes() const { return added_bytes_; }

  // Returns the delta, or nullopt if it has given up. REQUIRES: all bytes were added, or
  // has_given_up(). The finder is void then.
  [[nodiscard]] std::optional<std::vector<std::byte>> finish();

 private:
  DeltaFinder() = default;
  void compare_next(std::span<const std::byte> bytes);
  void close_section();
  void cancel();

  DeltaHeader header_;
  DeltaOptions options_;
  std::vector<DeltaPlace> places_;
  std::span<const std::byte> base_;
  std::span<std::byte> copy_;
  std::uint64_t added_bytes_ = 0;
  bool has_given_up_ = false;
  std::vector<std::byte> delta_;  // header, rows, and the payload of closed sections
  std::size_t rows_at_ = 0;

  // The open section.
  std::size_t section_ = 0;
  DeltaSection row_;
  std::uint32_t next_element_ = 0;  // the one after the last changed one
  std::uint32_t seen_bytes_ = 0;    // of the section
  std::vector<std::byte> gaps_;     // as large as the gaps of any section
  std::vector<std::byte> values_;   // likewise
};

}  // namespace hoplite
