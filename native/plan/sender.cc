// SPDX-License-Identifier: Apache-2.0
#include "plan/sender.h"

#include <algorithm>
#include <tuple>

namespace hoplite {
namespace {

// Does what the receiver asks for name the bytes we have?
bool matches(const PullStart& want, const LocalObject& object) {
  const bool settled = want.target_epoch.value == 0 && object.committed;  // asked for by a fold
  return object.incarnation == want.incarnation &&
         (settled || object.target_epoch == want.target_epoch);
}

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

// Blocks that are still to go; 0 also where the next one is not here or has no credit.
std::uint32_t Sender::left_to_send(const Edge& edge, const LocalObjects& objects) {
  if (edge.credits == 0) return 0;
  const auto object = objects.find(edge.want.object);
  if (object == objects.end() || !matches(edge.want, object->second)) return 0;
  const auto total =
      stripe_blocks(object->second.meta.block_count(), edge.want.stripe_count, edge.want.stripe);
  if (edge.next >= total) return 0;
  const auto block = stripe_block(edge.want.stripe_count, edge.want.stripe, edge.next);
  return object->second.has_block(block) ? total - edge.next : 0;
}

std::optional<SendBlock> Sender::poll_block(const LocalObjects& objects, Rails& rails,
                                            Instant now) {
  auto best = edges_.end();
  std::uint32_t best_left = 0;
  NodeId roomless = kNoNode;  // edges are ordered by receiver: one question per receiver
  for (auto it = edges_.begin(); it != edges_.end(); ++it) {
    const NodeId to = it->first.first;
    if (to == roomless) continue;
    const std::uint32_t left = left_to_send(it->second, objects);
    if (left == 0 || (best != edges_.end() && left >= best_left)) continue;
    const Edge& edge = it->second;
    const auto block = stripe_block(edge.want.stripe_count, edge.want.stripe, edge.next);
    if (!rails.has_room(to, block_extent(objects.at(edge.want.object).meta, block).size_bytes)) {
      roomless = to;
      continue;
    }
    best = it;
    best_left = left;
  }
  if (best == edges_.end()) return std::nullopt;
  // Several stripes of one object for one receiver keep pace: one at full speed would take the
  // upload of them all, where its lease counts for one.
  for (auto it = edges_.lower_bound({best->first.first, TransferId{0}});
       it != edges_.end() && it->first.first == best->first.first; ++it) {
    if (it->second.want.object != best->second.want.object) continue;
    const std::uint32_t left = left_to_send(it->second, objects);
    if (left > best_left) std::tie(best, best_left) = std::tuple(it, left);
  }
  const auto [to, transfer] = best->first;
  Edge& edge = best->second;
  const LocalObject& object = objects.at(edge.want.object);
  const auto block = stripe_block(edge.want.stripe_count, edge.want.stripe, edge.next);
  const Extent range = object.block_in_arena(block);
  const auto rail = rails.take(to, range.size_bytes, now);
  if (!rail) return std::nullopt;
  SendBlock action{.to = to, .rail = *rail, .header = {}, .extent = range};
  action.header.transfer = transfer;
  action.header.object = edge.want.object;
  action.header.incarnation = edge.want.incarnation;
  action.header.target_epoch = edge.want.target_epoch;
  action.header.offset = block_extent(object.meta, block).offset;
  action.header.size_bytes = static_cast<std::uint32_t>(range.size_bytes);
  queued_[{to, *rail}].emplace_back(edge.want.object, edge.want.incarnation);
  --edge.credits;
  ++edge.next;
  if (best_left == 1) edges_.erase(best);
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
