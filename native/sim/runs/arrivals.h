// SPDX-License-Identifier: Apache-2.0
// Measures allreduces whose sources arrive late, in virtual time: from the arrival of the last
// source to the last get, in units of S/B, the time that one copy takes on a link. Each figure
// stands beside the least of two plans without latency and headers, so it is the same in every run
// and on every machine (design decision 5e).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"

namespace hoplite::sim {

struct ArrivalsOptions {
  std::vector<std::size_t> nodes = {3, 4, 5, 6, 7, 8, 12, 16};
  std::vector<std::uint64_t> sizes_bytes = {1_MiB, 4_MiB, 32_MiB};
  std::vector<double> lates = {0, 0.05, 0.1, 0.25, 0.5, 1};  // of the last source, in S/B
  std::size_t turns = 3;  // a figure is their median: each target has another home
};

// One case, with one source on each node. Links carry 500 Mbit/s less headers, and take 100 us.
struct ArrivalsRow {
  std::size_t nodes = 0;
  std::uint64_t size_bytes = 0;
  bool staggered = false;  // True if the sources come one after the other, the last one at S/B
  double late = 0;         // else: the last source's delay, in S/B
  double took = 0;         // in S/B
  double bound = 0;        // likewise
  std::vector<std::string> failures;
};

// Returns how long an allreduce takes after a source that comes `late` S/B after the others, in
// S/B, with the better of two plans: all nodes own a stripe, or all except the late one.
[[nodiscard]] double better_choice(std::size_t nodes, double late);

// Runs every case and tells of each as it is done. The bound of a staggered case is that of a ring,
// 2 (n - 1)/n.
void measure_arrivals(const ArrivalsOptions& options,
                      const std::function<void(const ArrivalsRow&)>& tell);

// A row as a line of JSON.
[[nodiscard]] std::string json_of(const ArrivalsRow& row);

}  // namespace hoplite::sim
