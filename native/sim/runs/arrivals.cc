// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/arrivals.h"

#include <algorithm>

#include "sim/cluster/cluster.h"
#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kRateBytesPerS = 59'690'000;  // what TCP leaves of 500 Mbit/s
constexpr Duration kLatency = 100_us;
constexpr Duration kAnswerMax = 60_s;              // of virtual time
constexpr std::uint64_t kStoredMostBytes = 1_MiB;  // beyond it a stored byte stands for several

ObjectId source(std::size_t index) { return object_named(100 + index); }

double copy_s(std::uint64_t size_bytes) {
  return static_cast<double>(size_bytes) / static_cast<double>(kRateBytesPerS);
}

ClusterConfig config_of(std::size_t nodes, std::uint64_t size_bytes) {
  ClusterConfig config;
  config.nodes = nodes;
  config.engine.arena_bytes = 8 * size_bytes + 4_MiB;
  config.network.rate_bytes_per_s = config.engine.link_bytes_per_s = kRateBytesPerS;
  config.network.latency = kLatency;
  config.network.stands_for = std::max<std::uint64_t>(1, size_bytes / kStoredMostBytes);
  config.check_every = 1000;
  return config;
}

// When each source arrives after the first one, in S/B.
std::vector<double> arrivals_of(const ArrivalsRow& row) {
  std::vector<double> arrivals(row.nodes);
  for (std::size_t i = 0; i < row.nodes && row.staggered; ++i) {
    arrivals[i] = static_cast<double>(i) / static_cast<double>(row.nodes - 1);
  }
  if (!row.staggered) arrivals.back() = row.late;
  return arrivals;
}

// Returns the time from the last arrival to the last get, in S/B.
double run(ArrivalsRow& row, const ObjectId& target) {
  Cluster cluster(config_of(row.nodes, row.size_bytes));
  cluster.run_for(100_ms);  // all links are up
  for (std::size_t i = 0; i < row.nodes; ++i) {
    const PutOptions options{.size_bytes = row.size_bytes, .dtype = DType::kFloat32};
    if (!cluster.run_until_answered(cluster.put(i, source(i), options), kAnswerMax)) {
      row.failures.push_back("no answer to put " + std::to_string(i));
    }
  }
  const auto count = static_cast<std::uint32_t>(row.nodes);
  Request& reduce =
      cluster.reduce(0, target, {.source_count = count, .count = count, .everywhere = true});
  std::vector<Request*> gets;
  for (std::size_t node = 0; node < row.nodes; ++node) gets.push_back(&cluster.get(node, target));
  const std::vector<double> arrivals = arrivals_of(row);
  const Instant began = cluster.now();
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto at =
        began + Duration{static_cast<std::int64_t>(arrivals[i] * copy_s(row.size_bytes) * 1e9)};
    if (at > cluster.now()) cluster.run_for(at - cluster.now());
    cluster.announce(reduce, i, source(i));
  }
  const Instant arrived = cluster.now();
  double took = 0;
  for (Request* get : gets) {
    if (!cluster.run_until_answered(*get, kAnswerMax) || get->error) {
      row.failures.push_back(name_of(*get) + ": no value");
      continue;
    }
    took = std::max(took, static_cast<double>((*get->answered - arrived).ns) * 1e-9);
  }
  cluster.finish();
  const auto& violations = cluster.checker().failures();
  row.failures.insert(row.failures.end(), violations.begin(), violations.end());
  return took / copy_s(row.size_bytes);
}

ArrivalsRow measure(ArrivalsRow row, std::size_t turns) {
  std::vector<double> took;
  for (std::size_t i = 0; i < turns; ++i) took.push_back(run(row, object_named(1 + i)));
  std::sort(took.begin(), took.end());
  row.took = took[turns / 2];
  const auto n = static_cast<double>(row.nodes);
  row.bound = row.staggered ? 2 * (n - 1) / n : better_choice(row.nodes, row.late);
  return row;
}

}  // namespace

// A late node that owns a stripe sends n - 1 parts of its source, and its stripe n - 1 times. One
// that owns nothing sends its source alone, but each of the others sends an early source of n - 2
// parts and its stripe n - 1 times, each part a share of n - 1; some of it before the late one.
double better_choice(std::size_t nodes, double late) {
  const auto n = static_cast<double>(nodes);
  return std::min(2 * (n - 1) / n, std::max(1.0, (2 * n - 3) / (n - 1) - late));
}

void measure_arrivals(const ArrivalsOptions& options,
                      const std::function<void(const ArrivalsRow&)>& tell) {
  for (const std::size_t nodes : options.nodes) {
    for (const std::uint64_t size_bytes : options.sizes_bytes) {
      ArrivalsRow row;
      row.nodes = nodes;
      row.size_bytes = size_bytes;
      for (const double late : options.lates) {
        row.late = late;
        tell(measure(row, options.turns));
      }
      row.late = 0;
      row.staggered = true;
      tell(measure(row, options.turns));
    }
  }
}

std::string json_of(const ArrivalsRow& row) {
  std::string text = row.staggered ? "{\"case\": \"staggered\"" : "{\"case\": \"late\"";
  const auto add = [&](const char* name, auto value) {
    text += std::string(", \"") + name + "\": " + std::to_string(value);
  };
  add("nodes", row.nodes);
  add("size_bytes", row.size_bytes);
  add("late", row.late);
  add("took", row.took);
  add("bound", row.bound);
  add("failures", row.failures.size());
  return text + "}";
}

}  // namespace hoplite::sim
