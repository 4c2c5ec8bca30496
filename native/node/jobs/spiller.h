// SPDX-License-Identifier: Apache-2.0
// The helper thread that moves objects between the arena and the file of spilled ones, so that no
// turn of the reactor waits for a disk. Owns the file. The engine keeps a job's range of the arena
// until it is answered. All methods are of the reactor.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/memory/arena.h"
#include "io/memory/spill_file.h"
#include "io/sockets/poller.h"
#include "node/jobs/worker.h"
#include "plan/messages.h"

namespace hoplite {

class Spiller {
 public:
  // Arena and poller outlive it. Fails as SpillFile::open.
  [[nodiscard]] static Result<std::unique_ptr<Spiller>> start(const std::string& directory,
                                                              const Arena& arena,
                                                              const Poller& poller);

  void submit(const SpillJob& job) { worker_.submit(job); }
  // Wakes the poller when there is something to take.
  [[nodiscard]] std::vector<SpillDone> take_done() { return worker_.take_done(); }

 private:
  Spiller(SpillFile file, const Arena& arena, const Poller& poller);
  [[nodiscard]] std::optional<SpillDone> work(const SpillJob& job);
  [[nodiscard]] Result<void> move(const SpillJob& job) const;

  SpillFile file_;
  const Arena* arena_;
  bool has_failed_ = false;  // the last read or write; one line tells of a row of failures
  Worker<SpillJob, SpillDone> worker_;
};

}  // namespace hoplite
