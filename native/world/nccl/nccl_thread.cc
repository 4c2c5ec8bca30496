// SPDX-License-Identifier: Apache-2.0
#include "world/nccl/nccl_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/units.h"
#include "io/signals_blocked.h"
#include "world/nccl/nccl_bond.h"

namespace hoplite::worlds {
namespace {

// Pauses between questions while NCCL reports that a call is in progress; NCCL has no way to wait
// for it. The pause doubles from kAskMin to kAskMax.
constexpr Duration kAskMin = 20_us;
constexpr Duration kAskMax = 1_ms;
// How often a bond with operations in flight is asked for errors. Their ends need no question,
// because a host function reports each.
constexpr Duration kLookEvery = 50_ms;

}  // namespace

std::thread quiet_thread(const char* name, std::function<void()> work) {
  const SignalsBlocked guard;
  return std::thread([name, work = std::move(work)] {
    ::pthread_setname_np(::pthread_self(), name);
    work();
  });
}

// ---- the queue

void NcclQueue::add(std::shared_ptr<NcclBond> bond) {
  const std::lock_guard guard(mutex_);
  bonds_.push_back(std::move(bond));
  is_woken_ = true;
  changed_.notify_all();
}

void NcclQueue::wake() {
  const std::lock_guard guard(mutex_);
  is_woken_ = true;
  changed_.notify_all();
}

void NcclQueue::begin_teardown() {
  const std::lock_guard guard(mutex_);
  ++endings_;
}

void NcclQueue::end_teardown() {
  const std::lock_guard guard(mutex_);
  --endings_;
  is_woken_ = true;
  changed_.notify_all();
}

bool NcclQueue::settle() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds((kAbortLimit + kCallLimit).ns),
                           [this] { return endings_ == 0; });
}

std::vector<std::shared_ptr<NcclBond>> NcclQueue::wait(std::optional<Duration> timeout) {
  std::unique_lock lock(mutex_);
  const auto is_woken = [this] { return is_woken_ || !is_running_; };
  if (timeout) {
    changed_.wait_for(lock, std::chrono::nanoseconds(timeout->ns), is_woken);
  } else {
    changed_.wait(lock, is_woken);
  }
  is_woken_ = false;
  return is_running_ ? bonds_ : std::vector<std::shared_ptr<NcclBond>>{};
}

void NcclQueue::forget(const std::vector<std::shared_ptr<NcclBond>>& bonds) {
  const std::lock_guard guard(mutex_);
  std::erase_if(bonds_, [&](const auto& each) { return std::ranges::count(bonds, each) > 0; });
}

// ---- the thread

NcclThread::NcclThread()
    : queue_(std::make_shared<NcclQueue>()),
      pid_(::getpid()),
      thread_(quiet_thread("hoplite-nccl", [queue = queue_] { run(queue); })) {}

NcclThread::~NcclThread() {
  if (::getpid() != pid_) {  // a forked child has no such thread, and perhaps a held lock
    thread_.detach();
    return;
  }
  {
    const std::lock_guard guard(queue_->mutex_);
    queue_->is_running_ = false;
    queue_->changed_.notify_all();
  }
  thread_.join();
  const std::lock_guard guard(queue_->mutex_);
  queue_->bonds_.clear();  // breaks the circle: bonds hold the queue
}

void NcclThread::run(const std::shared_ptr<NcclQueue>& queue) noexcept {
  std::optional<Duration> timeout;
  Duration ask = kAskMin;
  while (true) {
    const auto bonds = queue->wait(timeout);
    {
      const std::lock_guard guard(queue->mutex_);
      if (!queue->is_running_) return;
    }
    std::vector<std::shared_ptr<NcclBond>> over;
    timeout.reset();
    bool is_asked_again = false;
    for (const auto& bond : bonds) {
      switch (bond->step()) {
        case NcclBond::Next::kAsk:
          is_asked_again = true;
          break;
        case NcclBond::Next::kLook:
          timeout = kLookEvery;
          break;
        case NcclBond::Next::kOver:
          over.push_back(bond);
          break;
        case NcclBond::Next::kNothing:
          break;
      }
    }
    queue->forget(over);
    ask = is_asked_again ? std::min(ask + ask, kAskMax) : kAskMin;
    if (is_asked_again) timeout = ask;
  }
}

}  // namespace hoplite::worlds
