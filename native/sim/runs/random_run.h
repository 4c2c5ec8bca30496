// SPDX-License-Identifier: Apache-2.0
// One random life of a cluster, all of it drawn from one seed (swarm testing: each run has its own
// mix of sizes, rates, faults and verbs). First it checks safety while faults happen. Then faults
// cease, and every answer that is possible must come within a bound of virtual time. At the end
// everything is deleted, and nothing may be left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/runs/draw.h"

namespace hoplite::sim {

struct RunResult {
  std::vector<std::string> failures;  // empty: the seed passed
  std::string summary;                // what kind of run it was
  std::uint64_t events = 0;
  std::uint64_t answered = 0;
  std::uint64_t lies = 0;             // that the liar told
  std::uint64_t answered_honest = 0;  // of what it could not lie about
  std::uint64_t published = 0;        // versions that became visible
};

[[nodiscard]] RunResult random_run(const RunOptions& options);

}  // namespace hoplite::sim
