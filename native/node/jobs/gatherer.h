// SPDX-License-Identifier: Apache-2.0
// Copies runs of a source one behind the other into a target, step by step, and clears the bytes
// between them (decision 48). Owns how far it is, and borrows the bytes of each step. One thread
// uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

// True if all runs lie in a source and a target of these sizes, in order and apart in the target.
[[nodiscard]] bool do_runs_fit(std::span<const StridedRuns> runs, std::uint64_t source_bytes,
                               std::uint64_t target_bytes);

class Gatherer {
 public:
  explicit Gatherer(std::vector<StridedRuns> runs) : runs_(std::move(runs)) {}

  // Writes the next `budget_bytes` or so of the target. REQUIRES: !is_done(); do_runs_fit(); every
  // step has the same source and target. Cost: a copy; a run of 256 bytes adds a few ns.
  void step(std::span<const std::byte> source, std::span<std::byte> target,
            std::uint64_t budget_bytes);
  [[nodiscard]] bool is_done() const { return is_done_; }

 private:
  std::vector<StridedRuns> runs_;
  std::size_t next_ = 0;      // the runs of the next step, and
  std::uint64_t row_ = 0;     // the run among them, and
  std::uint64_t in_run_ = 0;  // the bytes of it that are copied
  std::uint64_t filled_ = 0;  // bytes of the target that are written
  bool is_done_ = false;
};

}  // namespace hoplite
