// SPDX-License-Identifier: Apache-2.0
// Commands of clients and the control plane to their own node, and the answers. Plain data. Reached
// through messages.h; bytes on the local socket in docs/internals/wire.md.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "plan/messages/job_messages.h"
#include "plan/messages/moment.h"
#include "plan/messages/transfer_messages.h"

namespace hoplite {

// ---- Command: a request of a client or the control plane to its own node ----

struct PutCommand {  // small: `payload` holds the bytes; large: answered by Reserved, then written
  ObjectId object;
  Incarnation incarnation;
  ObjectMeta meta;  // block_bytes is filled in here
  Bytes payload;
};
// Progress of a large put: bytes [0, upto) are in the arena. When that is all bytes, the object is
// sealed and the put answered.
struct WroteCommand {
  ObjectId object;
  Incarnation incarnation;
  std::uint64_t upto_bytes = 0;
  // True if the writer keeps its mapping. The answer is then Fetched, as for a get, instead of
  // Done. If the put is gone, the writer keeps the range until it cancels the put.
  bool pin = false;
  // CRC-32C of blocks from `first_block` on, made with the copy. None: the sender makes them.
  BlockIndex first_block = {};
  std::vector<std::uint32_t> sums = {};
};
// The upto_bytes of a get that waits for the whole object.
inline constexpr std::uint64_t kAllBytes = ~std::uint64_t{0};
struct GetCommand {
  ObjectId object;
  bool exists = false;  // True if it was put: without a holder it is lost, not awaited
  // The leading bytes that it waits for. The answer comes when they are here, while the rest may
  // still arrive; of a small object, and of a result of a reduce, when all bytes are here. Only a
  // get of all bytes keeps the object coming after its answer (decision 49).
  std::uint64_t upto_bytes = kAllBytes;
};
struct ReleaseCommand {  // one mapping of `object` is gone
  ObjectId object;
  Incarnation incarnation;
};
struct DeleteCommand {
  ObjectId object;
  Incarnation upto;  // this attempt and older ones; 0: all attempts
};
struct ReduceCommand {
  ObjectId target;
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t source_count = 0;
  std::uint32_t count = 0;
  bool everywhere = false;     // True if all nodes fold, because all will read it
  bool deterministic = false;  // True for equal bits in any order of arrival
  Share share = {};
  ObjectMeta meta = {};  // of the result, if it is a share; block_bytes is filled in here
};
// A source of a reduce. The order of confirmed sources is the order of arrival. A source that is
// not confirmed counts once some node has it, in the order in which the directory hears of it.
struct ReduceSourceCommand {
  ObjectId target;
  ReduceSource source;
  bool confirmed = true;
};
struct CancelCommand {  // takes back the request of this client with this command's request id
  ObjectId object;      // that it was about; a reduce's target
};
struct ClientLostCommand {};
struct SetViewCommand {  // from the control plane; oldest member first
  Epoch epoch;
  std::vector<Member> members;
};
struct OrphanCommand {  // its owner has died: readable, and evicted before every other copy
  ObjectId object;
  Incarnation upto;  // as DeleteCommand's
};
// Answered by Done once `copies` nodes keep the object, or all where there are fewer. No process
// owns it any more: it stays until it is deleted. REQUIRES: it was put here, or is being put.
struct KeepCommand {
  ObjectId object;
  Incarnation incarnation;
  std::uint8_t copies = 0;  // 1 to kCopiesMax
};
struct EchoCommand {};   // answered by Done, behind the answers that earlier requests have by now
struct DrainCommand {};  // from the control plane: hand over what only this node keeps
struct ListCommand {     // from the control plane: what is here and comes in, the largest first
  std::uint64_t objects_max = 0, transfers_max = 0, channels_max = 0;
  ObjectPrefix traced = {};          // and what the node remembers of these
  std::vector<ObjectId> named = {};  // these objects in place of the largest; unknown ones left out
  ObjectId channels_after = {};      // as ListChannelsCommand's
};
using CommandBody =
    std::variant<PutCommand, WroteCommand, GetCommand, ReleaseCommand, DeleteCommand, ReduceCommand,
                 ReduceSourceCommand, CancelCommand, ClientLostCommand, SetViewCommand, ListCommand,
                 OrphanCommand, DrainCommand, EchoCommand, TakeTermCommand, PublishCommand,
                 WatchCommand, ListChannelsCommand, RebuildCommand, ReadCommand, KeepCommand,
                 ExcerptCommand>;
struct Command {
  ClientId client;
  RequestId request;
  CommandBody body;
};

// ---- the answers to commands ----

struct Reserved {  // write the object here, then say WroteCommand
  Extent extent;
  std::uint32_t block_bytes = 0;
};
struct Fetched {  // large: map `extent` and hold a pin until ReleaseCommand; small: copied, no pin
  Incarnation incarnation;
  ObjectMeta meta;
  Extent extent;
  bool mapped = false;
  std::uint64_t ready_bytes = 0;  // leading bytes that are here: all, unless the get takes fewer
};
struct Reduced {
  std::vector<std::uint32_t> members;
};
struct ReduceFailed {               // of code kReduceFailed: too few sources are left
  std::vector<std::uint32_t> lost;  // indices of the failed and lost sources, ascending
  std::string text;
};
struct Done {};
using Reply = std::variant<Reserved, Fetched, Reduced, Done, Error, ReduceFailed, TermTaken,
                           VersionSeen, VersionRefused, ChannelsListed>;

// Returns the error that a reply is; nothing if the command has succeeded.
[[nodiscard]] inline std::optional<Error> error_of(const Reply& reply) {
  if (const auto* error = std::get_if<Error>(&reply)) return *error;
  if (const auto* failed = std::get_if<ReduceFailed>(&reply))
    return Error{Code::kReduceFailed, failed->text};
  if (const auto* refused = std::get_if<VersionRefused>(&reply))
    return Error{Code::kVersionRefused, refused->text};
  return std::nullopt;
}

}  // namespace hoplite
