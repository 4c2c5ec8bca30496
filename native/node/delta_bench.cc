// SPDX-License-Identifier: Apache-2.0
// How fast one core finds and applies the delta of a whole of bf16: delta_bench WHOLE_BYTES ROUNDS.
// One JSON object per line; benchmarks/deltas.py reads them. Pages are warm unless "fresh" is
// said. Speeds are bytes of the whole per second.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "delta/applier.h"
#include "delta/finder.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t kWidth = 2;
constexpr std::uint64_t kChangedPerMille = 20;
constexpr std::size_t kDeltasPerPass = 5;

struct Speeds {
  double best = 0;
  double median = 0;
};

// Calls `act` once to warm the pages, and `rounds` times by the clock; `prepare` before each.
template <typename Act, typename Prepare>
Speeds measure(std::size_t bytes, int rounds, Act act, Prepare prepare) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> speeds;
  for (int i = 0; i <= rounds; ++i) {
    prepare();
    const auto begin = Clock::now();
    act();
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    if (i > 0) speeds.push_back(static_cast<double>(bytes) / seconds.count() / 1e9);
  }
  std::ranges::sort(speeds);
  return {speeds.back(), speeds[speeds.size() / 2]};
}

template <typename Act>
Speeds measure(std::size_t bytes, int rounds, Act act) {
  return measure(bytes, rounds, act, [] {});
}

void print(const char* what, const char* kernels, const char* changes, double share,
           const Speeds& speeds) {
  std::printf(
      "{\"what\": \"%s\", \"kernels\": \"%s\", \"changes\": \"%s\", \"share\": %.5f, "
      "\"best_gb_per_s\": %.2f, \"median_gb_per_s\": %.2f}\n",
      what, kernels, changes, share, speeds.best, speeds.median);
  std::fflush(stdout);
}

// Changes kChangedPerMille of the elements: runs of `run` elements behind random gaps.
void change(Bytes& whole, std::size_t run, Prng& prng) {
  const std::uint64_t gap_mean = run * (1000 - kChangedPerMille) / kChangedPerMille;
  const std::size_t elements = whole.size() / kWidth;
  for (std::size_t at = prng.below(2 * gap_mean + 1); at < elements;
       at += prng.below(2 * gap_mean + 1)) {
    for (const std::size_t end = std::min(at + run, elements); at < end; ++at) {
      whole[at * kWidth] ^= std::byte{1};
    }
  }
}

std::optional<Bytes> find(std::span<const DeltaRange> ranges, const Bytes& base, const Bytes& whole,
                          std::span<std::byte> copy, DeltaKernels kernels, Bytes buffer) {
  auto finder = DeltaFinder::start(
      ranges, base, copy, {.limit_bytes = base.size() / 2, .kernels = kernels}, std::move(buffer));
  HOPLITE_CHECK(finder.has_value());
  HOPLITE_CHECK(finder->add(whole).has_value());
  return finder->finish();
}

void apply(const std::vector<Bytes>& deltas, std::span<const std::byte> base,
           std::span<std::byte> target) {
  std::vector<std::span<const std::byte>> borrowed(deltas.begin(), deltas.end());
  auto applier = DeltaApplier::open(borrowed);
  HOPLITE_CHECK(applier.has_value());
  HOPLITE_CHECK(applier->apply(0, applier->section_count(), base, target).has_value());
}

// Memory like the arena's, of which no page was touched.
class FreshBytes {
 public:
  explicit FreshBytes(std::size_t size)
      : size_(size),
        data_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    HOPLITE_CHECK(data_ != MAP_FAILED);
  }
  ~FreshBytes() { ::munmap(data_, size_); }
  FreshBytes(const FreshBytes&) = delete;
  FreshBytes& operator=(const FreshBytes&) = delete;
  [[nodiscard]] std::span<std::byte> span() const {
    return {static_cast<std::byte*>(data_), size_};
  }

 private:
  std::size_t size_;
  void* data_;
};

// Versions of one whole, and the deltas between them.
struct History {
  const char* changes = "";
  std::vector<DeltaRange> ranges;
  std::vector<Bytes> deltas;
  Bytes first, second, last;

  [[nodiscard]] double share() const {
    return static_cast<double>(deltas[0].size()) / static_cast<double>(first.size());
  }
};

History make_history(std::size_t bytes, const char* changes, std::size_t run) {
  Prng prng(run);
  History history;
  history.changes = changes;
  history.ranges = {{bytes, kWidth}};
  history.first.resize(bytes);
  for (auto& byte : history.first) byte = static_cast<std::byte>(prng.next());
  history.last = history.first;
  for (std::size_t i = 0; i < kDeltasPerPass; ++i) {
    const Bytes before = history.last;
    change(history.last, run, prng);
    history.deltas.push_back(*find(history.ranges, before, history.last, {}, choose_kernels(), {}));
    if (i == 0) history.second = history.last;
  }
  return history;
}

void measure_finding(const History& history, int rounds) {
  const std::size_t bytes = history.first.size();
  Bytes copy(bytes);
  for (int each = 0; each < kDeltaKernelCount; ++each) {
    const auto kernels = static_cast<DeltaKernels>(each);
    if (!can_run(kernels)) continue;
    Bytes buffer;
    const auto find_again = [&](std::span<std::byte> into) {
      buffer.clear();
      buffer =
          *find(history.ranges, history.first, history.second, into, kernels, std::move(buffer));
    };
    print("find", kDeltaKernelNames[each], history.changes, history.share(),
          measure(bytes, rounds, [&] { find_again({}); }));
    print("find and copy", kDeltaKernelNames[each], history.changes, history.share(),
          measure(bytes, rounds, [&] { find_again(copy); }));
    HOPLITE_CHECK(buffer == history.deltas[0] && copy == history.second);
  }
}

void measure_applying(const History& history, int rounds) {
  const std::size_t bytes = history.first.size();
  const std::vector<Bytes> one{history.deltas[0]};
  Bytes target(bytes);
  print("apply beside", "", history.changes, history.share(),
        measure(bytes, rounds, [&] { apply(one, history.first, target); }));
  HOPLITE_CHECK(target == history.second);
  std::optional<FreshBytes> fresh;
  print("apply to fresh pages", "", history.changes, history.share(),
        measure(
            bytes, rounds, [&] { apply(one, history.first, fresh->span()); },
            [&] {
              fresh.reset();
              fresh.emplace(bytes);
            }));
  // In place each round has the version of the round before it as its base.
  const std::vector<Bytes> back{
      *find(history.ranges, history.second, history.first, {}, choose_kernels(), {})};
  bool is_first = false;
  print("apply in place", "", history.changes, history.share(), measure(bytes, rounds, [&] {
          apply(std::exchange(is_first, !is_first) ? one : back, target, target);
        }));
  double share = 0;
  for (const Bytes& delta : history.deltas) share += static_cast<double>(delta.size());
  print("apply 5 beside", "", history.changes, share / static_cast<double>(bytes),
        measure(bytes, rounds, [&] { apply(history.deltas, history.first, target); }));
  HOPLITE_CHECK(target == history.last);
}

}  // namespace
}  // namespace hoplite

int main(int argc, char** argv) {
  const auto bytes = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const int rounds = argc == 3 ? std::atoi(argv[2]) : 0;
  if (bytes < 65536 || bytes % 2 != 0 || rounds < 1) {
    std::fprintf(stderr, "usage: delta_bench WHOLE_BYTES ROUNDS, at least 65536 bytes\n");
    return 2;
  }
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> into(bytes);
  using hoplite::measure;
  hoplite::print("memcpy", "", "", 0,
                 measure(bytes, rounds, [&] { std::memcpy(into.data(), from.data(), bytes); }));
  std::uint32_t crc = 0;
  hoplite::print("crc32c", "", "", 0,
                 measure(bytes, rounds, [&] { crc ^= hoplite::crc32c(from); }));
  for (const auto& [changes, run] : {std::pair{"random", 1}, std::pair{"runs of 64", 64}}) {
    const auto history = hoplite::make_history(bytes, changes, static_cast<std::size_t>(run));
    hoplite::measure_finding(history, rounds);
    hoplite::measure_applying(history, rounds);
  }
  return crc == 1 ? 1 : 0;  // its use keeps the loop
}
