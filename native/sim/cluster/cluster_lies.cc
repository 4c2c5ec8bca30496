// SPDX-License-Identifier: Apache-2.0
// The lies of the simulator: frames that change on their way, borders that a canary corrupts, and
// one member that lies in well-formed messages.
#include <algorithm>
#include <array>
#include <utility>

#include "plan/links/membership.h"
#include "sim/cluster/cluster.h"
#include "sim/model/content.h"
#include "sim/model/describe.h"
#include "sim/model/liar.h"
#include "wire/crc32c.h"
#include "wire/frame.h"

namespace hoplite::sim {
namespace {

constexpr Duration kBusyMax = 20_ms;       // the liar spares a port that is busy for longer
constexpr std::size_t kTransfersMax = 16;  // newest transfers that the liar remembers

// True if the liar tells all kinds of lies about the object. About the other half of all objects it
// sends only messages of a home.
bool may_lie_about(const ObjectId& object) { return object.bytes[9] % 2 == 0; }

// True if only the object's home may send the message. It has no effect from another member.
bool is_of_a_home(const PeerMessage& body) {
  return std::holds_alternative<Grant>(body) || std::holds_alternative<Located>(body) ||
         std::holds_alternative<PushTo>(body) || std::holds_alternative<Drop>(body) ||
         std::holds_alternative<Deleted>(body) || std::holds_alternative<Standing>(body) ||
         std::holds_alternative<Adopt>(body) || std::holds_alternative<ReduceOwn>(body) ||
         std::holds_alternative<ReduceState>(body) || std::holds_alternative<VersionOffer>(body) ||
         std::holds_alternative<VersionNews>(body) || std::holds_alternative<ChannelAnswer>(body);
}

// True of a message that the wire lets carry the bytes of a small object.
bool may_carry(const PeerMessage& body) {
  return std::holds_alternative<Claim>(body) || std::holds_alternative<Push>(body) ||
         std::holds_alternative<Located>(body);
}

void name(PeerMessage& body, const ObjectId& object) {
  std::visit(
      [&](auto& said) {
        if constexpr (requires { said.object; }) {
          said.object = object;
        } else if constexpr (requires { said.target; }) {
          said.target = object;
        } else if constexpr (requires { said.channel; }) {
          said.channel = object;
        }
      },
      body);
}

}  // namespace

// Sometimes replaces a frame by an earlier one with changed bytes. Returns false if the result is
// no frame, which ends its connection as it does on sockets.
bool Cluster::lie(NodeId to, NodeId from, ConnectionKind kind, ByteVector& frame) {
  constexpr std::size_t kOverheardMax = 64;
  if (kind == ConnectionKind::kControl) overheard_.push_back(frame);
  if (overheard_.size() > kOverheardMax) overheard_.pop_front();
  if (prng_.below(1000) >= config_.lies_per_mille) return true;
  const bool repeats = kind == ConnectionKind::kControl && prng_.chance(40);
  if (repeats) frame = overheard_[prng_.below(overheard_.size())];
  for (std::uint64_t n = prng_.below(4) + (repeats ? 0 : 1); n > 0; --n) {
    const bool spares_header = prng_.chance(90) && frame.size() > kFrameHeaderBytes;
    const std::size_t first = spares_header ? kFrameHeaderBytes : 0;
    const std::size_t at = first + prng_.below(frame.size() - first);
    static constexpr std::uint8_t kEdges[] = {0, 1, 2, 0x7f, 0x80, 0xff};
    frame[at] = static_cast<std::byte>(prng_.chance(50) ? kEdges[prng_.below(6)] : prng_.next());
  }
  auto header = decode_header(frame);
  const bool is_whole =
      header && frame.size() == kFrameHeaderBytes + header->body_bytes + header->payload_bytes;
  const bool is_of_its_kind =
      is_whole && (header->type == FrameType::kBlock) == (kind == ConnectionKind::kBulk);
  if (is_of_its_kind) {
    const auto rest = std::span<const std::byte>(frame).subspan(kFrameHeaderBytes);
    auto body = decode_body(*header, rest.first(header->body_bytes));
    if (body && !std::holds_alternative<LinkFrame>(*body)) {
      const auto* block = std::get_if<BlockHeader>(&*body);
      if (block == nullptr || crc32c(rest.subspan(kBlockBodyBytes)) == block->crc32c) return true;
    }
  }
  network_.reset_link(to, from);
  return false;
}

// Makes the sender that a grant names wait for ever for bytes of the grant's receiver.
void Cluster::grant_in_circle(NodeId receiver, const MessageIn& heard) {
  const auto* grant = std::get_if<Grant>(&heard.message.body);
  if (grant == nullptr) return;
  for (const StripeLease& lease : grant->leases) {
    MessageIn forged = heard;
    std::get<Grant>(forged.message.body).leases = {
        {lease.stripe, receiver, LeaseId{~std::uint32_t{0}}}};
    timeline_.after(config_.local_delay,
                    [this, to = lease.sender, forged] { handle_io(to, forged, {}); },
                    {Stream::Kind::kNotice, receiver.value, lease.sender.value});
  }
}

// Makes the receiver take its current lease for a newer one.
void Cluster::renew_lease(NodeId receiver, const MessageIn& heard) {
  if (!std::holds_alternative<Grant>(heard.message.body)) return;
  MessageIn forged = heard;
  for (StripeLease& each : std::get<Grant>(forged.message.body).leases) ++each.lease.value;
  timeline_.after(
      config_.local_delay,
      [this, receiver, said = heard.message, forged] { handle_message(receiver, said, forged); },
      {Stream::Kind::kNotice, heard.from.value, receiver.value});
}

// ---- one member that lies ----

// True if only honest members have handled the object: no client asked the liar for it, the liar
// tells no lies about it, and the liar was never its home. The last holds if a steady member comes
// before the liar in the order of its homes. The sources of a reduce must be honest as well.
bool Cluster::is_honest(const ObjectId& object) const {
  if (!config_.liar) return true;
  const NodeId liar = nodes_[*config_.liar]->id;
  if (may_lie_about(object) || asked_of_liar_.contains(object)) return false;
  const bool has_home = std::ranges::any_of(nodes_, [&](const auto& node) {
    return node->is_steady && node->id != liar &&
           weight_of(object, node->id) > weight_of(object, liar);
  });
  const auto reduce = reduces_.find(object);
  return has_home && (reduce == reduces_.end() ||
                      std::ranges::all_of(reduce->second->sources, [&](const ReduceSource& source) {
                        return source.failed || is_honest(source.object);
                      }));
}

// True as long as the liar lives and owns a part of the reduce. It may stop its own pull of a
// source, and its honest engine then waits for ever.
bool Cluster::waits_for_liar(const ObjectId& target) const {
  return config_.liar && is_alive(*config_.liar) && folded_by_liar_.contains(number_of(target));
}

void Cluster::overhear(NodeId from, NodeId to, const Message& message) {
  const auto* own = std::get_if<ReduceOwn>(&message.body);
  if (own != nullptr && is_liar(to)) folded_by_liar_.insert(number_of(own->target));
  if (message.transfer.value == 0 || (!is_liar(from) && !is_liar(to))) return;
  overheard_transfers_.push_back(message.transfer);
  if (overheard_transfers_.size() > kTransfersMax) overheard_transfers_.pop_front();
}

void Cluster::end_lies() {
  lies_ = false;
  if (config_.liar) crash(*config_.liar);
}

void Cluster::tell_lies() {
  timeline_.after(config_.lie_every, [this] {
    if (!lies_) return;
    tell_lie(*nodes_[*config_.liar]);
    tell_lies();
  });
}

void Cluster::tell_lie(Node& node) {
  if (!node.alive || node.paused_until > now()) return;
  Liar::Pools pools{{}, {ObjectMeta{}}, {TransferId{0}}};
  std::vector<ObjectId> honest;
  for (const Request& request : requests_) {
    (may_lie_about(request.object) ? pools.objects : honest).push_back(request.object);
    if (request.verb != Verb::kPut || !may_lie_about(request.object)) continue;
    const auto block = static_cast<std::uint32_t>(config_.engine.block_bytes_max);
    pools.metas.push_back({request.bytes.size(), block, request.parts, layout_of(request.parts)});
  }
  if (pools.objects.empty()) return;
  std::erase_if(pools.metas, [](const ObjectMeta& meta) { return fault_of(meta) != nullptr; });
  pools.transfers.insert(pools.transfers.end(), overheard_transfers_.begin(),
                         overheard_transfers_.end());
  Liar liar(std::move(pools), [this] { return static_cast<std::uint8_t>(lying_.next() >> 32); });
  auto said = liar.message(node.id, node.known_epoch);
  const auto to = lying_.below(nodes_.size());
  if (!said || to == node.index) return;
  // A port takes all frames in one queue, so lies that fill it would delay honest frames.
  if (network_.busy_until(nodes_[to]->id) > now() + kBusyMax) return;
  if (is_of_a_home(said->message.body) && !honest.empty() && lying_.chance(50)) {
    const ObjectId& object = honest[lying_.below(honest.size())];
    if (is_honest(object)) name(said->message.body, object);
  }
  if (!may_carry(said->message.body)) said->payload.clear();
  ++lies_told_;
  if (config_.trace) trace(node, "  lies: " + describe(said->message));
  send_frame(node, nodes_[to]->id, said->message, said->payload, 0);
}

}  // namespace hoplite::sim
