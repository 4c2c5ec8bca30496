// SPDX-License-Identifier: Apache-2.0
// Copies buffers into a reserved range, a part at a time, by as many threads as call work(), and
// makes the checksums of its blocks meanwhile. Owns the position of the next part, and how far the
// range is complete from its start. pwrite(2) is the cheapest way, but takes the file's lock. So
// one thread at a time writes, and the others map the pages of their parts, filled in by one call
// (docs/internals/gotchas.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "io/memory/mapping.h"
#include "plan/messages.h"

namespace hoplite {

using Buffers = std::span<const std::span<const std::byte>>;  // one after the other, never joined

[[nodiscard]] std::uint64_t total_bytes(Buffers data);

class RangeWriter {
 public:
  struct Written {
    std::uint64_t upto_bytes = 0;  // whole from the start on
    // The checksums of the part's blocks. They are wrong if the buffers change meanwhile.
    BlockIndex first_block;
    std::vector<std::uint32_t> sums;
  };
  // Called after each part but the last, without a lock. An error ends the work of all threads.
  using Progress = std::function<Result<void>(const Written& part)>;

  // `block_bytes`: the cut of the object; 0: make no checksums.
  // REQUIRES: `data` has extent.size_bytes; range and buffers outlive every call of work().
  RangeWriter(int fd, Extent extent, std::uint32_t block_bytes, Buffers data);

  // Returns how many threads are worth their start.
  [[nodiscard]] std::size_t thread_count() const { return thread_count_; }
  // Copies parts until none is left, or until a thread has failed.
  void work(const Progress& progress);
  // How it ended: with the part that made the range whole. REQUIRES: every thread has come back
  // from work().
  [[nodiscard]] Result<Written> result() const;

 private:
  struct Cursor {  // a place in the buffers
    std::size_t buffer = 0;
    std::size_t at = 0;
  };
  struct Part {
    std::uint64_t offset = 0;  // in the range
    std::uint64_t size_bytes = 0;
    Cursor from;
  };
  [[nodiscard]] std::optional<Part> take();
  [[nodiscard]] Written finish(const Part& part, std::vector<std::uint32_t> sums);
  void fail(const Error& why);
  [[nodiscard]] Result<std::vector<std::uint32_t>> copy(const Part& part);
  // Adds a step of a part to the checksums of the part's blocks. `done`: bytes of the part before.
  void add_sums(Part step, std::uint64_t done, std::vector<std::uint32_t>& sums) const;
  [[nodiscard]] Result<void> write(Part step);
  [[nodiscard]] std::optional<Mapping> map_pages(const Part& part) const;
  void copy_mapped(Part step, std::span<std::byte> into) const;
  void skip(Cursor& cursor, std::uint64_t bytes) const;

  int fd_;
  Extent extent_;
  std::uint32_t block_bytes_;
  Buffers data_;
  std::uint64_t part_bytes_;
  std::size_t thread_count_;
  std::mutex writes_;  // held by the thread whose part goes by pwrite(2)
  std::mutex mutex_;
  std::uint64_t taken_bytes_ = 0;
  Cursor next_;
  std::uint64_t whole_bytes_ = 0;
  std::set<std::uint64_t> beyond_;  // offsets of complete parts behind a gap
  Written last_;                    // once the range is whole
  std::optional<Error> error_;
};

}  // namespace hoplite
