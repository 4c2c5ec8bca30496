// SPDX-License-Identifier: Apache-2.0
// Messages between nodes about reduces and about transfers in flight, and the frames by which two
// nodes meet. Plain data. Reached through messages.h; bytes in docs/internals/wire.md.
#pragma once

#include <array>

#include "plan/messages/channel_messages.h"
#include "plan/messages/keeping_messages.h"
#include "plan/messages/peer_messages.h"

namespace hoplite {

// ---- reduce: from the target's home ----

struct ReduceOwn {  // to an owner: fold these members into these stripes
  ObjectId target;
  TargetEpoch target_epoch;
  ReduceOp op = ReduceOp::kSum;
  ObjectMeta meta;  // of the result, and of every member if it is no share
  Share share = {};
  std::uint16_t stripe_count = 1;
  std::vector<StripeIndex> owned;
  std::uint32_t source_count = 0;
  std::uint32_t count = 0;
  bool deterministic = false;
  bool everywhere = false;            // all nodes will read the result, so owners have more to send
  std::vector<ReduceSource> members;  // more of them; in a new epoch all that are known
  bool sealed = false;                // no further member will come in this epoch
  bool is_branch = false, is_unary = false;  // of another reduce, in one view; the root of a chain
  bool operator==(const ReduceOwn&) const = default;
};
enum class ReducePhase : std::uint8_t { kRunning = 0, kCommitted = 1, kFailed = 2 };
struct ReduceState {  // to the caller, the owners, and every holder or waiter of the target
  ObjectId target;
  TargetEpoch target_epoch;  // blocks of an older one are void
  ReducePhase phase = ReducePhase::kRunning;
  std::vector<std::uint32_t> members;  // indices, when committed
  std::vector<std::uint32_t> lost;     // indices, so far
  NodeId caller;                       // the result is an orphan when this node is dead
  Code code = Code::kOk;
  std::string text;
  bool operator==(const ReduceState&) const = default;
};

// ---- receiver to sender, and back; the frame's transfer id names the edge ----

struct PullStart {  // asks for the blocks = stripe (mod stripe_count), from the n-th on
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  std::uint16_t stripe_count = 1;
  StripeIndex stripe;
  std::uint32_t from = 0;
  std::uint32_t credits = 0;  // blocks that the sender may send until Credit comes
  bool is_range = false;      // of this range of the object, as if it were an object
  Extent range = {};
  std::uint32_t block_bytes = 0;    // of the range; at least 1
  std::vector<Beside> beside = {};  // combined with the blocks of all these
  ReduceOp op = ReduceOp::kSum;     // ... by this
  bool of_branch = false;           // of a reduce, whose ReduceOwn may still be on its way
  bool operator==(const PullStart&) const = default;
};
struct Credit {
  std::uint32_t blocks = 0;
  bool operator==(const Credit&) const = default;
};
struct PullStop {
  bool operator==(const PullStop&) const = default;
};
struct PullRefused {  // the sender can't (or can no longer) serve this transfer
  Code code = Code::kObjectLost;
  bool operator==(const PullRefused&) const = default;
};

using PeerMessage = std::variant<Claim, Delete, Locate, ReduceWant, ReduceReport, ResyncDone, Grant,
                                 Located, Push, PushTo, Lost, Drop, ReduceOwn, ReduceState,
                                 PullStart, Credit, PullStop, PullRefused, Orphan, Adopt, Standing,
                                 Progress, ResyncWanted, Deleted, ChannelClaim, ChannelQuestion,
                                 VersionAck, VersionOffer, VersionNews, ChannelAnswer, MakeExcerpt>;

// A message with what every frame carries. The payload of Claim, Push and Located travels beside
// it.
struct Message {
  Epoch view_epoch;
  TransferId transfer;
  TraceId trace;
  PeerMessage body;
  bool operator==(const Message&) const = default;
};

// The header of one block on a bulk connection; its bytes follow.
struct BlockHeader {
  Epoch view_epoch;
  TransferId transfer;
  TraceId trace;
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  std::uint64_t offset = 0;
  std::uint32_t size_bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const BlockHeader&) const = default;
};

// ---- how two nodes meet: Hello ->, <- Welcome, Proof ->; each proves that it has the ticket ----

enum class ConnectionKind : std::uint8_t { kControl = 0, kBulk = 1, kLiveness = 2 };
inline constexpr std::uint64_t kFeatureNone = 0;
using Nonce = std::array<std::uint8_t, 16>;
using Mac = std::array<std::uint8_t, 32>;  // HMAC-SHA256; docs/internals/wire.md: what it covers

struct Hello {
  std::uint16_t wire_version = kWireVersion;
  std::uint64_t features = kFeatureNone;
  NodeId from;
  Incarnation from_incarnation;
  NodeId to;
  Incarnation to_incarnation;
  ConnectionKind kind = ConnectionKind::kControl;
  RailId rail;
  std::uint32_t attempt = 0;  // the link's lives, counted by the dialler; equal in one life
  Nonce nonce{};
  bool operator==(const Hello&) const = default;
};
struct Welcome {
  std::uint16_t wire_version = kWireVersion;
  std::uint64_t features = kFeatureNone;
  Incarnation incarnation;  // of the answering node: tells a restart from the node that was dialled
  Nonce nonce{};
  Mac proof{};
  bool operator==(const Welcome&) const = default;
};
struct Proof {
  Mac proof{};
  bool operator==(const Proof&) const = default;
};
struct CloseRail {  // no node sends it; accepted and ignored
  RailId rail;
  bool operator==(const CloseRail&) const = default;
};
struct Goodbye {  // the sender leaves; what follows on its connections is not a death
  bool operator==(const Goodbye&) const = default;
};
struct Pulse {  // on connections of liveness: the sender's process runs
  bool operator==(const Pulse&) const = default;
};
using LinkFrame = std::variant<Hello, Welcome, Proof, CloseRail, Goodbye, Pulse>;

}  // namespace hoplite
