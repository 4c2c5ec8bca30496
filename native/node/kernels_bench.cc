// SPDX-License-Identifier: Apache-2.0
// How fast every kernel is on one core, on a block that stays in its cache:
// kernels_bench BLOCK_BYTES SECONDS_EACH. One JSON object per line; benchmarks/kernels.py reads
// them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace hoplite

int main(int argc, char** argv) {
  const auto block_bytes = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const double seconds = argc == 3 ? std::strtod(argv[2], nullptr) : 0;
  if (block_bytes < 64 || block_bytes % 64 != 0 || seconds <= 0) {
    std::fprintf(stderr, "usage: kernels_bench BLOCK_BYTES SECONDS_EACH, blocks of 64 bytes\n");
    return 2;
  }
  for (int dtype = 1; dtype < hoplite::kDTypeCount; ++dtype) {
    hoplite::measure(static_cast<hoplite::DType>(dtype), block_bytes, seconds);
  }
  return 0;
}
