// SPDX-License-Identifier: Apache-2.0
#include "io/bulk/bulk_ports.h"

#include <algorithm>
#include <utility>

namespace hoplite {

Result<BulkPorts> BulkPorts::start(const LinkLimits& limits, Poller& poller) {
  BulkPorts ports(std::make_unique<BulkPort>(limits, poller));
  for (std::size_t i = 0; i < limits.io_threads; ++i) {
    auto own = Poller::open();
    if (!own) return own.error();
    ports.threads_.push_back({std::make_unique<BulkThread>(limits, std::move(*own), poller)});
  }
  return ports;
}

void BulkPorts::add(BulkConnection added, Instant now) {
  if (threads_.empty()) {
    port_->add(std::move(added), now);
    return;
  }
  const auto least = std::ranges::min_element(threads_, {}, &Thread::connections);
  ++least->connections;
  thread_by_token_[added.token] = static_cast<std::size_t>(least - threads_.begin());
  least->thread->add(std::move(added));
}

void BulkPorts::queue_block(std::uint64_t token, const SendBlock& block) {
  if (threads_.empty()) {
    port_->queue_block(token, block);
  } else if (const auto found = thread_by_token_.find(token); found != thread_by_token_.end()) {
    threads_[found->second].thread->queue_block(token, block);
  }
}

void BulkPorts::end(std::uint64_t token) {
  port_->end(token);
  const auto found = thread_by_token_.find(token);
  if (found == thread_by_token_.end()) return;
  Thread& of = threads_[found->second];
  of.thread->end(token);
  --of.connections;
  thread_by_token_.erase(found);
}

void BulkPorts::handle_ready(std::span<const Ready> ready, Budget& budget, Instant now) {
  port_->handle_ready(ready, budget, now);
}

void BulkPorts::flush(Budget& budget, Instant now) {
  port_->flush(budget, now);
  for (const Thread& each : threads_) each.thread->flush();
}

BulkNews BulkPorts::take_news() {
  BulkNews all = port_->take_news();
  for (const Thread& each : threads_) all.append(each.thread->take_news());
  return all;
}

LinkCounters BulkPorts::counters() const {
  LinkCounters all = port_->counters();
  for (const Thread& each : threads_) all.add_bulk(each.thread->counters());
  return all;
}

}  // namespace hoplite
