// SPDX-License-Identifier: Apache-2.0
#include "node/jobs/spiller.h"

#include <pthread.h>

#include <utility>

#include "io/log.h"
#include "io/signals_blocked.h"

namespace hoplite {

Result<std::unique_ptr<Spiller>> Spiller::start(const std::string& directory, const Arena& arena,
                                                const Poller& poller) {
  auto file = SpillFile::open(directory);
  if (!file) return file.error();
  std::unique_ptr<Spiller> spiller(new Spiller(std::move(*file), arena, poller));
  const SignalsBlocked guard;
  spiller->thread_ = std::thread(&Spiller::run, spiller.get());
  return spiller;
}

Spiller::Spiller(SpillFile file, const Arena& arena, const Poller& poller)
    : file_(std::move(file)), arena_(&arena), poller_(&poller) {}

Spiller::~Spiller() {
  {
    const std::lock_guard guard(mutex_);
    is_stopping_ = true;
  }
  has_job_.notify_one();
  thread_.join();
}

void Spiller::submit(const SpillJob& job) {
  {
    const std::lock_guard guard(mutex_);
    jobs_.push_back(job);
  }
  has_job_.notify_one();
}

std::vector<SpillDone> Spiller::take_done() {
  const std::lock_guard guard(mutex_);
  return std::exchange(done_, {});
}

void Spiller::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "hoplite-spill");
  bool has_failed = false;  // the last read or write; one line tells of a row of failures
  std::unique_lock guard(mutex_);
  for (;;) {
    has_job_.wait(guard, [this] { return is_stopping_ || !jobs_.empty(); });
    if (is_stopping_) return;
    const SpillJob job = jobs_.front();
    jobs_.pop_front();
    guard.unlock();
    const auto moved = move(job);
    if (job.way != SpillWay::kFree) {
      if (!moved && !has_failed) log_warning(kSpillLogger, moved.error().text);
      has_failed = !moved;
    }
    guard.lock();
    if (job.way == SpillWay::kFree) continue;
    done_.push_back({job.spill, moved ? "" : moved.error().text});
    poller_->wake();
  }
}

Result<void> Spiller::move(const SpillJob& job) const {
  switch (job.way) {
    case SpillWay::kWrite:
      return file_.write(arena_->at(job.arena), job.file.offset);
    case SpillWay::kRead:
      return file_.read(arena_->at(job.arena), job.file.offset);
    case SpillWay::kFree:
      file_.free(job.file);
  }
  return {};
}

}  // namespace hoplite
