// SPDX-License-Identifier: Apache-2.0
// Messages between nodes. Most are declarative: a Claim is everything one node has and wants of one
// object, so that losing, repeating or reordering claims across a reconnect or a new view does no
// harm (design decision 2). Plain data, reached through messages.h; bytes: docs/internals/wire.md.
#pragma once

#include <variant>
#include <vector>

#include "plan/messages/share.h"

namespace hoplite {

enum class StripeState : std::uint8_t {
  kIdle = 0,       // nothing comes in; `sender` is the last one that failed, or none
  kReceiving = 1,  // from `sender`, under `lease`
  kRoot = 2,       // produced here: a put that is being written, a reduce that is being folded
  kComplete = 3,
};

struct StripeClaim {
  StripeIndex stripe;
  StripeState state = StripeState::kIdle;
  LeaseId lease;  // the last one seen for this stripe; an older one than the home's is stale news
  NodeId sender;
  std::uint32_t ready = 0;  // leading blocks of the stripe that are here
  bool operator==(const StripeClaim&) const = default;
};

// ---- to the home of an object (its directory shard) ----

struct Claim {  // all that its sender has and wants; a put's payload are a small object's bytes
  ObjectId object;
  Incarnation incarnation;   // 0: has nothing, knows nothing
  TargetEpoch target_epoch;  // of a reduce's result; 0 otherwise
  ObjectMeta meta;           // block_bytes 0: not known
  bool wants = false;
  bool exists = false;         // with wants: it was put, so an object without holders is a loss
  bool pinned = false;         // the copy that put() made, or that is adopted
  bool orphaned = false;       // its owner has died: it is evicted before every other copy
  bool elsewhere = false;      // of a draining node: another node keeps it, as far as is known
  bool committed = true;       // false: result of a reduce that is still tentative
  bool excerpt = false;        // True if it can be made again of another object
  NodeId owner = kNoNode;      // of an adopted object: the node that reports its last reference
  std::uint8_t copies = 0;     // nodes that are to keep it; it then has no owner. 0: it has one
  bool awaits_copies = false;  // a client of the sender waits until as many nodes keep it
  std::vector<StripeClaim> stripes;  // as many as the object's broadcast has; empty: has nothing
  bool operator==(const Claim&) const = default;
};
struct Delete {  // everywhere, and refuse late bytes; repeated until Deleted answers it
  ObjectId object;
  Incarnation upto;  // this attempt's bytes and older ones; 0: all there is
  bool operator==(const Delete&) const = default;
};
struct Locate {  // asynchronous: answered by Located or Lost, once there is an answer
  ObjectId object;
  Incarnation incarnation;      // 0: any
  NodeId failed;                // this holder could not serve; none: kNoNode
  bool exists = true;           // it was put: without holders it is lost; else not there yet
  std::uint32_t bytes_max = 0;  // answer with its bytes, if the home has it and it is no larger
  bool operator==(const Locate&) const = default;
};
struct ReduceSource {
  std::uint32_t index = 0;  // position in the caller's list
  ObjectId object;
  Incarnation incarnation;  // 0: any
  bool failed = false;      // it will never come; `object` means nothing
  NodeId holder = kNoNode;  // has all of it, as far as is known
  bool is_branch = false;   // of the reduce: made by `holder`, the only node that has it
  bool operator==(const ReduceSource&) const = default;
};
struct ReduceWant {  // from the caller to the planner; repeated whole to a new home
  ObjectId target;
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t source_count = 0;
  std::uint32_t count = 0;
  std::uint32_t first = 0;              // arrival position of confirmed[0]
  std::vector<ReduceSource> confirmed;  // in the order of arrival
  TargetEpoch seen;                     // highest target epoch the caller knows
  bool everywhere = false;     // the caller's node owns stripes too: the result is wanted on all
  bool deterministic = false;  // combined along a fixed tree over the source index
  bool is_callers = false;     // planned by its caller's node, which tells the home how it ends
  Share share = {};
  ObjectMeta meta = {};  // of the result, if it is a share or its caller's; else as its sources are
  bool operator==(const ReduceWant&) const = default;
};
struct ReduceReport {  // an owner or the caller, to the target's home
  ObjectId target;
  TargetEpoch target_epoch;
  ObjectMeta meta;                       // of the result; block_bytes 0: not known yet
  std::vector<StripeIndex> folded;       // owned stripes that hold every sealed member
  std::vector<std::uint32_t> lost;       // members (by index) that no node holds any more
  std::vector<std::uint32_t> committed;  // members of a committed result, told to a new home
  NodeId caller;                         // ... and whose result it is
  Code code = Code::kOk;                 // not kOk: this owner can't go on, or for its caller ended
  std::string text;
  bool operator==(const ReduceReport&) const = default;
};
// ---- from the home ----

struct StripeLease {  // receive `stripe` from `sender`
  StripeIndex stripe;
  NodeId sender;
  LeaseId lease;
  bool operator==(const StripeLease&) const = default;
};
struct Grant {  // all leases of the object's stripes that its receiver gets at once
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  std::uint16_t stripe_count = 1;
  std::vector<StripeLease> leases;
  bool operator==(const Grant&) const = default;
};
struct Located {  // its bytes follow as the payload where they were asked for and are there
  ObjectId object;
  Incarnation incarnation;  // 0: it isn't there yet; another answer follows when it is
  ObjectMeta meta;
  NodeId sender;
  bool operator==(const Located&) const = default;
};
struct Push {  // a small object's bytes (the payload); pass them on to `forward`
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  std::vector<NodeId> forward;
  bool operator==(const Push&) const = default;
};
struct PushTo {  // the home to a holder, which pushes its copy to these
  ObjectId object;
  Incarnation incarnation;
  std::vector<NodeId> receivers;
  bool operator==(const PushTo&) const = default;
};
struct Lost {  // answers a Claim that wants, or a Locate; of a holder: no room to read it back
  ObjectId object;
  Code code = Code::kObjectLost;
  std::string text;
  bool operator==(const Lost&) const = default;
};
struct Drop {  // the receiver frees its copy: it was deleted, or a newer attempt replaces it
  ObjectId object;
  Incarnation upto;
  bool deleted = true;  // then the answer is a claim of what is left
  bool operator==(const Drop&) const = default;
};

}  // namespace hoplite
