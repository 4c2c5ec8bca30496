// SPDX-License-Identifier: Apache-2.0
// The threads that share the arithmetic of a turn's folds with the reactor: fork and join inside
// the turn. Folds are added to a batch; run() cuts the batch into parts, and each thread takes the
// next part until none is left. All methods are of the reactor.
//  - A part is the same share of the elements of every fold of the batch, in their order. So each
//    element sees the same operations in the same order as without threads.
//  - If one fold of a batch writes what another one uses, both use the same range for it. A fold
//    for which that does not hold runs after the batch.
//  - The threads touch no bytes outside run(), which waits for no thread that has not begun a part.
// Design decision 5q.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "base/units.h"
#include "plan/messages.h"

namespace hoplite {

class FoldCrew {
 public:
  static constexpr std::size_t kThreadsMax = 32;
  static constexpr std::size_t kFoldsMax = 64;  // in a batch; the next one runs it first
  // Bytes of sources. Half of a smaller batch takes less time than to wake a thread (decision 5q).
  static constexpr std::uint64_t kSharedBytesMin = 256_KiB;
  static constexpr std::uint64_t kPartBytesMin = 16_KiB;

  explicit FoldCrew(std::size_t threads);  // 0: the reactor alone
  ~FoldCrew();
  FoldCrew(const FoldCrew&) = delete;
  FoldCrew& operator=(const FoldCrew&) = delete;

  // Does what the function of the same name in kernels.h does, at the latest in the next run();
  // without threads at once.
  void fold(ReduceOp op, DType dtype, bool first, std::span<std::byte> into,
            std::span<const std::byte> from);
  void finish(ReduceOp op, DType dtype, std::uint32_t sources, std::span<std::byte> into,
              std::span<const std::byte> from);
  // Returns when all that was added is done. Cost: O(1) if that is nothing.
  void run();

 private:
  struct Job {
    std::span<std::byte> into;
    std::span<const std::byte> from;
    std::size_t elements = 0;
    std::uint32_t sources = 0;  // of a finish; 0: a fold
    DType dtype = DType::kFloat32;
    ReduceOp op = ReduceOp::kSum;
    bool first = false;
  };
  // The next part to be taken, and of which batch. A thread that comes late finds another batch or
  // no part.
  struct Claim {
    std::uint32_t batch = 0;
    std::uint16_t next = 0, parts = 0;
  };

  void serve() noexcept;
  void add(const Job& job);
  [[nodiscard]] bool can_join(const Job& job) const;
  void share(std::uint16_t parts);
  bool perform_next_part();
  void perform(const Job& job, std::size_t part, std::size_t parts) const;

  // Written by the reactor while no part is left; read by the thread that has taken a part.
  std::array<Job, kFoldsMax> jobs_;
  std::size_t job_count_ = 0;
  std::uint64_t bytes_ = 0;  // of the sources of `jobs_`
  std::uint32_t batch_ = 0;

  std::atomic<Claim> claim_{};
  std::atomic<std::uint32_t> done_{0};    // parts of the batch
  std::atomic<std::uint32_t> posted_{0};  // changes with each batch; what sleeping threads wait for
  std::atomic<bool> is_stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace hoplite
