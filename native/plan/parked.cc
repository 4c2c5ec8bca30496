// SPDX-License-Identifier: Apache-2.0
#include "plan/parked.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hoplite {
namespace {

std::uint64_t bytes_of(const MessageIn& event) {
  std::uint64_t bytes = sizeof event + event.payload.size();
  std::visit(
      [&](const auto& body) {
        if constexpr (requires { body.meta.layout; }) bytes += body.meta.layout.size();
        if constexpr (requires { body.stripes; }) {
          bytes += body.stripes.size() * sizeof body.stripes[0];
        }
        if constexpr (requires { body.members; }) {
          bytes += body.members.size() * sizeof body.members[0];
        }
        if constexpr (requires { body.confirmed; }) {
          bytes += body.confirmed.size() * sizeof body.confirmed[0];
        }
      },
      event.message.body);
  return bytes;
}

}  // namespace

void Parked::park(const MessageIn& event) {
  const auto dropped = dropped_.find(event.from);
  if (dropped != dropped_.end()) {
    dropped->second = std::max(dropped->second, event.message.view_epoch);
    return;
  }
  Weight& weight = weights_[event.from];
  ++weight.messages;
  weight.bytes += bytes_of(event);
  bytes_ += bytes_of(event);
  kept_.push_back(event);
  const auto drop_all_of = [&](NodeId peer) { dropped_[peer] = drop(peer); };
  if (weight.messages > messages_max_) drop_all_of(event.from);
  while (bytes_ > bytes_max_) {
    const auto heaviest = std::max_element(
        weights_.begin(), weights_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    drop_all_of(heaviest->first);
  }
}

Epoch Parked::drop(NodeId peer) {
  Epoch newest;
  std::erase_if(kept_, [&](const MessageIn& event) {
    if (event.from != peer) return false;
    newest = std::max(newest, event.message.view_epoch);
    return true;
  });
  bytes_ -= weights_[peer].bytes;
  weights_.erase(peer);
  return newest;
}

void Parked::forget(NodeId peer) {
  drop(peer);
  dropped_.erase(peer);
}

std::deque<MessageIn> Parked::take() {
  weights_.clear();
  bytes_ = 0;
  return std::exchange(kept_, {});
}

bool Parked::take_dropped(NodeId peer, Epoch epoch) {
  const auto it = dropped_.find(peer);
  if (it == dropped_.end() || it->second > epoch) return false;
  dropped_.erase(it);
  return true;
}

void Parked::check_invariants() const {
  std::map<NodeId, Weight> counted;
  std::uint64_t bytes = 0;
  for (const MessageIn& event : kept_) {
    HOPLITE_CHECK(!dropped_.contains(event.from));
    ++counted[event.from].messages;
    bytes += bytes_of(event);
  }
  HOPLITE_CHECK(bytes == bytes_);
  HOPLITE_CHECK(bytes <= bytes_max_);
  HOPLITE_CHECK(counted.size() == weights_.size());
  for (const auto& [peer, weight] : counted) {
    HOPLITE_CHECK(weight.messages == weights_.at(peer).messages);
    HOPLITE_CHECK(weight.messages <= messages_max_);
  }
}

}  // namespace hoplite
