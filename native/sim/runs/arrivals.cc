// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/arrivals.h"

#include <algorithm>
#include <array>

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
  config.engine.inline_bytes_max = kCarriedBytesMax;  // a node's own choice on such a link
  config.network.latency = kLatency;
  config.network.stands_for = std::max<std::uint64_t>(1, size_bytes / kStoredMostBytes);
  config.check_every = 1000;
  return config;
}

// When each source arrives, or each receiver asks, after the first one, in S/B.
std::vector<double> arrivals_of(const ArrivalsRow& row) {
  const std::size_t count = row.nodes - (row.collective == Collective::kBroadcast ? 1 : 0);
  std::vector<double> arrivals(count);
  for (std::size_t i = 0; i < count && row.staggered && count > 1; ++i) {
    arrivals[i] = static_cast<double>(i) / static_cast<double>(count - 1);
  }
  if (!row.staggered && count > 0) arrivals.back() = row.late;
  return arrivals;
}

void put_now(Cluster& cluster, ArrivalsRow& row, std::size_t node, const ObjectId& object) {
  const PutOptions options{.size_bytes = row.size_bytes, .dtype = DType::kFloat32};
  if (!cluster.run_until_answered(cluster.put(node, object, options), kAnswerMax)) {
    row.failures.push_back("no answer to put " + std::to_string(node));
  }
}

// Calls `act` for each of the case's arrivals at its time.
void play_arrivals(Cluster& cluster, const ArrivalsRow& row,
                   const std::function<void(std::uint32_t)>& act) {
  const std::vector<double> arrivals = arrivals_of(row);
  const Instant began = cluster.now();
  for (std::uint32_t i = 0; i < arrivals.size(); ++i) {
    const auto at =
        began + Duration{static_cast<std::int64_t>(arrivals[i] * copy_s(row.size_bytes) * 1e9)};
    if (at > cluster.now()) cluster.run_for(at - cluster.now());
    act(i);
  }
}

// Returns the longest time of a get from its question, or from `arrived` if that is later, in S/B.
double longest_of(Cluster& cluster, ArrivalsRow& row, const std::vector<Request*>& gets,
                  Instant arrived) {
  double took = 0;
  for (Request* get : gets) {
    if (!cluster.run_until_answered(*get, kAnswerMax) || get->error) {
      row.failures.push_back(name_of(*get) + ": no value");
      continue;
    }
    const Instant from = std::max(arrived, get->asked);
    took = std::max(took, static_cast<double>((*get->answered - from).ns) * 1e-9);
  }
  cluster.finish();
  const auto& violations = cluster.checker().failures();
  row.failures.insert(row.failures.end(), violations.begin(), violations.end());
  return took / copy_s(row.size_bytes);
}

double run_broadcast(Cluster& cluster, ArrivalsRow& row, const ObjectId& object) {
  put_now(cluster, row, 0, object);
  std::vector<Request*> gets;
  play_arrivals(cluster, row,
                [&](std::uint32_t i) { gets.push_back(&cluster.get(i + 1, object)); });
  return longest_of(cluster, row, gets, Instant{});
}

double run_reduce(Cluster& cluster, ArrivalsRow& row, const ObjectId& target) {
  for (std::size_t i = 0; i < row.nodes; ++i) put_now(cluster, row, i, source(i));
  const bool everywhere = row.collective == Collective::kAllreduce;
  const auto count = static_cast<std::uint32_t>(row.nodes);
  Request& reduce =
      cluster.reduce(0, target, {.source_count = count, .count = count, .everywhere = everywhere});
  std::vector<Request*> gets;
  for (std::size_t node = 0; node < (everywhere ? row.nodes : 1); ++node) {
    gets.push_back(&cluster.get(node, target));
  }
  play_arrivals(cluster, row, [&](std::uint32_t i) { cluster.announce(reduce, i, source(i)); });
  return longest_of(cluster, row, gets, cluster.now());
}

// Returns the case's time with a target, whose name decides its home, in S/B.
double run(ArrivalsRow& row, const ObjectId& target) {
  Cluster cluster(config_of(row.nodes, row.size_bytes));
  cluster.run_for(100_ms);  // all links are up
  if (row.collective == Collective::kBroadcast) return run_broadcast(cluster, row, target);
  return run_reduce(cluster, row, target);
}

// In S/B.
double find_bound(const ArrivalsRow& row) {
  if (row.collective != Collective::kAllreduce) return 1;
  const auto n = static_cast<double>(row.nodes);
  return row.staggered ? 2 * (n - 1) / n : better_choice(row.nodes, row.late);
}

ArrivalsRow measure(ArrivalsRow row, std::size_t turns) {
  std::vector<double> took;
  for (std::size_t i = 0; i < turns; ++i) took.push_back(run(row, object_named(1 + i)));
  std::sort(took.begin(), took.end());
  row.took = took[turns / 2];
  row.bound = find_bound(row);
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
  ArrivalsRow row;
  const auto measure_lates = [&] {
    for (const double late : options.lates) {
      row.late = late;
      tell(measure(row, options.turns));
    }
    row.late = 0;
    row.staggered = options.staggered;
    if (row.staggered) tell(measure(row, options.turns));
    row.staggered = false;
  };
  for (const Collective collective : options.collectives) {
    row.collective = collective;
    for (const std::size_t nodes : options.nodes) {
      row.nodes = nodes;
      for (const std::uint64_t size_bytes : options.sizes_bytes) {
        row.size_bytes = size_bytes;
        measure_lates();
      }
    }
  }
}

std::string json_of(const ArrivalsRow& row) {
  constexpr std::array kNames = {"broadcast", "reduce", "allreduce"};
  std::string text = std::string("{\"collective\": \"") +
                     kNames.at(static_cast<std::size_t>(row.collective)) + "\", \"case\": ";
  text += row.staggered ? "\"staggered\"" : "\"late\"";
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
