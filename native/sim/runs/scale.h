// SPDX-License-Identifier: Apache-2.0
// Measures the cost of an operation in a cluster of many nodes, in virtual time: its duration, the
// depth of its tree, and the messages that its nodes send and hear. It measures no CPU time, so the
// numbers are the same in every run and on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"

namespace hoplite::sim {

struct ScaleOptions {
  std::vector<std::size_t> nodes = {64, 256, 1024};
  std::vector<std::uint64_t> sizes_bytes = {1_KiB, 1_MiB, 32_MiB};
  std::uint64_t directory_objects = 10'000;
};

// One case. Links carry 10 Gbit/s each way and take 30 us; a frame takes 5 us of a core at both
// ends: of a turn where it is sent (TurnConfig::per_frame), and beside the turns where it is heard
// (NetworkConfig::hearing_time).
struct ScaleRow {
  std::string name;
  std::size_t nodes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t objects = 1;   // that are made or fetched, by which counts can be divided
  double seconds = 0;          // from the first question to the last answer
  double bound_s = 0;          // as benchmarks/bounds.py has it; 0: there is none
  std::uint32_t depth = 0;     // links that a byte of the answers has crossed, at most
  std::uint64_t messages = 0;  // of control, by all nodes; their bytes without small objects
  std::uint64_t message_bytes = 0;
  std::uint64_t messages_home = 0;     // sent and heard by the home of the object; 0: of many
  std::uint64_t messages_busiest = 0;  // and by the node that has most of them
  std::uint64_t turns = 0;             // of all engines
  std::uint64_t turns_busiest = 0;
  std::uint64_t shard_max = 0;  // entries of the largest shard of the directory at the end
  std::vector<std::string> failures;
};

// Runs every case and tells of each as it is done. Memory: about 3 MB for each node.
void measure_scale(const ScaleOptions& options, const std::function<void(const ScaleRow&)>& tell);

// A row as a line of JSON.
[[nodiscard]] std::string json_of(const ScaleRow& row);

}  // namespace hoplite::sim
