// SPDX-License-Identifier: Apache-2.0
// The engine's whole border: Command in from clients, IoEvent in from io/, Action out, and (from
// transfer_messages.h) the Message that travels between nodes. Plain structs in std::variant; the
// one header of plan/ that wire/, io/, node/ and client/ know.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "plan/messages/commands.h"
#include "plan/messages/engine_config.h"
#include "plan/messages/transfer_messages.h"

namespace hoplite {

// A visitor of messages, events or actions, made of one lambda for each.
template <typename... Handlers>
struct Visitor : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Visitor(Handlers...) -> Visitor<Handlers...>;  // clang 14 needs to be told

// ---- IoEvent: what io/ has seen ----

struct MessageIn {
  NodeId from;
  Message message;
  Bytes payload;
};
struct BlockLanded {  // placed in the arena, checksum right
  NodeId from;
  TransferId transfer;
  BlockIndex block;
  std::uint32_t crc32c = 0;
};
struct BlockSent {  // the kernel has taken it
  NodeId to;
  RailId rail;  // and ticket: those of its SendBlock
  std::uint64_t size_bytes = 0;
  BlockTicket ticket{};
};
struct ReceiveClosed {  // once for each CloseReceive: io/ writes nothing for it any more
  NodeId from;
  TransferId transfer;
};
struct LinkUp {  // control and bulk of at least one rail are open; also after a reconnect
  NodeId node;
  Incarnation incarnation;
};
struct LinkDown {  // all in flight on it is void, and no block is read for it; before PeerDead
  NodeId node;
};
struct PeerDead {  // this node ends all contact with this incarnation
  NodeId node;
  Incarnation incarnation;
  bool is_certain = true;  // its machine says that it has ended; otherwise the view decides
};
using IoEvent = std::variant<MessageIn, BlockLanded, BlockSent, ReceiveClosed, LinkUp, LinkDown,
                             PeerDead, SpillDone, RebuildDone>;

// ---- Action: what the engine wants done, in this order ----
// A range is lent to io/ by SendBlock until its BlockSent or LinkDown, by OpenReceive until its
// ReceiveClosed, by SpillJob until its SpillDone, by RebuildJob until its RebuildDone. The others
// are over when performed.

struct SendMessage {
  NodeId to;
  Message message;
  std::optional<Extent> payload;  // copied from the arena when this is performed
};
struct SendBlock {
  NodeId to;
  RailId rail;
  BlockHeader header;  // io/ fills in the crc32c if it is 0: not known
  Extent extent;
  BlockTicket ticket{};
};
// Lets blocks of `transfer` in: block b lands at base + offset, or, with `slots`, the n-th block of
// the stripe at base + (n mod slots) * block_bytes.
struct OpenReceive {
  TransferId transfer;
  NodeId from;
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  std::uint16_t stripe_count = 1;
  StripeIndex stripe;
  Extent base;
  std::uint32_t slots = 0;
};
struct CloseReceive {  // a block in hand may still be written; later ones are thrown away
  TransferId transfer;
  NodeId from;
};
struct Fold {  // into = first ? from : op(into, from), element by element; over when performed
  Extent into;
  Extent from;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool first = false;
};
struct Finish {  // from accumulators: a mean is divided, a half rounded; over when performed
  Extent into;
  Extent from;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t sources = 0;
};
struct WriteInline {  // over when performed
  Extent extent;
  Bytes payload;
};
struct ReplyToClient {
  ClientId client;
  RequestId request;
  Reply reply;
};
struct Connect {
  Member member;
};
struct Disconnect {  // when performed, no block is read for the node any more
  NodeId node;
};
struct ReportDeath {  // to the control plane, which proposes a view without it
  NodeId node;
  Incarnation incarnation;
};
struct TellListing {  // answers ListCommand; node/ fills in the moments of `traced`
  RequestId request;
  Listing listing;
  ObjectPrefix traced;
};
struct ReportDrained {};  // no object is kept only here any more; sent again after later puts
using Action = std::variant<SendMessage, SendBlock, OpenReceive, CloseReceive, Fold, Finish,
                            WriteInline, ReplyToClient, Connect, Disconnect, ReportDeath,
                            TellListing, ReportDrained, SpillJob, RebuildJob>;

// True if the message names an attempt and a shape, as all bytes that exist have.
template <typename M>
[[nodiscard]] constexpr bool names_bytes(const M& message) {
  return message.incarnation.value > 0 && message.meta.block_bytes > 0;
}

}  // namespace hoplite
