// SPDX-License-Identifier: Apache-2.0
#include "node/fold_crew.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "io/signals_blocked.h"
#include "io/sockets/brief_look.h"
#include "node/kernels.h"

namespace hoplite {
namespace {

constexpr std::size_t kAlignElements = 64;  // parts begin at whole lines of the cache
constexpr std::size_t kPartsEach = 4;       // of a batch, so that a late thread takes fewer

bool is_apart(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() + a.size() <= b.data() || b.data() + b.size() <= a.data();
}
bool is_same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() == b.data() && a.size() == b.size();
}

// The first element of a part. It depends on nothing else, so folds of as many elements are cut at
// the same places.
std::size_t first_element(std::size_t elements, std::size_t part, std::size_t parts) {
  if (part == parts) return elements;
  return elements / kAlignElements * part / parts * kAlignElements;
}

}  // namespace

FoldCrew::FoldCrew(std::size_t threads) {
  static_assert(std::atomic<Claim>::is_always_lock_free);
  HOPLITE_CHECK(threads <= kThreadsMax);
  const SignalsBlocked guard;
  threads_.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back(&FoldCrew::serve, this);
}

FoldCrew::~FoldCrew() {
  run();
  is_stopping_ = true;
  ++posted_;
  posted_.notify_all();
  for (std::thread& each : threads_) each.join();
}

void FoldCrew::fold(ReduceOp op, DType dtype, bool first, std::span<std::byte> into,
                    std::span<const std::byte> from) {
  if (threads_.empty()) return hoplite::fold(op, dtype, first, into, from);
  add({into, from, from.size() / element_bytes(dtype), 0, dtype, op, first});
}

void FoldCrew::finish(ReduceOp op, DType dtype, std::uint32_t sources, std::span<std::byte> into,
                      std::span<const std::byte> from) {
  if (threads_.empty()) return hoplite::finish(op, dtype, sources, into, from);
  HOPLITE_CHECK(sources >= 1);
  add({into, from, into.size() / element_bytes(dtype), sources, dtype, op, false});
}

void FoldCrew::add(const Job& job) {
  if (job_count_ == kFoldsMax || !can_join(job)) run();
  jobs_.at(job_count_++) = job;
  bytes_ += job.from.size();
}

// True if a range that both use, and one writes, is cut at the same places for both.
bool FoldCrew::can_join(const Job& job) const {
  return std::ranges::all_of(std::span(jobs_).first(job_count_), [&](const Job& before) {
    const bool is_cut_alike = before.elements == job.elements;
    const auto may_share = [&](std::span<const std::byte> a, std::span<const std::byte> b) {
      return is_apart(a, b) || (is_cut_alike && is_same(a, b));
    };
    return may_share(before.into, job.into) && may_share(before.into, job.from) &&
           may_share(before.from, job.into);
  });
}

void FoldCrew::run() {
  if (job_count_ == 0) return;
  if (bytes_ < kSharedBytesMin) {
    for (const Job& job : std::span(jobs_).first(job_count_)) perform(job, 0, 1);
  } else {
    const std::size_t most = kPartsEach * (threads_.size() + 1);
    const std::uint64_t parts = std::min<std::uint64_t>(most, bytes_ / kPartBytesMin);
    share(static_cast<std::uint16_t>(parts));
  }
  job_count_ = 0;
  bytes_ = 0;
}

void FoldCrew::share(std::uint16_t parts) {
  done_.store(0, std::memory_order_relaxed);
  claim_.store({++batch_, 0, parts}, std::memory_order_release);
  ++posted_;
  const std::size_t wanted = std::min<std::size_t>(threads_.size(), parts - 1U);
  for (std::size_t i = 0; i < wanted; ++i) posted_.notify_one();
  while (perform_next_part()) {
  }
  // A part takes less time than a sleep.
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + BriefLook::kLasts;
  std::uint32_t done = done_.load(std::memory_order_acquire);
  for (; done < parts; done = done_.load(std::memory_order_acquire)) {
    if (Clock::now() > end) done_.wait(done);
  }
}

bool FoldCrew::perform_next_part() {
  Claim claim = claim_.load(std::memory_order_acquire);
  do {
    if (claim.next == claim.parts) return false;
  } while (!claim_.compare_exchange_weak(
      claim, {claim.batch, static_cast<std::uint16_t>(claim.next + 1), claim.parts},
      std::memory_order_acq_rel, std::memory_order_acquire));
  for (const Job& job : std::span(jobs_).first(job_count_)) perform(job, claim.next, claim.parts);
  done_.fetch_add(1, std::memory_order_release);
  done_.notify_one();
  return true;
}

void FoldCrew::perform(const Job& job, std::size_t part, std::size_t parts) const {
  const std::size_t begin = first_element(job.elements, part, parts);
  const std::size_t count = first_element(job.elements, part + 1, parts) - begin;
  if (count == 0) return;
  const bool is_fold = job.sources == 0;
  const std::size_t wide = accumulator_bytes(job.dtype), narrow = element_bytes(job.dtype);
  const std::size_t into = is_fold ? wide : narrow, from = is_fold ? narrow : wide;
  const auto target = job.into.subspan(begin * into, count * into);
  const auto source = job.from.subspan(begin * from, count * from);
  if (is_fold) {
    hoplite::fold(job.op, job.dtype, job.first, target, source);
  } else {
    hoplite::finish(job.op, job.dtype, job.sources, target, source);
  }
}

// Looks for the next batch for a moment, because a reduce has one in each turn.
void FoldCrew::serve() noexcept {
  ::pthread_setname_np(::pthread_self(), "hoplite-fold");
  BriefLook look;
  for (;;) {
    const std::uint32_t seen = posted_.load(std::memory_order_acquire);
    if (is_stopping_) return;
    while (perform_next_part()) {
    }
    const bool has_more =
        look.finds([&] { return posted_.load(std::memory_order_relaxed) != seen; });
    if (!has_more) posted_.wait(seen);
  }
}

}  // namespace hoplite
