// SPDX-License-Identifier: Apache-2.0
// How fast every kernel is on one core, on a block that stays in its cache:
// kernels_bench BLOCK_BYTES SECONDS_EACH. One JSON object per line; benchmarks/kernels.py reads
// them.
// kernels_bench BLOCK_BYTES SECONDS_EACH FOLD_THREADS: the median time of a turn that folds a block
// of float32 from memory, by the reactor alone and with threads: while they look for the next turn,
// and when they sleep.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "node/fold_crew.h"
#include "node/kernels.h"

namespace hoplite {
namespace {

// The fastest of many short rounds: whatever else the machine does makes a round only slower.
template <typename Act>
double seconds_per_call(double seconds, Act act) {
  using Clock = std::chrono::steady_clock;
  constexpr int kCalls = 16;
  double best = 1e9;
  for (const auto end = Clock::now() + std::chrono::duration<double>(seconds);;) {
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) act();
    const auto now = Clock::now();
    best = std::min(best, std::chrono::duration<double>(now - begin).count() / kCalls);
    if (now > end) return best;
  }
}

void print(const char* op, DType dtype, std::size_t bytes, double seconds) {
  std::printf("{\"op\": \"%s\", \"dtype\": \"%s\", \"bytes\": %zu, \"gb_per_s\": %.2f}\n", op,
              kDTypeNames[static_cast<std::size_t>(dtype)], bytes,
              static_cast<double>(bytes) / seconds / 1e9);
}

void measure(DType dtype, std::size_t block_bytes, double seconds) {
  const std::size_t count = block_bytes / element_bytes(dtype);
  std::vector<std::byte> from(count * element_bytes(dtype));
  std::vector<std::byte> into(count * accumulator_bytes(dtype));
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd}) {
    if (!can_reduce(dtype, op)) continue;
    fold(op, dtype, true, into, from);
    const double each = seconds_per_call(seconds, [&] { fold(op, dtype, false, into, from); });
    print(kReduceOpNames[static_cast<std::size_t>(op)], dtype, 2 * into.size() + from.size(), each);
  }
  if (!needs_finish(dtype, ReduceOp::kMean) || !can_reduce(dtype, ReduceOp::kMean)) return;
  const auto out = is_half(dtype) ? std::span(from) : std::span(into);
  const double each =
      seconds_per_call(seconds, [&] { finish(ReduceOp::kMean, dtype, 4, out, into); });
  print("finish", dtype, into.size() + out.size(), each);
}

// ---- turns

using Clock = std::chrono::steady_clock;

double median_turn_us(std::size_t block_bytes, double seconds, std::size_t threads,
                      std::chrono::microseconds pause) {
  constexpr std::size_t kSpace = 256_MiB;  // more than a cache
  static std::vector<std::byte> into(kSpace), from(kSpace);
  FoldCrew crew(threads);
  std::vector<double> turns_us;
  std::size_t at = 0;
  for (const auto end = Clock::now() + std::chrono::duration<double>(seconds);;) {
    const auto begin = Clock::now();
    crew.fold(ReduceOp::kSum, DType::kFloat32, false, std::span(into).subspan(at, block_bytes),
              std::span(from).subspan(at, block_bytes));
    crew.run();
    const auto now = Clock::now();
    turns_us.push_back(std::chrono::duration<double, std::micro>(now - begin).count());
    if (now > end) break;
    at = at + 2 * block_bytes > kSpace ? 0 : at + block_bytes;
    if (pause.count() < 100) {
      while (Clock::now() < now + pause) {
      }
    } else {
      std::this_thread::sleep_for(pause);
    }
  }
  std::ranges::nth_element(turns_us, turns_us.begin() + std::ssize(turns_us) / 2);
  return turns_us[turns_us.size() / 2];
}

void measure_turns(std::size_t block_bytes, double seconds, std::size_t threads) {
  using std::chrono::microseconds;
  const double alone_us = median_turn_us(block_bytes, seconds, 0, microseconds(30));
  const double looking_us = median_turn_us(block_bytes, seconds, threads, microseconds(30));
  const double paused_us = median_turn_us(block_bytes, seconds, 0, microseconds(1000));
  const double asleep_us = median_turn_us(block_bytes, seconds, threads, microseconds(1000));
  std::printf(
      "{\"bytes\": %zu, \"fold_threads\": %zu, \"alone_us\": %.1f, \"looking_us\": %.1f, "
      "\"alone_after_a_pause_us\": %.1f, \"asleep_us\": %.1f}\n",
      block_bytes, threads, alone_us, looking_us, paused_us, asleep_us);
}

}  // namespace
}  // namespace hoplite

int main(int argc, char** argv) {
  const bool is_whole = argc == 3 || argc == 4;
  const auto block_bytes = is_whole ? std::strtoull(argv[1], nullptr, 10) : 0;
  const double seconds = is_whole ? std::strtod(argv[2], nullptr) : 0;
  const auto threads = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 0;
  if (block_bytes < 64 || block_bytes % 64 != 0 || seconds <= 0 ||
      threads > hoplite::FoldCrew::kThreadsMax) {
    std::fprintf(
        stderr,
        "usage: kernels_bench BLOCK_BYTES SECONDS_EACH [FOLD_THREADS], blocks of 64 bytes\n");
    return 2;
  }
  if (argc == 4) {
    hoplite::measure_turns(block_bytes, seconds, threads);
    return 0;
  }
  for (int dtype = 1; dtype < hoplite::kDTypeCount; ++dtype) {
    hoplite::measure(static_cast<hoplite::DType>(dtype), block_bytes, seconds);
  }
  return 0;
}
