// SPDX-License-Identifier: Apache-2.0
// The helper thread that makes objects of a base and deltas (decision 42) or of runs of another one
// (decision 48), so that no turn of the reactor passes over a large object. Between two steps of a
// rebuild it keeps how far it is. The engine keeps all ranges of a job until it is answered. All
// methods are of the reactor.
#pragma once

#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "base/result.h"
#include "delta/applier.h"
#include "io/memory/arena.h"
#include "io/sockets/poller.h"
#include "node/jobs/gatherer.h"
#include "node/jobs/worker.h"
#include "plan/messages.h"

namespace hoplite {

class Rebuilder {
 public:
  // Arena and poller outlive it.
  Rebuilder(const Arena& arena, const Poller& poller);

  void submit(const RebuildJob& job) { worker_.submit(job); }
  // Wakes the poller when there is something to take.
  [[nodiscard]] std::vector<RebuildDone> take_done() { return worker_.take_done(); }

 private:
  [[nodiscard]] std::optional<RebuildDone> work(const RebuildJob& job);
  [[nodiscard]] Result<bool> make_step(const RebuildJob& job);  // true: it was the last one
  [[nodiscard]] Result<void> begin(const RebuildJob& job);

  const Arena* arena_;
  std::map<RebuildId, std::variant<DeltaApplier, Gatherer>> open_;  // of the helper thread
  Worker<RebuildJob, RebuildDone> worker_;
};

}  // namespace hoplite
