// SPDX-License-Identifier: Apache-2.0
#include "node/node_options.h"

#include <algorithm>
#include <limits>

#include "io/liveness/liveness_rules.h"
#include "node/fold_crew.h"

namespace hoplite {
namespace {

struct Option {
  const char* name;
  std::int64_t least;
  std::int64_t most;
  void (*set)(NodeConfig&, std::int64_t);
};

constexpr Duration ms(std::int64_t value) { return {value * 1'000'000}; }
constexpr std::int64_t kMsMax = 3'600'000;
constexpr std::int64_t kSilenceMsMin = 3 * (kPulseEvery.ns / 1'000'000);
constexpr std::int64_t kBytesMax = std::numeric_limits<std::int64_t>::max();

// One for each rail of a node. One peer has no more connections for blocks.
constexpr std::int64_t kIoThreadsMax = kRailsMax;
constexpr std::int64_t kLinkMbitMax = 10'000'000;
constexpr std::int64_t kMomentsMost = 1 << 20;  // 126 MB

constexpr std::uint64_t count(std::int64_t value) { return static_cast<std::uint64_t>(value); }

constexpr Option kOptions[] = {
    {"admission_grace_ms", 0, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.admission_grace = ms(v); }},
    {"arriving_bytes_max", 1, kBytesMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.arriving_bytes_max = count(v); }},
    {"block_bytes_max", 1, kBlockBytesMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.block_bytes_max = count(v); }},
    {"block_bytes_min", kPartAlignBytes, kBlockBytesMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.block_bytes_min = count(v); }},
    {"broadcast_stripes", 0, kStripesMax,
     [](NodeConfig& c, std::int64_t v) {
       c.engine.broadcast_stripes = static_cast<std::uint16_t>(v);
     }},
    {"caller_grace_ms", 0, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.caller_grace = ms(v); }},
    {"credit_blocks_min", 1, 1 << 20,
     [](NodeConfig& c, std::int64_t v) {
       c.engine.credit_blocks_min = static_cast<std::uint32_t>(v);
     }},
    {"credit_bytes", 1, kBytesMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.credit_bytes = count(v); }},
    {"data_tls", 0, 1, [](NodeConfig& c, std::int64_t v) { c.data_tls = v; }},
    {"fold_threads", 0, FoldCrew::kThreadsMax,
     [](NodeConfig& c, std::int64_t v) { c.fold_threads = count(v); }},
    {"handshake_max_ms", 1, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.handshake_max = ms(v); }},
    {"inline_bytes_max", 0, kInlineBytesMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.inline_bytes_max = count(v); }},
    {"io_threads", 0, kIoThreadsMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.io_threads = count(v); }},
    {"link_down_max_ms", 1, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.link_down_max = ms(v); }},
    {"link_mbit", 1, kLinkMbitMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.link_bytes_per_s = count(v) * 125'000; }},
    {"liveness_cut_ms", 250, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.liveness.cut = ms(v); }},
    {"liveness_dead_ms", kSilenceMsMin, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.liveness.dead = ms(v); }},
    {"liveness_suspect_ms", kSilenceMsMin, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.liveness.suspect = ms(v); }},
    {"lost_grace_ms", 0, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.lost_grace = ms(v); }},
    {"moments_max", 0, kMomentsMost, [](NodeConfig& c, std::int64_t v) { c.moments_max = v; }},
    {"prefault_bytes", 0, kBytesMax, [](NodeConfig& c, std::int64_t v) { c.prefault_bytes = v; }},
    {"progress_window_ms", 1, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.progress_window = ms(v); }},
    {"push_retry_ms", 1, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.push_retry = ms(v); }},
    {"rail_queue_bytes", 1, kBytesMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.rail_queue_bytes = count(v); }},
    {"redial_first_ms", 1, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.redial_first = ms(v); }},
    {"redial_max_ms", 1, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.limits.redial_max = ms(v); }},
    {"reduce_degree", 0, kReduceSourcesMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.reduce_degree = static_cast<std::uint16_t>(v); }},
    {"reduce_stripes", 0, kStripesMax,
     [](NodeConfig& c, std::int64_t v) {
       c.engine.reduce_stripes = static_cast<std::uint16_t>(v);
     }},
    {"regrant_delay_ms", 0, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.regrant_delay = ms(v); }},
    {"tombstone_life_ms", 0, kMsMax,
     [](NodeConfig& c, std::int64_t v) { c.engine.tombstone_life = ms(v); }},
    {"trace", 0, 1, [](NodeConfig& c, std::int64_t v) { c.trace = v; }},
    {"when_full", 0, 2,
     [](NodeConfig& c, std::int64_t v) { c.engine.when_full = static_cast<WhenFull>(v); }},
};

std::string ms_text(Duration value) { return std::to_string(value.ns / 1'000'000); }

// Returns the default of inline_bytes_max. A small object goes whole to each reader over one link,
// so the limit is proportional to the link's rate.
std::uint64_t inline_bytes_for(std::uint64_t link_bytes_per_s) {
  const std::uint64_t alike = kInlineBytesMax * link_bytes_per_s / kLinkBytesPerS;
  return std::clamp(alike, kCarriedBytesMax, kInlineBytesMax);
}

Error invalid(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }

}  // namespace

std::map<std::string, std::pair<std::int64_t, std::int64_t>> option_ranges() {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> ranges;
  for (const Option& option : kOptions) ranges[option.name] = {option.least, option.most};
  return ranges;
}

Result<NodeConfig> configure(const NodeOptions& options) {
  if (options.node == kNoNode) return invalid("node_id=0 is no node; give 1 or more");
  if (options.incarnation.value == 0) return invalid("incarnation=0: lives are counted from 1");
  if (options.secret.empty()) return invalid("secret: a cluster's secret has at least one byte");
  NodeConfig config;
  config.engine.node = options.node;
  config.engine.incarnation = options.incarnation;
  config.engine.arena_bytes = options.arena_bytes;
  for (const auto& [name, value] : options.overrides) {
    const auto* found =
        std::find_if(std::begin(kOptions), std::end(kOptions),
                     [&name = name](const Option& option) { return name == option.name; });
    if (found == std::end(kOptions)) {
      std::string known;
      for (const Option& option : kOptions) known.append(" ").append(option.name);
      return invalid(known.insert(0, "option '" + name + "' is unknown; there are:"));
    }
    if (value < found->least || value > found->most) {
      return invalid("option '" + name + "'=" + std::to_string(value) + ": must be " +
                     std::to_string(found->least) + " to " + std::to_string(found->most));
    }
    found->set(config, value);
  }
  if (!options.overrides.contains("inline_bytes_max")) {
    config.engine.inline_bytes_max = inline_bytes_for(config.engine.link_bytes_per_s);
  }
  if (const auto fault = fault_of(config.engine)) return invalid(*fault);
  if (config.limits.liveness.suspect > config.limits.liveness.dead) {
    return invalid("liveness_suspect_ms=" + ms_text(config.limits.liveness.suspect) +
                   " is more than liveness_dead_ms=" + ms_text(config.limits.liveness.dead));
  }
  return config;
}

}  // namespace hoplite
