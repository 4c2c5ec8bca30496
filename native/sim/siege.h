// One engine, between a peer and a client that lie, a peer that says nothing, and a client that is
// honest. Whatever they say, the engine goes on, its tables agree, and it has bytes moved inside of
// the arena alone. Driven by any bytes: of a fuzzer, or of a seeded generator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/engine.h"
#include "sim/liar.h"

namespace hoplite::sim {

class Siege {
 public:
  explicit Siege(Liar::Draw draw);
  // One more thing that is said, lands, leaves or breaks. Aborts when the engine does wrong.
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
  std::vector<BlockSent> unsent_;
  std::vector<SpillId> spills_;
  Engine engine_;
};

}  // namespace hoplite::sim
