// SPDX-License-Identifier: Apache-2.0
#include "plan/links/parked.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"

namespace hoplite {
namespace {

template <typename... Fields>
std::uint64_t count_bytes(const Fields&... fields) {
  return (std::uint64_t{0} + ... + (fields.size() * sizeof *fields.data()));
}

// Heap bytes that a message holds. A layout counts whole, although others may share it.
struct HeldBytes {
  static std::uint64_t of(const ObjectMeta& meta) {
    return meta.layout.size() + count_bytes(meta.parts);
  }

  std::uint64_t operator()(const Claim& m) const { return of(m.meta) + count_bytes(m.stripes); }
  std::uint64_t operator()(const ReduceWant& m) const {
    return of(m.meta) + count_bytes(m.confirmed);
  }
  std::uint64_t operator()(const ReduceReport& m) const {
    return of(m.meta) + count_bytes(m.folded, m.lost, m.committed, m.text);
  }
  std::uint64_t operator()(const Grant& m) const { return of(m.meta); }
  std::uint64_t operator()(const Located& m) const { return of(m.meta); }
  std::uint64_t operator()(const Push& m) const { return of(m.meta) + count_bytes(m.forward); }
  std::uint64_t operator()(const PushTo& m) const { return count_bytes(m.receivers); }
  std::uint64_t operator()(const Lost& m) const { return count_bytes(m.text); }
  std::uint64_t operator()(const ReduceOwn& m) const {
    return of(m.meta) + count_bytes(m.owned, m.members);
  }
  std::uint64_t operator()(const ReduceState& m) const {
    return count_bytes(m.members, m.lost, m.text);
  }
  std::uint64_t operator()(const PullStart& m) const { return count_bytes(m.beside); }
  std::uint64_t operator()(const Adopt& m) const { return of(m.meta); }
  std::uint64_t operator()(const Progress& m) const { return count_bytes(m.stripes); }
  std::uint64_t operator()(const ChannelClaim& m) const { return count_bytes(m.newest.payload); }
  std::uint64_t operator()(const ChannelQuestion& m) const {
    return count_bytes(m.version.payload);
  }
  std::uint64_t operator()(const VersionOffer& m) const { return count_bytes(m.newest.payload); }
  std::uint64_t operator()(const VersionNews& m) const { return count_bytes(m.version.payload); }
  std::uint64_t operator()(const ChannelAnswer& m) const { return count_bytes(m.newest.payload); }
  std::uint64_t operator()(const MakeExcerpt& m) const {
    return of(m.excerpt.meta) + count_bytes(m.excerpt.runs);
  }
  template <typename Plain>
  std::uint64_t operator()(const Plain&) const {
    static_assert(std::is_trivially_copyable_v<Plain>, "say what it holds");
    return 0;
  }
};

std::uint64_t bytes_of(const MessageIn& event) {
  return sizeof event + event.payload.size() + std::visit(HeldBytes(), event.message.body);
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
