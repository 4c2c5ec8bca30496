// SPDX-License-Identifier: Apache-2.0
#include "io/bulk/bulk_thread.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/limits.h"
#include "io/read_clock.h"
#include "io/signals_blocked.h"

namespace hoplite {
namespace {

constexpr std::uint64_t kBytesEachWay = kBytesPerTurnMax / 2;  // of a turn, as of the reactor's

template <typename T>
void append(std::vector<T>& all, std::vector<T>& more) {
  std::ranges::move(more, std::back_inserter(all));
  more.clear();
}

}  // namespace

BulkThread::BulkThread(const LinkLimits& limits, Poller poller, const Poller& reactor)
    : poller_(std::move(poller)), reactor_(&reactor), port_(limits, poller_) {
  const SignalsBlocked guard;
  thread_ = std::thread(&BulkThread::run, this);
}

BulkThread::~BulkThread() {
  {
    const std::lock_guard guard(mutex_);
    is_stopping_ = true;
  }
  poller_.wake();
  thread_.join();
}

// ---- reactor ----

void BulkThread::add(BulkConnection added) { collected_.added.push_back(std::move(added)); }

void BulkThread::queue_block(std::uint64_t token, const SendBlock& block) {
  collected_.blocks.emplace_back(token, block);
}

void BulkThread::flush() {
  if (collected_.is_empty()) return;
  bool must_wake = false;
  {
    const std::lock_guard guard(mutex_);
    append(orders_.added, collected_.added);
    append(orders_.blocks, collected_.blocks);
    append(orders_.ended, collected_.ended);
    must_wake = std::exchange(is_asleep_, false);
  }
  if (must_wake) poller_.wake();
}

void BulkThread::end(std::uint64_t token) {
  collected_.ended.push_back(token);
  flush();
  ++ends_ordered_;
  std::unique_lock guard(mutex_);
  has_ended_.wait(guard, [this] { return ends_obeyed_ == ends_ordered_; });
}

BulkNews BulkThread::take_news() {
  const std::lock_guard guard(mutex_);
  return std::exchange(news_, {});
}

LinkCounters BulkThread::counters() const {
  const std::lock_guard guard(mutex_);
  return counters_;
}

// ---- the thread ----

void BulkThread::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "hoplite-bulk");
  Waiting waiting = Waiting::kAsleep;
  Instant turn_started = read_clock();
  for (Orders orders; take_orders(orders);) {
    const auto wait_max = orders.is_empty() ? std::nullopt : std::optional(Duration{0});
    obey(orders);
    const auto ready = poller_.wait(wait_max, waiting);  // the turn's only wait
    const Instant now = read_clock();
    Budget incoming{kBytesEachWay};
    port_.handle_ready(ready, incoming, now);
    waiting = choose_waiting(kBytesEachWay - incoming.bytes, now - turn_started);
    turn_started = now;
    Budget outgoing{kBytesEachWay};
    port_.flush(outgoing, now);
    publish(0);
  }
}

bool BulkThread::take_orders(Orders& orders) {
  const std::lock_guard guard(mutex_);
  std::swap(orders, orders_);
  is_asleep_ = orders.is_empty();
  return !is_stopping_;
}

void BulkThread::obey(Orders& orders) {
  if (orders.is_empty()) return;
  const Instant now = read_clock();
  for (BulkConnection& added : orders.added) port_.add(std::move(added), now);
  for (const auto& [token, block] : orders.blocks) port_.queue_block(token, block);
  for (const std::uint64_t token : orders.ended) port_.end(token);
  const std::uint64_t ended = orders.ended.size();
  orders.added.clear();
  orders.blocks.clear();
  orders.ended.clear();
  if (ended > 0) publish(ended);
}

void BulkThread::publish(std::uint64_t ended) {
  BulkNews news = port_.take_news();
  bool must_wake = false;
  {
    const std::lock_guard guard(mutex_);
    news.came_bytes = port_.counters().bytes_received - counters_.bytes_received;
    counters_ = port_.counters();
    ends_obeyed_ += ended;
    // otherwise the reactor has been woken for news that it has not taken yet
    must_wake = news_.is_empty() && !news.is_empty();
    news_.append(std::move(news));
  }
  if (ended > 0) has_ended_.notify_one();
  if (must_wake) reactor_->wake();
}

}  // namespace hoplite
