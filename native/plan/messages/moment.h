// SPDX-License-Identifier: Apache-2.0
// What a node tells people: moments in the life of an object, as it remembers them, and rows of
// what is here. Plain data: node/object_trace.h keeps moments, the engine only passes a question
// through. Reached through messages.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/messages/channel_messages.h"
#include "plan/messages/types.h"

namespace hoplite {

// The kind of event, and the meaning of a moment's `peer`, `other`, `bytes` and `since`. `peer` is
// kNoNode in a moment that has none.
enum class MomentKind : std::uint8_t {
  kReserved,    // a large put has its range: `bytes` of it, `since` it was asked for
  kSealed,      // put: readable from now on
  kGot,         // a get was answered with `bytes`, `since` it was asked
  kFailed,      // a request was answered with `code`
  kWaits,       // a request, asked `since`, has no answer yet; told, not kept
  kWanted,      // `peer` has nothing of it and asks its home for it
  kGranted,     // its home lets `peer` have the stripe from `other`
  kReceiving,   // the stripe is asked of `peer`; told with `bytes`: what came so far, `since` when
  kFirstBlock,  // the stripe's first block has come from `peer`
  kReceived,    // no more of the stripe comes from `peer`: `bytes` came, the first at `since`
  kServing,     // `peer` asks for the stripe
  kRefused,     // `peer` can't serve it
  kPushing,     // a small object's bytes go to `peer`
  kPushed,      // a small object's bytes came from `peer`
  kLost,        // `peer`, its home, says that no node has it
  kDelete,      // a client, or `peer`, wants it deleted
  kDropped,     // its home, `peer`, says that its bytes go
  kOrphaned,    // its owner has died, or so `peer` says
  kAdopted,     // its home, `peer`, asks this node to keep it
  kSpilling,    // `bytes` go to the disk, in steps
  kReading,     // ... and come back
  kSpilled,     // `bytes` are done since `since`, either way; `code` if the disk refused
  kReduce,      // a client wants it made out of others
  kFolding,     // stripes of it are folded here, `peer` has planned it
  kCommitted,   // its sources are final, says `peer`
  kLinkDown,    // all under way between here and `peer` is void
  kDead,        // this life of `peer` has ended
};
inline constexpr std::size_t kMomentKinds = static_cast<std::size_t>(MomentKind::kDead) + 1;

struct Moment {
  ObjectId object;  // zeros: of whatever `peer` had to do with
  MomentKind kind = MomentKind::kSealed;
  Code code = Code::kOk;
  StripeIndex stripe;
  std::uint16_t stripe_count = 0;  // 0: of no stripe
  std::uint32_t process = 0;       // of the client; 0: none
  Instant at;
  Instant since = at;
  NodeId peer = kNoNode;
  NodeId other = kNoNode;
  std::uint64_t bytes = 0;
};

// The first hex digits of an object's id. None: no object.
struct ObjectPrefix {
  ObjectId id;  // zeros behind them
  std::uint8_t digits = 0;

  [[nodiscard]] bool covers(const ObjectId& other) const {
    for (std::size_t i = 0; i < digits / 2U; ++i) {
      if (other.bytes[i] != id.bytes[i]) return false;
    }
    return digits % 2 == 0 || other.bytes[digits / 2U] >> 4 == id.bytes[digits / 2U] >> 4;
  }
};

struct Remembered {  // of one node, in no order
  std::vector<Moment> moments;
  std::uint64_t kept_max = 0;   // 0: it keeps none
  std::uint64_t forgotten = 0;  // since it started, of all objects
  Instant oldest;               // everything since then is kept
};

struct ObjectRow {  // one object as ListCommand's answer shows it
  ObjectId object;
  Incarnation incarnation;
  std::uint64_t size_bytes = 0;
  const char* state = "";  // "whole", "partial", "writing", "spilled" or "wanted"
  bool pinned = false, orphaned = false;
  bool sole = false;  // True if this node knows of no other node that keeps it
  std::uint64_t mappings = 0, waiters = 0;
};
struct TransferRow {  // one stripe that comes in, for `target`: the object itself, or a reduce's
  ObjectId object;
  ObjectId target;
  const char* kind = "";  // "copy" or "member"
  NodeId sender;
  StripeIndex stripe;
  std::uint16_t stripe_count = 1;
  std::uint64_t landed_bytes = 0, size_bytes = 0;  // of this stripe of what is asked for
};
struct ChannelReader {        // a client's process that reads a channel, and what it has read last
  std::uint32_t process = 0;  // its own word, for people
  VersionNumber number;
  std::uint64_t version = 0;  // what its publisher calls it
  std::uint64_t ordinal = 0;  // its place among all versions of the channel, from 1 on
  std::uint64_t time_us = 0;  // since 1970, by its publisher's clock
  bool operator==(const ChannelReader&) const = default;
};
struct ReadCommand {  // has no answer; n = 0: the client reads that channel no more
  ObjectId channel;
  ChannelReader reader;
};
// Answered by ChannelsListed: a page of the live channels, in the order of their ids. Every member
// keeps the newest version of each.
struct ListChannelsCommand {
  ObjectId after;  // the last one of the page before; zeros: none
};
struct ChannelRow {
  ObjectId channel;
  Version newest;                      // that this node keeps; perhaps not visible yet
  bool is_home = false;                // True if this node is the channel's home
  std::vector<ChannelReader> readers;  // of this node
};
struct ChannelsListed {
  std::vector<ChannelRow> rows;
};
struct Listing {
  std::vector<ObjectRow> objects;
  std::vector<TransferRow> transfers;
  std::vector<ChannelRow> channels;  // a page of them
  Remembered remembered;
};

}  // namespace hoplite
