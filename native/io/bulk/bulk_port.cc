// SPDX-License-Identifier: Apache-2.0
#include "io/bulk/bulk_port.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"

namespace hoplite {
namespace {

// Round robin: sorts by token and starts at token `next`, or at the first one behind it.
template <typename T, typename Token>
void order_by_turns(std::vector<T>& connections, std::uint64_t next, Token token) {
  std::ranges::sort(connections, {}, token);
  const auto first = std::ranges::lower_bound(connections, next, {}, token);
  std::rotate(connections.begin(), first, connections.end());  // clang 14 has no ranges::rotate
}

}  // namespace

void BulkPort::add(BulkConnection added, Instant now) {
  const std::uint64_t token = added.token;
  if (auto watched = poller_->add(added.wire.fd(), token, Interest::kRead); !watched) {
    news_.ends.push_back({token, added.peer, added.rail, watched.error()});
    return;
  }
  added.wire.count_in(counters_);
  counters_.bytes_queued += added.wire.queued_bytes();
  const auto [place, is_new] =
      connections_.try_emplace(token, Connection{.wire = std::move(added.wire),
                                                 .peer = added.peer,
                                                 .rail = added.rail,
                                                 .deadline = now + limits_.queue_stalled_max});
  HOPLITE_CHECK(is_new);
  if (place->second.wire.has_output()) mark_dirty(token, place->second);
}

void BulkPort::end(std::uint64_t token) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  counters_.bytes_queued -= found->second.wire.queued_bytes();
  connections_.erase(found);
}

// The connection stays open until the link's rules have heard why it ends. Otherwise the peer could
// end the link first, and its end would hide the reason.
void BulkPort::fail(std::uint64_t token, Connection& connection, const Error& why) {
  news_.ends.push_back({token, connection.peer, connection.rail, why});
  connection.has_failed = true;
  poller_->remove(connection.wire.fd());
}

void BulkPort::queue_block(std::uint64_t token, const SendBlock& block) {
  const auto found = connections_.find(token);
  if (found == connections_.end() || found->second.has_failed) return;
  RailConnection& wire = found->second.wire;
  const std::uint64_t before = wire.queued_bytes();
  wire.queue_block(block);
  counters_.bytes_queued += wire.queued_bytes() - before;
  mark_dirty(token, found->second);
}

void BulkPort::handle_ready(std::span<const Ready> ready, Budget& budget, Instant /*now*/) {
  std::vector<Ready> by_turns(ready.begin(), ready.end());
  order_by_turns(by_turns, next_read_, [](const Ready& each) { return each.token; });
  for (const Ready& each : by_turns) {
    if (budget.bytes > 0) next_read_ = each.token + 1;
    const auto found = connections_.find(each.token);
    if (found == connections_.end() || found->second.has_failed) continue;  // earlier in this turn
    Connection& connection = found->second;
    if (each.is_writable && connection.wire.has_output()) mark_dirty(each.token, connection);
    if (!each.is_readable || budget.bytes == 0) continue;  // the poller reports it again
    auto received = connection.wire.receive_blocks(connection.peer, budget, news_.events);
    if (!received) fail(each.token, connection, received.error());
  }
}

void BulkPort::flush(Budget& budget, Instant now) {
  std::vector<std::uint64_t> by_turns = std::exchange(dirty_, {});
  order_by_turns(by_turns, next_written_, std::identity{});
  for (const std::uint64_t token : by_turns) {
    if (budget.bytes > 0) next_written_ = token + 1;
    write_out(token, budget, now);
  }
}

void BulkPort::write_out(std::uint64_t token, Budget& budget, Instant now) {
  const auto found = connections_.find(token);
  if (found == connections_.end() || found->second.has_failed) return;
  Connection& connection = found->second;
  connection.is_dirty = false;
  const std::uint64_t queued = connection.wire.queued_bytes();
  auto sent = connection.wire.send(connection.peer, budget, news_.events);
  const std::uint64_t left = connection.wire.queued_bytes();
  counters_.bytes_queued -= queued - left;
  const bool is_stalled = left > limits_.queued_bytes_max && left >= queued;
  if (!is_stalled) connection.deadline = now + limits_.queue_stalled_max;
  if (sent && is_stalled && connection.deadline <= now) {
    sent = Error{Code::kPeerLost, "the peer takes nothing"};
  }
  if (!sent) {
    fail(token, connection, sent.error());
    return;
  }
  const Interest wanted = connection.wire.has_output() ? Interest::kBoth : Interest::kRead;
  if (std::exchange(connection.interest, wanted) == wanted) return;
  poller_->change(connection.wire.fd(), token, wanted);
}

void BulkPort::mark_dirty(std::uint64_t token, Connection& connection) {
  if (std::exchange(connection.is_dirty, true)) return;
  dirty_.push_back(token);
}

}  // namespace hoplite
