// hoplite_sim: random lives of a cluster, by seed.
//   hoplite_sim --seed N [--seeds COUNT] [--trace] [--canary NAME]
// Prints each failing seed with what was violated, and exits with 1; `--seed N --trace` shows a run
// event by event. A canary corrupts one border of an engine on purpose: it must fail.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "sim/random_run.h"

namespace {

using hoplite::sim::Canary;
using hoplite::sim::RunOptions;

std::uint64_t current_seed = 0;

void name_the_seed() noexcept {
  std::fflush(stdout);
  std::fprintf(stderr, "seed %llu aborts; replay it with --seed %llu --trace\n",
               static_cast<unsigned long long>(current_seed),
               static_cast<unsigned long long>(current_seed));
}

std::optional<Canary> canary_named(std::string_view name) {
  if (name == "fold-twice") return Canary::kFoldTwice;
  if (name == "flip-byte") return Canary::kFlipByte;
  if (name == "lose-write") return Canary::kLoseWrite;
  if (name == "forget-reply") return Canary::kForgetReply;
  if (name == "grant-in-circle") return Canary::kGrantInCircle;
  return std::nullopt;
}

int usage() {
  std::fprintf(stderr,
               "usage: hoplite_sim [--seed N] [--seeds COUNT] [--trace] [--canary NAME]\n"
               "  canaries: fold-twice flip-byte lose-write forget-reply grant-in-circle\n");
  return 2;
}

int run_seeds(RunOptions options, std::uint64_t count) {
  std::uint64_t failed = 0;
  std::uint64_t events = 0;
  std::uint64_t answered = 0;
  const std::uint64_t first = options.seed;
  for (; options.seed < first + count; ++options.seed) {
    current_seed = options.seed;
    const auto result = hoplite::sim::random_run(options);
    events += result.events;
    answered += result.answered;
    if (result.failures.empty()) continue;
    ++failed;
    std::printf("seed %llu failed (%s)\n", static_cast<unsigned long long>(options.seed),
                result.summary.c_str());
    for (const auto& failure : result.failures) std::printf("  %s\n", failure.c_str());
  }
  std::printf("%llu seeds from %llu: %llu failed; %llu requests answered in %llu turns\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(failed), static_cast<unsigned long long>(answered),
              static_cast<unsigned long long>(events));
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  RunOptions options;
  std::uint64_t count = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const bool has_value = i + 1 < argc;
    if (name == "--trace") {
      options.trace = true;
    } else if (name == "--seed" && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--seeds" && has_value) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--canary" && has_value) {
      const auto canary = canary_named(argv[++i]);
      if (!canary) return usage();
      options.canary = *canary;
    } else {
      return usage();
    }
  }
  hoplite::check_hook = name_the_seed;
  return run_seeds(options, count);
}
