// SPDX-License-Identifier: Apache-2.0
#include "node/pages.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "io/signals_blocked.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace hoplite {
namespace {

constexpr std::uint64_t kSmallPage = 4_KiB;
constexpr std::size_t kWantedMax = 256;  // ranges that wait; what comes then gets small pages

// True if the kernel has a page there. False also if it doesn't say.
bool is_there(std::span<std::byte> bytes) {
  unsigned char residency = 0;
  return ::mincore(bytes.data(), kSmallPage, &residency) == 0 && (residency & 1) != 0;
}

}  // namespace

Pages::Pages(const Arena& arena, std::uint64_t idle_bytes)
    : arena_(&arena),
      count_(arena.size_bytes() / kLargePage),
      is_made_(std::make_unique<std::atomic<bool>[]>(count_)) {
  const SignalsBlocked guard;
  server_ = std::thread(&Pages::serve, this);
  const std::uint64_t idle = std::min(count_, idle_bytes / kLargePage);
  if (idle > 0) idle_ = std::thread(&Pages::make_idle, this, idle);
}

Pages::~Pages() {
  {
    const std::lock_guard guard(mutex_);
    is_stopping_ = true;
  }
  has_range_.notify_one();
  server_.join();
  if (idle_.joinable()) idle_.join();
}

void Pages::want(Extent range) {
  if (range.size_bytes < kLargePage || !can_collapse_) return;
  {
    const std::lock_guard guard(mutex_);
    // Each stripe of an object opens its whole range.
    if (range == last_ || wanted_.size() == kWantedMax) return;
    last_ = range;
    wanted_.push_back(range);
  }
  has_range_.notify_one();
}

void Pages::serve() noexcept {
  ::pthread_setname_np(::pthread_self(), "hoplite-pages");
  std::unique_lock guard(mutex_);
  for (;;) {
    has_range_.wait(guard, [this] { return is_stopping_ || !wanted_.empty(); });
    if (is_stopping_) return;
    const Extent range = wanted_.front();
    wanted_.pop_front();
    guard.unlock();
    const std::uint64_t end = (range.offset + range.size_bytes) / kLargePage;
    for (std::uint64_t at = (range.offset + kLargePage - 1) / kLargePage; at < end; ++at) {
      if (is_stopping_ || !can_collapse_) break;
      make(at, false);
    }
    guard.lock();
  }
}

void Pages::make_idle(std::uint64_t count) noexcept {
  ::pthread_setname_np(::pthread_self(), "hoplite-idle");
  const sched_param none{};
  [[maybe_unused]] const int idle = ::pthread_setschedparam(::pthread_self(), SCHED_IDLE, &none);
  for (std::uint64_t at = 0; at < count && !is_stopping_; ++at) make(at, true);
}

// The kernel makes a large page only where it has a small one already, and copies what is there. So
// a large page whose first small one is there was written before, and is left as it is.
void Pages::make(std::uint64_t large_page, bool by_small_ones) {
  if (is_made_[large_page].exchange(true)) return;
  const std::span<std::byte> bytes = arena_->at({large_page * kLargePage, kLargePage});
  if (is_there(bytes)) return;
  if (can_collapse_ && ::madvise(bytes.data(), kSmallPage, MADV_POPULATE_READ) == 0) {
    if (::madvise(bytes.data(), bytes.size(), MADV_COLLAPSE) == 0) return;
    // No memory in one piece is no reason to stop asking.
    if (errno == EINVAL) can_collapse_ = false;
  }
  if (by_small_ones) {
    ::madvise(bytes.data(), bytes.size(), MADV_POPULATE_WRITE);
  } else {
    is_made_[large_page] = false;
  }
}

}  // namespace hoplite
