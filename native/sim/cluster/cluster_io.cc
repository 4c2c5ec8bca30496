// SPDX-License-Identifier: Apache-2.0
// Plays the product's io/ and node/: performs an engine's actions and hands it the network's
// events.
#include <algorithm>

#include "sim/cluster/cluster.h"
#include "sim/model/content.h"
#include "sim/model/describe.h"
#include "wire/crc32c.h"
#include "wire/frame.h"

namespace hoplite::sim {
namespace {

// Counts the blocks that a receiver's message lets its sender send, at the moment when the message
// leaves. A sender may send no block without it.
void allow(ClusterNode& receiver, NodeId sender, const Message& message) {
  if (const auto* start = std::get_if<PullStart>(&message.body)) {
    receiver.credits[message.transfer] = start->credits;
    const auto receive = receiver.receives.find({sender, message.transfer});
    if (receive != receiver.receives.end()) receive->second.first = start->from;
  } else if (const auto* more = std::get_if<Credit>(&message.body)) {
    receiver.credits[message.transfer] += more->blocks;
  }
}

// True if the claim has no bytes and comes before any claim that has some.
bool is_early_claim(const MessageIn& heard, std::uint64_t& claims_that_have) {
  const auto* claim = std::get_if<Claim>(&heard.message.body);
  if (claim == nullptr) return false;
  if (!claim->stripes.empty()) ++claims_that_have;
  return claim->wants && claims_that_have == 0;
}

bool is_named_by(const OpenReceive& open, const BlockHeader& block) {
  return open.object == block.object && open.incarnation == block.incarnation &&
         open.target_epoch == block.target_epoch;
}

// True when the stripe that comes in has a block there, of that size.
bool is_block_of(const OpenReceive& open, const BlockHeader& block) {
  const BlockIndex index{static_cast<std::uint32_t>(block.offset / open.meta.block_bytes)};
  return block.offset % open.meta.block_bytes == 0 && index.value < open.meta.block_count() &&
         index.value % open.stripe_count == open.stripe.value &&
         block_extent(open.meta, index).size_bytes == block.size_bytes;
}

// Where a block lands.
Extent place_of(const OpenReceive& open, BlockIndex block) {
  const Extent range = block_extent(open.meta, block);
  const std::uint64_t n = block.value / open.stripe_count;
  const std::uint64_t offset =
      open.slots == 0 ? range.offset : n % open.slots * open.meta.block_bytes;
  return {open.base.offset + offset, range.size_bytes};
}

}  // namespace

// Returns the bytes of a range that an engine named; an impossible one is a violation.
std::span<std::byte> Cluster::bytes_at(Node& node, const Extent& extent) {
  const std::uint64_t each = config_.network.stands_for;
  const std::uint64_t begin = extent.offset / each;
  const std::uint64_t size = extent.size_bytes / each;
  if (begin > node.arena.size() || size > node.arena.size() - begin) {
    checker_.fail("node " + std::to_string(node.index) + " names a range outside of its arena");
    return {};
  }
  return node.arena.range(begin, size);
}

void Cluster::perform(Node& node, const Action& action) {
  std::visit(
      Visitor{
          [&](const SendMessage& a) { send_message(node, a); },
          [&](const SendBlock& a) {
            if (a.extent.size_bytes == 0 || a.extent.size_bytes != a.header.size_bytes) {
              checker_.fail("a block's header and extent differ in size, or are empty");
            }
            const bool is_allowed = --node_of(a.to).credits[a.header.transfer] >= 0;
            if (!is_allowed && config_.lies_per_mille == 0 && !is_liar(a.to)) {
              checker_.fail("node " + std::to_string(node.index) +
                            " sends a block without a credit");
            }
            network_.send_block(node.id, a);
            if (config_.canary == Canary::kSendTwice && ++canary_deeds_ == 2) perform(node, a);
          },
          [&](const OpenReceive& a) {
            if (config_.turns.are_real) node.fences.end_turn();  // in which it was decided
            checker_.check_fence(
                node.index, node.fences.check_open(a, config_.lies_per_mille > 0 || config_.liar));
            node.receives[{a.from, a.transfer}] = {a, std::vector<bool>(a.meta.block_count()), {}};
          },
          [&](const CloseReceive& a) {
            node.fences.note_close(a);
            close_receive(node, a);
          },
          [&](const Fold& a) { fold(node, a); },
          [&](const Finish& a) { finish(node, a); },
          [&](const WriteInline& a) {
            const auto into = bytes_at(node, a.extent);
            if (into.size() != a.payload.size()) {
              checker_.fail("an inline object is written to a range of another size");
            } else {
              std::copy(a.payload.begin(), a.payload.end(), into.begin());
              node.hops.set(a.extent, node.hops_in);
            }
          },
          [&](const ReplyToClient& a) { reply(node, a); },
          [&](const Connect& a) { network_.connect(node.id, a.member.node, a.member.incarnation); },
          [&](const Disconnect& a) { network_.disconnect(node.id, a.node); },
          [&](const ReportDeath& a) {
            timeline_.after(1_ms + some(config_.view_delay_max),
                            [this, a] { drop_member(a.node, a.incarnation); },
                            {Stream::Kind::kReport, node.id.value, 0});
          },
          [&](const ReportDrained&) { ++node.drained; },
          [&](const SpillJob& a) { submit_to_disk(node, a); },
          [&](const RebuildJob& a) { submit_to_helper(node, a); },
          [&](const TellListing& a) { listed_ = a.listing; },
      },
      action);
}

// A thread of io/ may be amid a block. It writes some or all of it before it reports that it ends:
// the block that comes meanwhile (land), or one that turns out not to be as its checksum says.
void Cluster::close_receive(Node& node, const CloseReceive& action) {
  auto receive = node.receives.extract({action.from, action.transfer});
  if (receive.empty()) return checker_.fail("a receive is closed that is not open");
  node.closing.insert(std::move(receive));
  timeline_.after(draw(closing_prng_, config_.closing_max),
                  [this, index = node.index, life = node.life, action] {
                    Node& open = *nodes_[index];
                    if (!open.alive || open.life != life) return;
                    const auto ended = open.closing.extract({action.from, action.transfer});
                    if (config_.closing_max.ns > 0) scribble(open, ended.mapped());
                    const ReceiveClosed closed{action.from, action.transfer};
                    run_in_turn(index, life,
                                [this, closed](Node& awake) {
                                  if (config_.trace) trace(awake, describe(IoEvent{closed}));
                                  awake.fences.note_receive_closed(closed);
                                  awake.engine->handle_io(closed, clock_of(awake));
                                },
                                {});
                  },
                  {Stream::Kind::kAtOnce});
}

// Writes parts of blocks that were asked for and did not land.
void Cluster::scribble(Node& node, const OpenedReceive& receive) {
  const OpenReceive& open = receive.opened;
  if (!receive.first) return;
  const auto total = stripe_blocks(open.meta.block_count(), open.stripe_count, open.stripe);
  for (std::uint32_t n = *receive.first; n < total; ++n) {
    const BlockIndex block = stripe_block(open.stripe_count, open.stripe, n);
    if (receive.landed[block.value]) continue;
    const auto into = bytes_at(node, place_of(open, block));
    std::fill_n(into.begin(), closing_prng_.below(into.size() + 1), LazyArena::kMark);
    if (closing_prng_.chance(50)) return;
  }
}

// Returns the layout tables of a connection. Null if peers lie, because a later frame may refer to
// a frame that a lie has changed.
LinkLayouts* Cluster::layouts_of(Node& node, NodeId peer, std::uint64_t life) {
  if (config_.lies_per_mille > 0) return nullptr;
  const wire::Layouts none(config_.layout_table_bytes_max);
  LinkLayouts& layouts =
      node.layouts.try_emplace(peer, LinkLayouts{life, none, none}).first->second;
  if (layouts.life != life) layouts = {life, none, none};
  return &layouts;
}

void Cluster::send_message(Node& node, const SendMessage& action) {
  if (action.to == node.id || action.to == kNoNode) {
    checker_.fail("node " + std::to_string(node.index) + " sends a message to itself or to nobody");
    return;
  }
  const bool is_withheld = action.payload && config_.withheld_per_mille > 0 &&
                           prng_.below(1000) < config_.withheld_per_mille;
  if (is_withheld && std::holds_alternative<Push>(action.message.body)) return;
  const bool carries = action.payload && !is_withheld;
  const auto payload = carries ? bytes_at(node, *action.payload) : std::span<std::byte>();
  send_frame(node, action.to, action.message, payload, carries ? node.hops.of(*action.payload) : 0);
}

void Cluster::send_frame(Node& node, NodeId to, const Message& message,
                         std::span<const std::byte> payload, std::uint32_t hops) {
  overhear(node.id, to, message);
  ByteVector frame;
  const auto life = network_.life_to_send(node.id, to);
  LinkLayouts* layouts = life ? layouts_of(node, to, *life) : nullptr;
  encode(message, payload.size(), frame, layouts != nullptr ? &layouts->sent : nullptr);
  frame.insert(frame.end(), payload.begin(), payload.end());
  allow(node, to, message);
  ++node.load.messages_sent;
  node.load.message_bytes_sent += frame.size() - payload.size();
  network_.send(node.id, to, std::move(frame), hops);
}

void Cluster::fold(Node& node, const Fold& action) {
  const auto into = bytes_at(node, action.into);
  const auto from = bytes_at(node, action.from);
  const std::uint64_t wide = accumulator_bytes(action.dtype);
  const std::uint64_t narrow = element_bytes(action.dtype);
  if (from.size() % narrow != 0 || into.size() * narrow != from.size() * wide) {
    checker_.fail("a fold of ranges that do not match");
    return;
  }
  fold_into(into, from, action.dtype, action.op, action.first);
  const std::uint32_t before = action.first ? 0 : node.hops.of(action.into);
  node.hops.set(action.into, std::max(before, node.hops.of(action.from)));
  if (config_.canary == Canary::kFoldTwice && !action.first && ++canary_deeds_ == 1) {
    fold_into(into, from, action.dtype, action.op, false);
  }
}

void Cluster::finish(Node& node, const Finish& action) {
  const auto into = bytes_at(node, action.into);
  const auto from = bytes_at(node, action.from);
  const std::uint64_t wide = accumulator_bytes(action.dtype);
  const std::uint64_t narrow = element_bytes(action.dtype);
  if (into.size() % narrow != 0 || into.size() * wide != from.size() * narrow) {
    checker_.fail("a finish of ranges that do not match");
    return;
  }
  finish_into(into, from, action.dtype, action.op, action.sources);
  node.hops.set(action.into, node.hops.of(action.from));
}

// ---- what leaves ----

std::pair<ByteVector, std::uint32_t> Cluster::read_block(NodeId from, const SendBlock& block) {
  Node& node = node_of(from);
  const auto payload = bytes_at(node, block.extent);
  BlockHeader header = block.header;
  const std::uint32_t crc = crc32c(payload);
  const bool may_be_a_lie = config_.lies_per_mille > 0 || !is_honest(header.object);
  if (header.crc32c != 0 && header.crc32c != crc && !may_be_a_lie) {
    checker_.fail("a kept checksum is not of the bytes that are sent");
  }
  header.crc32c = crc;
  const auto head = encode(header);
  ByteVector frame;
  frame.reserve(head.size() + payload.size());
  frame.insert(frame.end(), head.begin(), head.end());
  frame.insert(frame.end(), payload.begin(), payload.end());
  return {std::move(frame), node.hops.of(block.extent)};
}

void Cluster::handle_block_sent(NodeId id, const BlockSent& sent) {
  handle_io(id, sent, {Origin::Lane::kSent, sent.to});
}

// ---- what arrives ----

void Cluster::handle_io(NodeId id, IoEvent event, const Origin& origin) {
  const Node& node = node_of(id);
  run_in_turn(
      node.index, node.life,
      [this, event = std::move(event)](Node& awake) {
        if (config_.trace) trace(awake, describe(event));
        awake.engine->handle_io(event, clock_of(awake));
      },
      origin);
}

void Cluster::handle_link_up(NodeId node, NodeId peer, Incarnation incarnation,
                             std::uint64_t life) {
  const Node& receiver = node_of(node);
  run_in_turn(receiver.index, receiver.life,
              [this, up = LinkUp{peer, incarnation}, life](Node& awake) {
                network_.note_life(awake.id, up.node, life);
                if (config_.trace) trace(awake, describe(IoEvent{up}));
                awake.engine->handle_io(up, clock_of(awake));
              },
              {Origin::Lane::kNotice, peer, 0, Origin::Link::kGoesUp});
}
void Cluster::handle_link_down(NodeId node, NodeId peer) {
  handle_io(node, LinkDown{peer}, {Origin::Lane::kNotice, peer, 0, Origin::Link::kGoesDown});
}
void Cluster::handle_peer_dead(NodeId node, NodeId peer, Incarnation incarnation) {
  handle_io(node, PeerDead{peer, incarnation, !config_.doubts_deaths}, notice_of(peer));
}

void Cluster::handle_frame(NodeId id, NodeId from, ConnectionKind kind, ByteVector frame,
                           std::uint32_t hops) {
  Node& node = node_of(id);
  if (config_.lies_per_mille > 0 && !lie(id, from, kind, frame)) return;
  auto header = decode_header(frame);
  if (!header) {
    checker_.fail("a frame does not decode: " + header.error().text);
    return;
  }
  if (kind == ConnectionKind::kBulk) {
    const Origin origin{Origin::Lane::kBulk, from, frame.size()};
    run_in_turn(
        node.index, node.life,
        [this, from, frame = std::move(frame), hops](Node& awake) {
          land(awake, from, frame, hops);
        },
        origin);
    return;
  }
  const auto rest = std::span<const std::byte>(frame).subspan(kFrameHeaderBytes);
  LinkLayouts* layouts = layouts_of(node, from, network_.life_of(id, from));
  auto decoded = decode_body(*header, rest.first(header->body_bytes),
                             layouts != nullptr ? &layouts->received : nullptr);
  if (!decoded || !std::holds_alternative<Message>(*decoded)) {
    checker_.fail("a message does not decode: " + (decoded ? "link frame" : decoded.error().text));
    return;
  }
  const auto payload = rest.subspan(header->body_bytes);
  if (payload.size() != header->payload_bytes) checker_.fail("a frame of the wrong length");
  MessageIn heard{from, std::move(std::get<Message>(*decoded)),
                  Bytes(payload.begin(), payload.end())};
  if (config_.canary == Canary::kGrantInCircle) grant_in_circle(id, heard);
  const bool forgets = config_.canary == Canary::kForgetEarlyClaim;
  if (forgets && is_early_claim(heard, canary_deeds_)) return;
  if (config_.canary == Canary::kRenewLease) renew_lease(id, heard);
  Message received = heard.message;
  handle_message(id, std::move(received), std::move(heard), hops);
}

// `received` by the wire, and the engine is `handed` it, or what a canary makes of it.
void Cluster::handle_message(NodeId id, Message received, MessageIn handed, std::uint32_t hops) {
  const Node& node = node_of(id);
  const Origin origin{Origin::Lane::kControl, handed.from, handed.payload.size()};
  run_in_turn(
      node.index, node.life,
      [this, received = std::move(received), handed = std::move(handed),
       hops](Node& awake) mutable {
        ++awake.load.messages_heard;
        awake.hops_in = hops;
        awake.load.last_heard = now();
        if (config_.trace) trace(awake, describe(IoEvent{handed}));
        const bool is_void = awake.fences.is_void(received);
        const std::uint64_t stale = is_void ? awake.engine->stats().messages_stale : 0;
        const bool obeys = config_.canary == Canary::kObeyOldView && is_void;
        if (obeys) handed.message.view_epoch = awake.known_epoch;
        awake.engine->handle_io(std::move(handed), clock_of(awake));
        const bool is_taken = !is_void || awake.engine->stats().messages_stale == stale;
        checker_.check_fence(awake.index, awake.fences.check_message(received, is_taken));
      },
      origin);
}

// A block that comes while its receive is closed: some of it is written, and it may be reported.
void Cluster::land_late(Node& node, OpenedReceive& receive, const BlockHeader& block,
                        std::span<const std::byte> payload) {
  const OpenReceive& open = receive.opened;
  const BlockIndex index{static_cast<std::uint32_t>(block.offset / open.meta.block_bytes)};
  if (receive.landed[index.value]) return;  // only a lying peer sends it twice
  const auto into = bytes_at(node, place_of(open, index));
  const bool is_whole = closing_prng_.chance(50);
  const std::size_t written = is_whole ? payload.size() : closing_prng_.below(payload.size());
  std::copy_n(payload.begin(), written, into.begin());
  if (!is_whole) return;
  receive.landed[index.value] = true;
  node.engine->handle_io(BlockLanded{open.from, open.transfer, index, block.crc32c},
                         clock_of(node));
}

// Puts a block into its place and reports it to the engine. Drops a block without an open receive.
void Cluster::land(Node& node, NodeId from, const ByteVector& frame, std::uint32_t hops) {
  auto header = decode_header(frame);
  const auto rest = std::span<const std::byte>(frame).subspan(kFrameHeaderBytes);
  auto block = decode_block(*header, rest.first(kBlockBodyBytes));
  const auto payload = rest.subspan(kBlockBodyBytes);
  const std::uint64_t size_bytes = payload.size() * config_.network.stands_for;
  if (!block || size_bytes != block->size_bytes || crc32c(payload) != block->crc32c) {
    checker_.fail("a block does not decode");
    return;
  }
  if (const auto closing = node.closing.find({from, block->transfer});
      closing != node.closing.end() && closing_prng_.chance(50) &&
      is_named_by(closing->second.opened, *block) && is_block_of(closing->second.opened, *block)) {
    return land_late(node, closing->second, *block, payload);
  }
  auto at = node.receives.find({from, block->transfer});
  if (config_.canary == Canary::kTakeOldBlock && at == node.receives.end()) {
    at = std::find_if(node.receives.begin(), node.receives.end(), [&](const auto& receive) {
      const OpenReceive& open = receive.second.opened;
      return open.object == block->object && is_block_of(open, *block);
    });
  } else if (at != node.receives.end() && !is_named_by(at->second.opened, *block)) {
    return;
  }
  if (at == node.receives.end()) return;
  checker_.check_fence(node.index, node.fences.check_block(from, *block));
  const OpenReceive& open = at->second.opened;
  const BlockIndex index{static_cast<std::uint32_t>(block->offset / open.meta.block_bytes)};
  const bool fits = is_block_of(open, *block);
  const bool may_be_a_lie = config_.lies_per_mille > 0 || !is_honest(block->object);
  if (!fits && may_be_a_lie) return network_.reset_link(node.id, from);
  if (!fits) {
    checker_.fail("a block of transfer " + std::to_string(block->transfer.value) +
                  " does not fit into what was opened for it");
    return;
  }
  if (at->second.landed[index.value] && !may_be_a_lie) {
    checker_.fail("block " + std::to_string(index.value) + " of transfer " +
                  std::to_string(block->transfer.value) + " came twice");
  }
  at->second.landed[index.value] = true;
  const Extent place = place_of(open, index);
  if (place.offset + place.size_bytes > open.base.offset + open.base.size_bytes) {
    checker_.fail("a block lands outside of the range that was opened");
    return;
  }
  const auto into = bytes_at(node, place);
  std::copy(payload.begin(), payload.end(), into.begin());
  node.hops.set(place, hops);
  if (config_.canary == Canary::kFlipByte && ++canary_deeds_ == 3) into[0] ^= std::byte{1};
  const BlockLanded landed{open.from, open.transfer, index, block->crc32c};
  if (config_.trace) trace(node, describe(IoEvent{landed}));
  node.engine->handle_io(landed, clock_of(node));
}

}  // namespace hoplite::sim
