// SPDX-License-Identifier: Apache-2.0
// Measures collectives that a node joins late, in virtual time, in units of S/B, the time that one
// copy takes on a link. Reduces and allreduces take from the arrival of the last source to the last
// get; a broadcast takes as long as the slowest of its gets. Each figure stands beside a bound
// without latency and headers, so it is the same in every run and on every machine (design decision
// 5e).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"

namespace hoplite::sim {

enum class Collective : std::uint8_t { kBroadcast, kReduce, kAllreduce };

struct ArrivalsOptions {
  std::vector<Collective> collectives = {Collective::kBroadcast, Collective::kReduce,
                                         Collective::kAllreduce};
  std::vector<std::size_t> nodes = {3, 4, 5, 6, 7, 8, 12, 16};
  std::vector<std::uint64_t> sizes_bytes = {64_KiB, 256_KiB, 1_MiB, 4_MiB, 32_MiB};
  std::vector<double> lates = {0, 0.05, 0.1, 0.25, 0.5, 1};  // of the last node, in S/B
  bool staggered = true;  // True if the case of nodes that come one after the other is measured
  std::size_t turns = 3;  // a figure is their median: each target has another home
};

// One case. Each node has a source, or in a broadcast each but the first asks for the object, which
// is there. Links carry 500 Mbit/s less headers, and take 100 us.
struct ArrivalsRow {
  Collective collective = Collective::kAllreduce;
  std::size_t nodes = 0;
  std::uint64_t size_bytes = 0;
  bool staggered = false;  // True if the nodes come one after the other, the last one at S/B
  double late = 0;         // else: the last node's delay, in S/B
  double took = 0;         // in S/B
  double bound = 0;        // likewise
  std::vector<std::string> failures;
};

// Returns how long an allreduce takes after a source that comes `late` S/B after the others, in
// S/B, with the better of two plans: all nodes own a stripe, or all except the late one.
[[nodiscard]] double better_choice(std::size_t nodes, double late);

// Runs every case and tells of each as it is done. The bound of a staggered allreduce is that of a
// ring, 2 (n - 1)/n. One copy bounds every broadcast and reduce.
void measure_arrivals(const ArrivalsOptions& options,
                      const std::function<void(const ArrivalsRow&)>& tell);

// A row as a line of JSON.
[[nodiscard]] std::string json_of(const ArrivalsRow& row);

}  // namespace hoplite::sim
