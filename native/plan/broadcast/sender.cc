// SPDX-License-Identifier: Apache-2.0
#include "plan/broadcast/sender.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace hoplite {
namespace {

// True if the receiver asks for the attempt and target epoch that this node has.
bool matches(const PullStart& want, const LocalObject& object) {
  // Asked for by a fold. A branch is never committed.
  const bool settled = want.target_epoch.value == 0 && object.finality != Finality::kTentative;
  return object.incarnation == want.incarnation &&
         (settled || object.target_epoch == want.target_epoch);
}

// The cut of an object into blocks: this node's own, except when the receiver wants a range.
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
  // The n-th block of the stripe, as a range of the object.
  [[nodiscard]] Extent block(const PullStart& want, std::uint32_t n) const {
    const std::uint64_t at =
        stripe_block(want.stripe_count, want.stripe, n).value * std::uint64_t{block_bytes};
    return {range.offset + at, std::min(block_bytes, range.size_bytes - at)};
  }
};

// True if this node no longer fetches the stripe. An owner of a reduce whose own get was cancelled
// keeps a part of other owners' stripes, which never grows.
bool gave_up(const PullStart& want, const LocalObject& object) {
  if (object.is_wanted() || object.is_writing()) return false;
  const LocalStripe& stripe = object.stripes[want.stripe.value % object.stripes.size()];
  return want.stripe_count == object.stripes.size() && stripe.state == StripeState::kIdle;
}

bool is_of(const PullStart& want, const ObjectId& object) {
  return want.object == object ||
         std::any_of(want.beside.begin(), want.beside.end(),
                     [&](const Beside& other) { return other.object == object; });
}

// True if blocks of the range, cut so, can be combined. No block may end inside an element.
bool can_combine_blocks(const PullStart& want, const Cut& cut, const ObjectMeta& meta) {
  ObjectMeta result{cut.range.size_bytes, static_cast<std::uint32_t>(cut.block_bytes), {}, ""};
  for (const Run& run : runs_of(meta, cut.range)) {
    if (run.range.offset % element_bytes(run.dtype) != 0) return false;
    result.parts.push_back({run.dtype, run.range.size_bytes});
  }
  return fault_of(result) == nullptr && can_combine_all(result.parts, want.op);
}

}  // namespace

// True if this node may combine the pull's objects: it has or fetches all of them, their parts are
// equal, none is about to be void, and one block of each fits into combined_bytes_max.
bool Sender::can_combine(const PullStart& want, const LocalObjects& objects) const {
  const auto found = objects.find(want.object);
  if (found == objects.end()) return false;
  const ObjectMeta& meta = found->second.meta;
  const auto can_be = [&](const ObjectId& id, Incarnation incarnation) {
    const auto it = objects.find(id);
    if (it == objects.end() || it->second.incarnation != incarnation) return false;
    const LocalObject& object = it->second;
    const bool is_settled = object.finality != Finality::kTentative;
    return is_settled && !object.stripes.empty() && !gave_up(want, object) &&
           object.meta.size_bytes == meta.size_bytes &&
           object.meta.block_bytes == meta.block_bytes && object.meta.parts == meta.parts;
  };
  const Cut cut(want, meta);
  return want.target_epoch.value == 0 && can_be(want.object, want.incarnation) &&
         (want.beside.size() + 1) * cut.block_bytes <= combined_bytes_max_ &&
         std::all_of(
             want.beside.begin(), want.beside.end(),
             [&](const Beside& other) { return can_be(other.object, other.incarnation); }) &&
         can_combine_blocks(want, cut, meta);
}

bool Sender::handle_start(NodeId to, TransferId transfer, const PullStart& start,
                          const LocalObjects& objects) {
  const auto found = objects.find(start.object);
  if (start.stripe_count == 0 || start.stripe_count > kStripesMax ||
      start.stripe.value >= start.stripe_count) {
    return false;
  }
  // A branch's reader may hear of it earlier than its owner does, so its pull waits.
  if (found == objects.end()) return start.of_branch && add({to, transfer}, start, true);
  const LocalObject& object = found->second;
  // This node's own grant may be in flight on another link. The receiver then waits with this node.
  const bool ahead_of_us = object.target_epoch < start.target_epoch ||
                           (object.incarnation.value == 0 && object.is_wanted());
  if (!ahead_of_us && (!matches(start, object) || object.stripes.empty())) return false;
  if (!ahead_of_us && gave_up(start, object)) return false;
  if (start.is_range && !object.spans(start.range)) return false;
  if (!start.beside.empty() && !can_combine(start, objects)) return false;
  return add({to, transfer}, start, false);
}

bool Sender::add(const Key& key, const PullStart& start, bool is_early) {
  if (const auto old = edges_.find(key); old != edges_.end()) remove(old);
  Load& load = loads_[key.first];
  const std::size_t objects = load.objects + 1 + start.beside.size();
  if (objects > kPulledObjectsMax || (is_early && load.early == kEarlyPullsMax)) return false;
  load.objects = objects;
  if (is_early) ++load.early;
  const Edge& edge =
      edges_.emplace(key, Edge{start, start.from, start.credits, 0, is_early}).first->second;
  for (const ObjectId& object : objects_of(edge)) ++served_[object];
  return true;
}

Sender::Edges::iterator Sender::remove(Edges::iterator at) {
  Load& load = loads_.at(at->first.first);
  load.objects -= 1 + at->second.want.beside.size();
  if (at->second.is_early) --load.early;
  if (load.objects == 0) loads_.erase(at->first.first);
  for (const ObjectId& object : objects_of(at->second)) {
    const auto served = served_.find(object);
    if (--served->second == 0) served_.erase(served);
  }
  return edges_.erase(at);
}

void Sender::handle_credit(NodeId to, TransferId transfer, std::uint32_t blocks) {
  const auto it = edges_.find({to, transfer});
  if (it != edges_.end()) it->second.credits += std::min(blocks, 1U << 20);
}

std::vector<ObjectId> Sender::objects_of(const Edge& edge) {
  std::vector<ObjectId> objects{edge.want.object};
  for (const Beside& other : edge.want.beside) objects.push_back(other.object);
  return objects;
}

std::vector<ObjectId> Sender::handle_stop(NodeId to, TransferId transfer) {
  const auto it = edges_.find({to, transfer});
  if (it == edges_.end()) return {};
  std::vector<ObjectId> served = objects_of(it->second);
  remove(it);
  return served;
}

std::vector<ObjectId> Sender::handle_link_down(NodeId to) {
  std::vector<ObjectId> served;
  for (auto at = edges_.lower_bound({to, TransferId{0}});
       at != edges_.end() && at->first.first == to; at = remove(at)) {
    for (const ObjectId& object : objects_of(at->second)) served.push_back(object);
  }
  loads_.erase(to);
  return served;
}

std::vector<Sender::Unserved> Sender::drop(const ObjectId& object) {
  std::vector<Unserved> refused;
  for (auto it = edges_.begin(); it != edges_.end();) {
    if (!is_of(it->second.want, object)) {
      ++it;
      continue;
    }
    refused.push_back({it->first.first, it->first.second, objects_of(it->second)});
    it = remove(it);
  }
  return refused;
}

bool Sender::has(const LocalObjects& objects, const LocalObject& object, const Edge& edge,
                 Extent range) {
  return object.has_range(range) &&
         std::all_of(edge.want.beside.begin(), edge.want.beside.end(), [&](const Beside& other) {
           const auto it = objects.find(other.object);
           return it != objects.end() && it->second.has_range(range);
         });
}

// ---- what goes out ----

struct Sender::Candidate {
  Edges::iterator at;
  const LocalObject* object;
  Cut cut;
  std::uint32_t end;                    // blocks of the stripe
  std::uint64_t* bytes_left = nullptr;  // of the object; null while there is no other object

  [[nodiscard]] NodeId to() const { return at->first.first; }
  [[nodiscard]] Edge& edge() const { return at->second; }
  [[nodiscard]] Extent block() const { return cut.block(edge().want, edge().next); }
};

Sender::Candidates Sender::find_candidates(const LocalObjects& objects, const Rails& rails) {
  Candidates found;
  NodeId roomless = kNoNode;  // edges are ordered by receiver: one question per receiver
  for (auto at = edges_.begin(); at != edges_.end(); ++at) {
    const auto& [key, edge] = *at;
    if (edge.credits == 0 || key.first == roomless) continue;
    const auto object = objects.find(edge.want.object);
    if (object == objects.end() || !matches(edge.want, object->second)) continue;
    const Cut cut(edge.want, object->second.meta);
    const Candidate candidate{at, &object->second, cut, cut.total(edge.want)};
    if (edge.next >= candidate.end) continue;
    const Extent block = candidate.block();
    if (!has(objects, object->second, edge, block)) continue;
    if (rails.has_room(key.first, block.size_bytes)) {
      found.push_back(candidate);
    } else {
      roomless = key.first;
    }
  }
  return found;
}

Sender::BytesLeft Sender::bytes_left(const LocalObjects& objects) const {
  BytesLeft left;
  for (const auto& [key, edge] : edges_) {
    const auto object = objects.find(edge.want.object);
    if (object == objects.end() || !matches(edge.want, object->second)) continue;
    const Cut cut(edge.want, object->second.meta);
    const std::uint32_t end = cut.total(edge.want);
    if (edge.next < end) left[edge.want.object] += (end - edge.next) * cut.block_bytes;
  }
  return left;
}

Sender::Candidates::iterator Sender::first_of(Candidates& candidates) const {
  const auto rank = [this](const Candidate& each) {
    const std::uint64_t bytes = each.bytes_left != nullptr ? *each.bytes_left : 0;
    const std::uint64_t behind = each.to().value - node_.value;
    return std::tuple<std::uint64_t, const ObjectId&, std::uint64_t, std::uint64_t>(
        bytes, each.edge().want.object, each.edge().turn, behind);
  };
  return std::min_element(
      candidates.begin(), candidates.end(),
      [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
}

std::vector<Sender::Next> Sender::take_blocks(const LocalObjects& objects, Rails& rails,
                                              Inventory& inventory, std::uint64_t fold_bytes_left,
                                              Instant now) {
  std::vector<Next> blocks;
  Candidates candidates = find_candidates(objects, rails);
  BytesLeft left;
  const auto is_other = [&](const Candidate& each) { return each.object != candidates[0].object; };
  if (std::any_of(candidates.begin(), candidates.end(), is_other)) {
    left = bytes_left(objects);
    for (Candidate& each : candidates) each.bytes_left = &left.at(each.edge().want.object);
  }
  while (!candidates.empty()) {
    const auto next = first_of(candidates);
    const Edge& edge = next->edge();
    const NodeId to = next->to();
    const Extent block = next->block();
    if (!rails.has_room(to, block.size_bytes)) {
      std::erase_if(candidates, [to](const Candidate& each) { return each.to() == to; });
      continue;
    }
    std::optional<Extent> borrowed;
    if (!edge.want.beside.empty()) {
      if (fold_bytes_left == 0) {
        candidates.erase(next);
        continue;
      }
      if (can_combine(edge.want, objects)) borrowed = inventory.borrow(block.size_bytes);
      if (!borrowed) {  // the receiver asks for each by itself
        refused_.push_back({to, next->at->first.second, objects_of(edge)});
        remove(next->at);
        candidates.erase(next);
        continue;
      }
      const std::uint64_t folded = (edge.want.beside.size() + 1) * block.size_bytes;
      fold_bytes_left -= std::min(fold_bytes_left, folded);
    }
    blocks.push_back(send(*next, block, borrowed, rails, now));
    const bool is_done = edge.next == next->end;
    if (is_done) remove(next->at);
    if (is_done || edge.credits == 0 || !has(objects, *next->object, edge, next->block())) {
      candidates.erase(next);
    }
  }
  return blocks;
}

// REQUIRES: there is room for the block.
Sender::Next Sender::send(Candidate& candidate, Extent block, std::optional<Extent> borrowed,
                          Rails& rails, Instant now) {
  Edge& edge = candidate.edge();
  const NodeId to = candidate.to();
  const auto rail = rails.take(to, block.size_bytes, now);
  HOPLITE_CHECK(rail);
  Next next{.block = {.to = to,
                      .rail = *rail,
                      .header = {},
                      .extent = borrowed ? *borrowed : candidate.object->in_arena(block)},
            .range = block,
            .combined = {},
            .op = edge.want.op};
  if (borrowed) next.combined = objects_of(edge);
  BlockHeader& header = next.block.header;
  header.transfer = candidate.at->first.second;
  header.object = edge.want.object;
  header.incarnation = edge.want.incarnation;
  header.target_epoch = edge.want.target_epoch;
  header.offset = block.offset - candidate.cut.range.offset;
  header.size_bytes = static_cast<std::uint32_t>(block.size_bytes);
  // The bytes of a result that is not final yet may change while the block waits.
  if (!borrowed && !edge.want.is_range && candidate.object->is_final()) {
    const std::uint64_t index = block.offset / candidate.cut.block_bytes;
    header.crc32c = candidate.object->sum_of(BlockIndex{static_cast<std::uint32_t>(index)});
  }
  next.block.ticket = BlockTicket{++last_ticket_};
  queued_[{to, next.block.ticket}] = {edge.want.object, edge.want.incarnation, borrowed};
  if (candidate.bytes_left != nullptr) *candidate.bytes_left -= candidate.cut.block_bytes;
  --edge.credits;
  ++edge.next;
  edge.turn = ++turns_;
  return next;
}

std::optional<Sender::Unserved> Sender::poll_refused() {
  if (refused_.empty()) return std::nullopt;
  Unserved refused = std::move(refused_.front());
  refused_.pop_front();
  return refused;
}

std::optional<Sender::Sent> Sender::handle_sent(NodeId to, BlockTicket ticket) {
  const auto sent = queued_.extract({to, ticket});
  if (sent.empty()) return std::nullopt;
  return sent.mapped();
}

std::vector<Sender::Sent> Sender::take_unsent(NodeId to) {
  std::vector<Sent> unsent;
  const auto first = queued_.lower_bound({to, BlockTicket{0}});
  auto last = first;
  for (; last != queued_.end() && last->first.first == to; ++last) unsent.push_back(last->second);
  queued_.erase(first, last);
  return unsent;
}

}  // namespace hoplite
