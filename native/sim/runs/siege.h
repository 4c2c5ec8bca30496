// SPDX-License-Identifier: Apache-2.0
// Drives one engine between a lying peer, a lying client, a silent peer and an honest client. The
// engine must go on, its tables must agree, and it must move bytes inside of the arena only. The
// input is any bytes, from a fuzzer or a seeded generator.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/engine/engine.h"
#include "sim/model/liar.h"

namespace hoplite::sim {

class Siege {
 public:
  explicit Siege(Liar::Draw draw);
  // Gives the engine one event more. Aborts if the engine breaks one of its invariants.
  void step();
  [[nodiscard]] EngineStats stats() const { return engine_.stats(); }

 private:
  void honest_command();
  void io();
  void pass_time();
  void change_view();
  void perform_all();
  void perform(const Action& action);

  Liar::Draw draw_;
  Liar liar_;
  Instant now_{1'000'000'000};
  Epoch epoch_{1};
  std::uint64_t last_request_ = 0;
  std::map<std::pair<NodeId, TransferId>, OpenReceive> receives_;
  std::vector<CloseReceive> closed_;  // that may still write
  std::vector<BlockSent> unsent_;
  std::vector<SpillId> spills_;
  std::vector<RebuildId> rebuilds_;
  Engine engine_;
};

}  // namespace hoplite::sim
