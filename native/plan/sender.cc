// SPDX-License-Identifier: Apache-2.0
#include "plan/sender.h"

#include <algorithm>

namespace hoplite {
namespace {

// Does what the receiver asks for name the bytes we have?
bool matches(const PullStart& want, const LocalObject& object) {
  // Asked for by a fold. Of a branch it is told when all is folded, and may ask before we hear of
  // the commit.
  const bool settled = want.target_epoch.value == 0 && (object.committed || object.is_branch);
  return object.incarnation == want.incarnation &&
         (settled || object.target_epoch == want.target_epoch);
}

// How the receiver has what it wants cut into blocks: in our own, unless it wants a range.
struct Cut {
  Extent range;
  std::uint64_t block_bytes = 0;

  Cut(const PullStart& want, const ObjectMeta& meta)
      : range(want.is_range          ? want.range
              : meta.block_bytes > 0 ? Extent{0, meta.size_bytes}
                                     : Extent{}),  // a peer may have said so of it
        block_bytes(want.is_range ? want.block_bytes : std::max(meta.block_bytes, 1U)) {}
  // Blocks of the stripe.
  [[nodiscard]] std::uint32_t total(const PullStart& want) const {
    const auto blocks = (range.size_bytes + block_bytes - 1) / block_bytes;
    return stripe_blocks(static_cast<std::uint32_t>(blocks), want.stripe_count, want.stripe);
  }
  // Of the object, the n-th block of the stripe.
  [[nodiscard]] Extent block(const PullStart& want, std::uint32_t n) const {
    const std::uint64_t at =
        stripe_block(want.stripe_count, want.stripe, n).value * std::uint64_t{block_bytes};
    return {range.offset + at, std::min(block_bytes, range.size_bytes - at)};
  }
};

// An owner of a reduce whose own get was taken back has other owners' stripes in part, for ever.
bool gave_up(const PullStart& want, const LocalObject& object) {
  if (object.is_wanted() || object.writing) return false;
  const LocalStripe& stripe = object.stripes[want.stripe.value % object.stripes.size()];
  return want.stripe_count == object.stripes.size() && stripe.state == StripeState::kIdle;
}

}  // namespace

bool Sender::handle_start(NodeId to, TransferId transfer, const PullStart& start,
                          const LocalObject* object) {
  if (start.stripe_count == 0 || start.stripe_count > kStripesMax ||
      start.stripe.value >= start.stripe_count || object == nullptr) {
    return false;
  }
  // Our own grant may still be on its way, on another link: then the receiver waits with us.
  const bool ahead_of_us = object->target_epoch < start.target_epoch ||
                           (object->incarnation.value == 0 && object->is_wanted());
  if (!ahead_of_us && (!matches(start, *object) || object->stripes.empty())) return false;
  if (!ahead_of_us && gave_up(start, *object)) return false;
  if (start.is_range && !object->spans(start.range)) return false;
  edges_.insert_or_assign(Key{to, transfer}, Edge{start, start.from, start.credits});
  return true;
}

void Sender::handle_credit(NodeId to, TransferId transfer, std::uint32_t blocks) {
  const auto it = edges_.find({to, transfer});
  if (it != edges_.end()) it->second.credits += std::min(blocks, 1U << 20);
}

std::optional<ObjectId> Sender::handle_stop(NodeId to, TransferId transfer) {
  const auto it = edges_.find({to, transfer});
  if (it == edges_.end()) return std::nullopt;
  const ObjectId served = it->second.want.object;
  edges_.erase(it);
  return served;
}

std::vector<ObjectId> Sender::handle_link_down(NodeId to) {
  std::vector<ObjectId> served;
  const auto first = edges_.lower_bound({to, TransferId{0}});
  auto last = first;
  for (; last != edges_.end() && last->first.first == to; ++last) {
    served.push_back(last->second.want.object);
  }
  edges_.erase(first, last);
  return served;
}

bool Sender::serves(const ObjectId& object) const {
  return std::any_of(edges_.begin(), edges_.end(),
                     [&](const auto& edge) { return edge.second.want.object == object; });
}

std::vector<std::pair<NodeId, TransferId>> Sender::drop(const ObjectId& object) {
  std::vector<Key> refused;
  for (auto it = edges_.begin(); it != edges_.end();) {
    if (it->second.want.object != object) {
      ++it;
      continue;
    }
    refused.push_back(it->first);
    it = edges_.erase(it);
  }
  return refused;
}

std::optional<SendBlock> Sender::poll_block(const LocalObjects& objects, Rails& rails,
                                            Instant now) {
  struct Best {
    std::uint64_t bytes_left = 0;
    std::map<Key, Edge>::iterator turn;  // whose it is; end(): nobody can be sent anything
  };
  std::map<ObjectId, Best> best;
  NodeId roomless = kNoNode;  // edges are ordered by receiver: one question per receiver
  for (auto it = edges_.begin(); it != edges_.end(); ++it) {
    const NodeId to = it->first.first;
    const Edge& edge = it->second;
    const auto object = objects.find(edge.want.object);
    if (object == objects.end() || !matches(edge.want, object->second)) continue;
    const Cut cut(edge.want, object->second.meta);
    const std::uint32_t end = cut.total(edge.want);
    if (edge.next >= end) continue;
    Best& of_object = best.try_emplace(edge.want.object, Best{0, edges_.end()}).first->second;
    of_object.bytes_left += (end - edge.next) * cut.block_bytes;
    if (edge.credits == 0 || to == roomless) continue;
    if (of_object.turn != edges_.end() &&
        rank(of_object.turn->first, of_object.turn->second) <= rank(it->first, edge)) {
      continue;
    }
    const Extent block = cut.block(edge.want, edge.next);
    if (!object->second.has_range(block)) continue;
    if (!rails.has_room(to, block.size_bytes)) {
      roomless = to;
      continue;
    }
    of_object.turn = it;
  }
  auto first = best.end();
  for (auto it = best.begin(); it != best.end(); ++it) {
    if (it->second.turn == edges_.end()) continue;
    if (first == best.end() || it->second.bytes_left < first->second.bytes_left) first = it;
  }
  if (first == best.end()) return std::nullopt;
  const auto at = first->second.turn;
  const auto [to, transfer] = at->first;
  Edge& edge = at->second;
  const LocalObject& object = objects.at(edge.want.object);
  const Cut cut(edge.want, object.meta);
  const Extent block = cut.block(edge.want, edge.next);
  const Extent range = object.in_arena(block);
  const auto rail = rails.take(to, range.size_bytes, now);
  if (!rail) return std::nullopt;
  SendBlock action{.to = to, .rail = *rail, .header = {}, .extent = range};
  action.header.transfer = transfer;
  action.header.object = edge.want.object;
  action.header.incarnation = edge.want.incarnation;
  action.header.target_epoch = edge.want.target_epoch;
  action.header.offset = block.offset - cut.range.offset;
  action.header.size_bytes = static_cast<std::uint32_t>(range.size_bytes);
  queued_[{to, *rail}].emplace_back(edge.want.object, edge.want.incarnation);
  --edge.credits;
  edge.turn = ++turns_;
  if (++edge.next == cut.total(edge.want)) edges_.erase(at);
  return action;
}

std::optional<std::pair<ObjectId, Incarnation>> Sender::handle_sent(NodeId to, RailId rail) {
  const auto it = queued_.find({to, rail});
  if (it == queued_.end()) return std::nullopt;
  const auto sent = it->second.front();
  it->second.pop_front();
  if (it->second.empty()) queued_.erase(it);
  return sent;
}

std::vector<std::pair<ObjectId, Incarnation>> Sender::take_unsent(NodeId to) {
  std::vector<std::pair<ObjectId, Incarnation>> unsent;
  for (auto it = queued_.begin(); it != queued_.end();) {
    if (it->first.first != to) {
      ++it;
      continue;
    }
    unsent.insert(unsent.end(), it->second.begin(), it->second.end());
    it = queued_.erase(it);
  }
  return unsent;
}

}  // namespace hoplite
