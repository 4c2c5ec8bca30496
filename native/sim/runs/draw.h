// SPDX-License-Identifier: Apache-2.0
// Draws the kind of a run from its seed: the number of nodes, their speed, their faults and their
// engines' limits.
#pragma once

#include <cstdint>

#include "base/prng.h"
#include "sim/cluster/cluster_config.h"

namespace hoplite::sim {

// Whether a run has something: as its seed says, or as its caller does.
enum class Choice : std::uint8_t { kDrawn, kNever, kAlways };

struct RunOptions {
  std::uint64_t seed = 1;
  bool trace = false;
  Canary canary = Canary::kNone;  // faults only where it needs them, and work enough to matter
  Choice small_limits = Choice::kDrawn;
  Choice real_turns = Choice::kDrawn;  // that take time, and unfair schedules
  Choice liar = Choice::kDrawn;        // one member lies
  Choice channels = Choice::kDrawn;    // publishers and readers of versions; never beside lies
  Choice rebuilds = Choice::kDrawn;    // versions of objects are put with deltas
};

struct Draw {
  ClusterConfig cluster;
  bool has_small_arena = false;
  bool has_small_limits = false;
  bool has_rebuilds = false;
};

// `prng` goes on as the run's own.
[[nodiscard]] Draw draw_run(const RunOptions& options, Prng& prng);

}  // namespace hoplite::sim
