// SPDX-License-Identifier: Apache-2.0
// Every order in which the messages of a tiny world can come. Deliveries of one stream (frames of
// one kind from one node to another, commands of a client, notices of a link, views) keep their
// order, those of different streams come in any; a node may die between any two. A timer only comes
// when nothing is in flight. A delivery and its consequences at its node are one step.
//
// A state is what every node has been told so far, in which order: that determines its engine, and
// what is under way. So orders that differ only between different nodes lead to one state, which is
// entered once; of what is left nothing is sampled or skipped. No engine can be copied, so each
// schedule is played from the beginning, after the choices of the last one up to where it can turn
// aside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/cluster/cluster.h"

namespace hoplite::sim {

struct World {
  enum class Play : std::uint8_t {
    kBroadcast,  // node 0 puts what all others get
    kReduce,     // a node, which gets the result, reduces sources of the first two
    kSmall,      // the same for node 0 with small sources of the last two
    kRace,       // a put, a get, a delete and a later attempt of one object
  };
  std::string name;
  Play play = Play::kBroadcast;
  std::size_t nodes = 2;
  std::uint32_t blocks = 1;
  std::uint16_t stripes = 1;
  std::uint32_t deaths = 0;  // of any node, at any time
  std::uint16_t degree = 0;  // of a reduce's tree
  Canary canary = Canary::kNone;
};

struct Exploration {
  std::uint64_t states = 0;
  std::uint64_t schedules = 0;  // played to their end, or to a state that was known
  std::uint64_t ends = 0;       // different ones
  bool is_complete = false;     // every order was tried
  std::vector<std::string> failures;
  std::string schedule;  // of the failure: what replay() takes
};

// Tries all orders, up to the first failure, or until `states_max` have been entered.
[[nodiscard]] Exploration explore(const World& world, std::uint64_t states_max);

// Plays one schedule to its end; returns what was violated.
std::vector<std::string> replay(const World& world, const std::string& schedule, bool trace);

// Worlds whose orders are tried in seconds all together, and those that take minutes.
[[nodiscard]] std::vector<World> tiny_worlds();
[[nodiscard]] std::vector<World> small_worlds();

}  // namespace hoplite::sim
