// SPDX-License-Identifier: Apache-2.0
// hoplite_sim: random lives of a cluster, by seed, or every order of events in a tiny one.
//   hoplite_sim --seed N [--seeds COUNT] [--trace] [--canary NAME] [--limits small|default]
//               [--turns real|plain] [--liar one|none] [--channels some|none]
//   hoplite_sim --explore tiny|small|WORLD [--states MAX] [--canary NAME] [--schedule S]
//   hoplite_sim --scale [--nodes N,N] [--sizes BYTES,BYTES] [--objects N]
//   hoplite_sim --arrivals [--collective NAME] [--nodes N,N] [--sizes BYTES,BYTES]
//               [--turns-each N]
// Prints each failing seed with what was violated, and exits with 1; `--seed N --trace` shows a run
// event by event. A world's orders are tried until all have been or so many states were entered;
// of one that fails the schedule is printed, which --schedule plays with a trace. A canary corrupts
// one border of an engine on purpose: it must fail. --scale prints a line of JSON for each case of
// a large cluster (sim/runs/scale.h; benchmarks/scale.py has it as a table). --arrivals does so for
// collectives that a node joins late (sim/runs/arrivals.h).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "sim/runs/arrivals.h"
#include "sim/runs/explore.h"
#include "sim/runs/random_run.h"
#include "sim/runs/scale.h"

namespace {

using hoplite::sim::Canary;
using hoplite::sim::Choice;
using hoplite::sim::Collective;
using hoplite::sim::RunOptions;
using hoplite::sim::World;

std::uint64_t current_seed = 0;
std::string modes;  // as given, with a space before each word

void name_the_seed() noexcept {
  std::fflush(stdout);
  std::fprintf(stderr, "seed %llu aborts; replay it with --seed %llu%s --trace\n",
               static_cast<unsigned long long>(current_seed),
               static_cast<unsigned long long>(current_seed), modes.c_str());
}

std::optional<Canary> canary_named(std::string_view name) {
  if (name == "fold-twice") return Canary::kFoldTwice;
  if (name == "flip-byte") return Canary::kFlipByte;
  if (name == "lose-write") return Canary::kLoseWrite;
  if (name == "forget-reply") return Canary::kForgetReply;
  if (name == "grant-in-circle") return Canary::kGrantInCircle;
  if (name == "send-twice") return Canary::kSendTwice;
  if (name == "scribble") return Canary::kScribble;
  if (name == "forget-release") return Canary::kForgetRelease;
  if (name == "forget-early-claim") return Canary::kForgetEarlyClaim;
  if (name == "obey-old-view") return Canary::kObeyOldView;
  if (name == "renew-lease") return Canary::kRenewLease;
  if (name == "take-old-block") return Canary::kTakeOldBlock;
  if (name == "trust-base") return Canary::kTrustBase;
  return std::nullopt;
}

std::optional<Collective> collective_named(std::string_view name) {
  if (name == "broadcast") return Collective::kBroadcast;
  if (name == "reduce") return Collective::kReduce;
  if (name == "allreduce") return Collective::kAllreduce;
  return std::nullopt;
}

int usage() {
  std::fprintf(
      stderr,
      "usage: hoplite_sim [--seed N] [--seeds COUNT] [--trace] [--canary NAME]\n"
      "                   [--limits small|default] [--turns real|plain] [--liar one|none]\n"
      "                   [--channels some|none] [--rebuilds some|none]\n"
      "       hoplite_sim --explore tiny|small|WORLD [--states MAX] [--canary NAME] "
      "[--schedule S]\n"
      "       hoplite_sim --scale [--nodes N,N] [--sizes BYTES,BYTES] [--objects N]\n"
      "       hoplite_sim --arrivals [--collective broadcast|reduce|allreduce] [--nodes N,N]\n"
      "                   [--sizes BYTES,BYTES] [--turns-each N]\n"
      "  canaries: fold-twice flip-byte lose-write forget-reply grant-in-circle send-twice\n"
      "    scribble forget-release forget-early-claim obey-old-view renew-lease take-old-block\n"
      "    trust-base\n"
      "  worlds:");
  for (const auto& worlds : {hoplite::sim::tiny_worlds(), hoplite::sim::small_worlds()}) {
    for (const World& world : worlds) std::fprintf(stderr, " %s", world.name.c_str());
  }
  std::fprintf(stderr, "\n");
  return 2;
}

// An option that makes a choice which the seed would draw.
struct Mode {
  std::string_view name, always, never;
  Choice RunOptions::* choice;
};
constexpr Mode kModes[] = {{"--limits", "small", "default", &RunOptions::small_limits},
                           {"--turns", "real", "plain", &RunOptions::real_turns},
                           {"--liar", "one", "none", &RunOptions::liar},
                           {"--channels", "some", "none", &RunOptions::channels},
                           {"--rebuilds", "some", "none", &RunOptions::rebuilds}};

const Mode* find_mode(std::string_view name) {
  const auto found = std::ranges::find(kModes, name, &Mode::name);
  return found == std::end(kModes) ? nullptr : found;
}

// Returns false if the mode has no such value.
bool choose(RunOptions& options, const Mode& mode, std::string_view value) {
  if (value != mode.always && value != mode.never) return false;
  options.*mode.choice = value == mode.always ? Choice::kAlways : Choice::kNever;
  return true;
}

struct ExploreOptions {
  std::string worlds;  // empty: none
  std::uint64_t states_max = 1'000'000;
  std::string schedule;
};

std::vector<World> worlds_named(const std::string& name) {
  if (name == "tiny") return hoplite::sim::tiny_worlds();
  if (name == "small") return hoplite::sim::small_worlds();
  for (const auto& worlds : {hoplite::sim::tiny_worlds(), hoplite::sim::small_worlds()}) {
    for (const World& world : worlds) {
      if (world.name == name) return {world};
    }
  }
  return {};
}

int replay_one(const World& world, const std::string& schedule) {
  const auto failures = hoplite::sim::replay(world, schedule, true);
  for (const auto& failure : failures) std::printf("%s\n", failure.c_str());
  return failures.empty() ? 0 : 1;
}

int explore_worlds(const ExploreOptions& options, Canary canary) {
  std::vector<World> worlds = worlds_named(options.worlds);
  if (worlds.empty()) return usage();
  std::uint64_t failed = 0;
  std::uint64_t states = 0;
  std::uint64_t schedules = 0;
  for (World& world : worlds) {
    world.canary = canary;
    if (!options.schedule.empty()) return replay_one(world, options.schedule);
    const auto found = hoplite::sim::explore(world, options.states_max);
    states += found.states;
    schedules += found.schedules;
    std::printf("%-24s %8llu states, %8llu schedules, %7llu ends: %s\n", world.name.c_str(),
                static_cast<unsigned long long>(found.states),
                static_cast<unsigned long long>(found.schedules),
                static_cast<unsigned long long>(found.ends),
                found.is_complete ? "every order" : "not every order");
    if (found.failures.empty()) continue;
    ++failed;
    for (const auto& failure : found.failures) std::printf("  %s\n", failure.c_str());
    std::printf("  replay it with --explore %s --schedule %s\n", world.name.c_str(),
                found.schedule.c_str());
  }
  std::printf("%zu worlds: %llu failed; %llu states, %llu schedules\n", worlds.size(),
              static_cast<unsigned long long>(failed), static_cast<unsigned long long>(states),
              static_cast<unsigned long long>(schedules));
  return failed == 0 ? 0 : 1;
}

// Numbers with commas between them; empty where there is anything else.
std::vector<std::uint64_t> numbers_in(const char* text) {
  std::vector<std::uint64_t> numbers;
  for (const char* at = text;;) {
    char* end = nullptr;
    numbers.push_back(std::strtoull(at, &end, 10));
    if (end == at || (*end != ',' && *end != '\0')) return {};
    if (*end == '\0') return numbers;
    at = end + 1;
  }
}

// Prints the rows of measure_scale or measure_arrivals.
template <typename Options, typename Measure>
int run_cases(const Options& options, Measure measure) {
  if (options.nodes.empty() || options.sizes_bytes.empty()) return usage();
  bool failed = false;
  measure(options, [&](const auto& row) {
    std::printf("%s\n", json_of(row).c_str());
    std::fflush(stdout);
    for (const auto& failure : row.failures) std::fprintf(stderr, "  %s\n", failure.c_str());
    failed = failed || !row.failures.empty();
  });
  return failed ? 1 : 0;
}

int run_seeds(RunOptions options, std::uint64_t count) {
  std::uint64_t failed = 0;
  std::uint64_t events = 0;
  std::uint64_t answered = 0;
  std::uint64_t published = 0;
  const std::uint64_t first = options.seed;
  for (; options.seed < first + count; ++options.seed) {
    current_seed = options.seed;
    const auto result = hoplite::sim::random_run(options);
    events += result.events;
    answered += result.answered;
    published += result.published;
    if (result.failures.empty()) continue;
    ++failed;
    std::printf("seed %llu failed (%s)\n", static_cast<unsigned long long>(options.seed),
                result.summary.c_str());
    for (const auto& failure : result.failures) std::printf("  %s\n", failure.c_str());
    std::printf("  replay it with --seed %llu%s\n", static_cast<unsigned long long>(options.seed),
                modes.c_str());
  }
  std::printf(
      "%llu seeds from %llu: %llu failed; %llu requests answered in %llu turns; "
      "%llu versions published\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(first),
      static_cast<unsigned long long>(failed), static_cast<unsigned long long>(answered),
      static_cast<unsigned long long>(events), static_cast<unsigned long long>(published));
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  RunOptions options;
  ExploreOptions exploring;
  std::optional<hoplite::sim::ScaleOptions> scale;
  std::optional<hoplite::sim::ArrivalsOptions> arrivals;
  std::uint64_t count = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const bool has_value = i + 1 < argc;
    if (name == "--trace") {
      options.trace = true;
    } else if (name == "--scale") {
      scale.emplace();
    } else if (name == "--arrivals") {
      arrivals.emplace();
    } else if (name == "--nodes" && (scale || arrivals) && has_value) {
      const auto nodes = numbers_in(argv[++i]);
      if (scale) scale->nodes.assign(nodes.begin(), nodes.end());
      if (arrivals) arrivals->nodes.assign(nodes.begin(), nodes.end());
    } else if (name == "--sizes" && (scale || arrivals) && has_value) {
      const auto sizes_bytes = numbers_in(argv[++i]);
      if (scale) scale->sizes_bytes = sizes_bytes;
      if (arrivals) arrivals->sizes_bytes = sizes_bytes;
    } else if (name == "--collective" && arrivals && has_value) {
      const auto collective = collective_named(argv[++i]);
      if (!collective) return usage();
      arrivals->collectives = {*collective};
    } else if (name == "--turns-each" && arrivals && has_value) {
      arrivals->turns = std::max<std::size_t>(std::strtoull(argv[++i], nullptr, 10), 1);
    } else if (name == "--objects" && scale && has_value) {
      scale->directory_objects = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--seed" && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--seeds" && has_value) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--explore" && has_value) {
      exploring.worlds = argv[++i];
    } else if (name == "--states" && has_value) {
      exploring.states_max = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--schedule" && has_value) {
      exploring.schedule = argv[++i];
    } else if (const Mode* const mode = find_mode(name); mode != nullptr && has_value) {
      modes.append(" ").append(name).append(" ").append(argv[i + 1]);
      if (!choose(options, *mode, argv[++i])) return usage();
    } else if (name == "--canary" && has_value) {
      const auto canary = canary_named(argv[++i]);
      if (!canary) return usage();
      options.canary = *canary;
    } else {
      return usage();
    }
  }
  if (scale) return run_cases(*scale, hoplite::sim::measure_scale);
  if (arrivals) return run_cases(*arrivals, hoplite::sim::measure_arrivals);
  if (!exploring.worlds.empty()) return explore_worlds(exploring, options.canary);
  hoplite::check_hook = name_the_seed;
  return run_seeds(options, count);
}
