// SPDX-License-Identifier: Apache-2.0
// The helper thread that moves objects between the arena and the file of spilled ones, so that no
// turn of the reactor waits for a disk. Owns the file and both queues; jobs are done in the order
// given. The engine keeps a job's range of the arena until it is answered. All methods are of the
// reactor.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "io/memory/arena.h"
#include "io/memory/spill_file.h"
#include "io/sockets/poller.h"

namespace hoplite {

class Spiller {
 public:
  // Arena and poller outlive it. Fails as SpillFile::open.
  [[nodiscard]] static Result<std::unique_ptr<Spiller>> start(const std::string& directory,
                                                              const Arena& arena,
                                                              const Poller& poller);
  ~Spiller();  // finishes the job that is under way, and no other
  Spiller(const Spiller&) = delete;
  Spiller& operator=(const Spiller&) = delete;

  void submit(const SpillJob& job);
  // Wakes the poller when there is something to take.
  [[nodiscard]] std::vector<SpillDone> take_done();

 private:
  Spiller(SpillFile file, const Arena& arena, const Poller& poller);
  void run() noexcept;
  [[nodiscard]] Result<void> move(const SpillJob& job) const;

  SpillFile file_;
  const Arena* arena_;
  const Poller* poller_;
  std::mutex mutex_;
  std::condition_variable has_job_;
  std::deque<SpillJob> jobs_;
  std::vector<SpillDone> done_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace hoplite
