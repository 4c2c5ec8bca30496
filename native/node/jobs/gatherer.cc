// SPDX-License-Identifier: Apache-2.0
#include "node/jobs/gatherer.h"

#include <algorithm>
#include <cstring>

namespace hoplite {

bool do_runs_fit(std::span<const StridedRuns> runs, std::uint64_t source_bytes,
                 std::uint64_t target_bytes) {
  std::uint64_t end = 0;
  for (const StridedRuns& run : runs) {
    if (run.run_bytes == 0 || run.count == 0 || run.into < end) return false;
    if (run.run_bytes > source_bytes || run.from > source_bytes - run.run_bytes) return false;
    const std::uint64_t left = source_bytes - run.run_bytes - run.from;
    if (run.count > 1 && run.stride_bytes > left / (run.count - 1)) return false;
    if (run.into > target_bytes || run.count > (target_bytes - run.into) / run.run_bytes)
      return false;
    end = run.into + run.count * run.run_bytes;
  }
  return true;
}

void Gatherer::step(std::span<const std::byte> source, std::span<std::byte> target,
                    std::uint64_t budget_bytes) {
  const auto clear_until = [&](std::uint64_t end) {
    std::memset(target.data() + filled_, 0, end - filled_);
    filled_ = end;
  };
  while (budget_bytes > 0 && next_ < runs_.size()) {
    const StridedRuns& run = runs_[next_];
    if (filled_ < run.into) clear_until(run.into);
    const std::byte* from = source.data() + run.from + row_ * run.stride_bytes;
    std::byte* into = target.data() + filled_;
    if (in_run_ == 0 && run.run_bytes <= budget_bytes) {  // whole runs
      const std::uint64_t count = std::min(run.count - row_, budget_bytes / run.run_bytes);
      for (std::uint64_t i = 0; i < count; ++i) {
        std::memcpy(into, from, run.run_bytes);
        into += run.run_bytes;
        from += run.stride_bytes;
      }
      row_ += count;
      filled_ += count * run.run_bytes;
      budget_bytes -= count * run.run_bytes;
    } else {
      const std::uint64_t size = std::min(run.run_bytes - in_run_, budget_bytes);
      std::memcpy(into, from + in_run_, size);
      in_run_ += size;
      filled_ += size;
      budget_bytes -= size;
      if (in_run_ == run.run_bytes) {
        in_run_ = 0;
        ++row_;
      }
    }
    if (row_ == run.count) {
      row_ = 0;
      ++next_;
    }
  }
  if (next_ < runs_.size()) return;
  clear_until(target.size());
  is_done_ = true;
}

}  // namespace hoplite
