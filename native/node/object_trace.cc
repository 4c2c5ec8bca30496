// SPDX-License-Identifier: Apache-2.0
#include "node/object_trace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace hoplite {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<CommandBody>> kCommands{
    "PutCommand",        "WroteCommand",        "GetCommand",          "ReleaseCommand",
    "DeleteCommand",     "ReduceCommand",       "ReduceSourceCommand", "CancelCommand",
    "ClientLostCommand", "SetViewCommand",      "ListCommand",         "OrphanCommand",
    "DrainCommand",      "EchoCommand",         "TakeTermCommand",     "PublishCommand",
    "WatchCommand",      "ListChannelsCommand", "RebuildCommand",      "ReadCommand",
    "KeepCommand",       "ExcerptCommand"};
constexpr std::array<std::string_view, std::variant_size_v<PeerMessage>> kMessages{
    "Claim",        "Delete",          "Locate",       "ReduceWant",
    "ReduceReport", "ResyncDone",      "Grant",        "Located",
    "Push",         "PushTo",          "Lost",         "Drop",
    "ReduceOwn",    "ReduceState",     "PullStart",    "Credit",
    "PullStop",     "PullRefused",     "Orphan",       "Adopt",
    "Standing",     "Progress",        "ResyncWanted", "Deleted",
    "ChannelClaim", "ChannelQuestion", "VersionAck",   "VersionOffer",
    "VersionNews",  "ChannelAnswer",   "MakeExcerpt"};
static_assert(!kCommands.back().empty() && !kMessages.back().empty(), "a new one needs its name");

// The object that a struct names, or null.
template <typename T>
const ObjectId* object_of(const T& value) {
  if constexpr (requires { value.object; }) {
    return &value.object;
  } else if constexpr (requires { value.target; }) {
    return &value.target;
  } else if constexpr (requires { value.header.object; }) {
    return &value.header.object;
  } else if constexpr (requires { value.excerpt.object; }) {
    return &value.excerpt.object;
  } else {
    return nullptr;
  }
}

template <typename... Ts>
const ObjectId* object_in(const std::variant<Ts...>& variant) {
  return std::visit([](const auto& value) { return object_of(value); }, variant);
}

void print(const ObjectId& object, std::string_view prefix, std::string_view kind) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string line = "trace ";
  for (const std::uint8_t byte : object.bytes) {
    line += kHex[byte >> 4];
    line += kHex[byte & 15];
  }
  line.append(" ").append(prefix).append(kind).append("\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// 0.4 MB; a client gathers some hundred objects at once.
constexpr std::size_t kPendingReplies = 4096;
constexpr std::size_t kPeersKept = 256;      // nodes die less often than objects
constexpr std::size_t kMomentsMax = 20'000;  // 2 MB of control message

Moment moment_of(const ObjectId& object, MomentKind kind, Instant at, NodeId peer = kNoNode) {
  Moment moment;
  moment.object = object;
  moment.kind = kind;
  moment.at = moment.since = at;
  moment.peer = peer;
  return moment;
}

// Returns the moment that a command's answer becomes, if it is no error.
MomentKind answer_kind(const CommandBody& command) {
  if (std::holds_alternative<GetCommand>(command)) return MomentKind::kGot;
  if (std::holds_alternative<RebuildCommand>(command)) return MomentKind::kGot;
  if (std::holds_alternative<ExcerptCommand>(command)) return MomentKind::kGot;
  if (std::holds_alternative<DeleteCommand>(command)) return MomentKind::kDelete;
  if (std::holds_alternative<OrphanCommand>(command)) return MomentKind::kOrphaned;
  if (std::holds_alternative<ReduceCommand>(command)) return MomentKind::kCommitted;
  return MomentKind::kSealed;
}

// Returns the moment of a control message that needs only its sender; nullopt: the message is not
// recorded.
std::optional<MomentKind> kind_of(const PeerMessage& message) {
  if (const auto* claim = std::get_if<Claim>(&message)) {
    if (claim->wants && claim->stripes.empty()) return MomentKind::kWanted;
    return std::nullopt;
  }
  if (const auto* state = std::get_if<ReduceState>(&message)) {
    if (state->phase == ReducePhase::kCommitted) return MomentKind::kCommitted;
    return std::nullopt;
  }
  if (std::holds_alternative<Delete>(message)) return MomentKind::kDelete;
  if (std::holds_alternative<Drop>(message)) return MomentKind::kDropped;
  if (std::holds_alternative<Lost>(message)) return MomentKind::kLost;
  if (std::holds_alternative<Orphan>(message)) return MomentKind::kOrphaned;
  if (std::holds_alternative<Adopt>(message)) return MomentKind::kAdopted;
  if (std::holds_alternative<ReduceOwn>(message)) return MomentKind::kFolding;
  return std::nullopt;
}

}  // namespace

ObjectTrace::ObjectTrace(std::int64_t moments_max, bool prints)
    : is_on_(moments_max > 0 || prints),
      keeps_(moments_max > 0),
      prints_(prints),
      lives_(static_cast<std::size_t>(moments_max)),
      gets_(keeps_ ? static_cast<std::size_t>(moments_max / 2 + 1) : 0),
      peers_(keeps_ ? kPeersKept : 0),
      pending_(is_on_ ? kPendingReplies : 0) {}

Remembered ObjectTrace::moments_of(const ObjectPrefix& prefix) const {
  Remembered remembered;
  if (!keeps_ || prefix.digits == 0) return remembered;
  const auto matches = [&prefix](const Moment& each) { return prefix.covers(each.object); };
  lives_.append_to(matches, remembered);
  gets_.append_to(matches, remembered);
  for (const PendingReply& pending : pending_) {
    if (pending.request == RequestId{0} || !matches(pending.moment)) continue;
    remembered.moments.push_back(pending.moment);
    remembered.moments.back().kind = MomentKind::kWaits;
  }
  for (const auto& [from, receive] : receives_) {
    if (receive.bytes == 0 || !matches(receive.moment)) continue;
    remembered.moments.push_back(receive.moment);
    remembered.moments.back().since = receive.first;
    remembered.moments.back().at = receive.last;
    remembered.moments.back().bytes = receive.bytes;
  }
  if (remembered.moments.size() > kMomentsMax) {
    remembered.forgotten += remembered.moments.size() - kMomentsMax;
    std::nth_element(remembered.moments.begin(), remembered.moments.begin() + kMomentsMax,
                     remembered.moments.end(),
                     [](const Moment& a, const Moment& b) { return b.at < a.at; });
    remembered.moments.resize(kMomentsMax);
  }
  const std::uint64_t forgotten = remembered.forgotten;  // a forgotten death hides no object
  peers_.append_to([](const Moment&) { return true; }, remembered);
  remembered.forgotten = forgotten;
  return remembered;
}

void ObjectTrace::record_command(const Command& command, std::uint32_t process, Instant now) {
  if (std::holds_alternative<ClientLostCommand>(command.body)) {
    for (PendingReply& pending : pending_) {
      if (pending.client == command.client) pending.request = RequestId{0};
    }
  }
  const ObjectId* object = object_in(command.body);
  if (object == nullptr) return;
  if (prints_) print(*object, "", kCommands[command.body.index()]);
  // Each get has a release, and a cancel is answered as the request that it ends.
  if (std::holds_alternative<ReleaseCommand>(command.body)) return;
  if (std::holds_alternative<CancelCommand>(command.body)) return;
  Moment moment = moment_of(*object, answer_kind(command.body), now);
  moment.process = process;
  if (const auto* put = std::get_if<PutCommand>(&command.body)) moment.bytes = put->meta.size_bytes;
  if (const auto* wrote = std::get_if<WroteCommand>(&command.body)) {
    moment.bytes = wrote->upto_bytes;
  }
  if (std::holds_alternative<ReduceCommand>(command.body)) {
    Moment begun = moment;
    begun.kind = MomentKind::kReduce;
    keep(begun);
  }
  if (moment.kind == MomentKind::kDelete || moment.kind == MomentKind::kOrphaned) keep(moment);
  if (command.request == RequestId{0}) return;
  reply_slot(command.client, command.request) = {command.client, command.request, moment};
}

void ObjectTrace::record_event(const IoEvent& event, Instant now) {
  if (const auto* in = std::get_if<MessageIn>(&event)) record_message_in(*in, now);
  if (const auto* landed = std::get_if<BlockLanded>(&event)) record_block(*landed, now);
  if (!keeps_) return;
  if (const auto* down = std::get_if<LinkDown>(&event)) {
    peers_.keep(moment_of({}, MomentKind::kLinkDown, now, down->node));
  }
  if (const auto* dead = std::get_if<PeerDead>(&event)) {
    peers_.keep(moment_of({}, MomentKind::kDead, now, dead->node));
  }
  if (const auto* done = std::get_if<SpillDone>(&event)) record_spill_done(*done, now);
}

void ObjectTrace::record_action(const Action& action, Instant now) {
  if (const auto* send = std::get_if<SendMessage>(&action)) record_message_out(*send, now);
  if (const auto* reply = std::get_if<ReplyToClient>(&action)) record_reply(*reply, now);
  if (const auto* close = std::get_if<CloseReceive>(&action)) record_close(*close, now);
  if (const auto* job = std::get_if<SpillJob>(&action)) record_spill(*job, now);
  if (const auto* block = std::get_if<SendBlock>(&action); block != nullptr && prints_) {
    print(block->header.object, "", "SendBlock");
  }
  if (const auto* open = std::get_if<OpenReceive>(&action)) {
    if (prints_) print(open->object, "", "OpenReceive");
    Moment moment = moment_of(open->object, MomentKind::kReceiving, now, open->from);
    moment.stripe = open->stripe;
    moment.stripe_count = open->stripe_count;
    keep(moment);
    receives_[{open->from, open->transfer}] = {moment, open->meta};
  }
}

void ObjectTrace::record_message_in(const MessageIn& in, Instant now) {
  const PeerMessage& body = in.message.body;
  if (std::holds_alternative<PullRefused>(body)) {
    const auto receive = receives_.find({in.from, in.message.transfer});
    if (receive == receives_.end()) return;
    Moment moment = receive->second.moment;
    moment.kind = MomentKind::kRefused;
    moment.at = moment.since = now;
    return keep(moment);
  }
  const ObjectId* object = object_in(body);
  if (object == nullptr) return;
  if (prints_) print(*object, "in:", kMessages[body.index()]);
  if (!in.payload.empty()) {
    Moment moment = moment_of(*object, MomentKind::kPushed, now, in.from);
    moment.bytes = in.payload.size();
    keep(moment);
  }
  if (const auto* start = std::get_if<PullStart>(&body)) {
    Moment moment = moment_of(*object, MomentKind::kServing, now, in.from);
    moment.stripe = start->stripe;
    moment.stripe_count = start->stripe_count;
    keep(moment);
  }
  if (const auto kind = kind_of(body)) keep(moment_of(*object, *kind, now, in.from));
}

void ObjectTrace::record_message_out(const SendMessage& out, Instant now) {
  const PeerMessage& body = out.message.body;
  const ObjectId* object = object_in(body);
  if (object == nullptr) return;
  if (prints_) print(*object, "out:", kMessages[body.index()]);
  if (const auto* grant = std::get_if<Grant>(&body)) {
    for (const StripeLease& lease : grant->leases) {
      Moment moment = moment_of(*object, MomentKind::kGranted, now, out.to);
      moment.stripe = lease.stripe;
      moment.stripe_count = grant->stripe_count;
      moment.other = lease.sender;
      keep(moment);
    }
  }
  if (out.payload && out.payload->size_bytes > 0) {
    Moment moment = moment_of(*object, MomentKind::kPushing, now, out.to);
    moment.bytes = out.payload->size_bytes;
    keep(moment);
  }
}

void ObjectTrace::record_block(const BlockLanded& landed, Instant now) {
  const auto found = receives_.find({landed.from, landed.transfer});
  if (found == receives_.end()) return;
  Receive& receive = found->second;
  if (prints_) print(receive.moment.object, "", "BlockLanded");
  const std::uint64_t bytes = block_extent(receive.meta, landed.block).size_bytes;
  receive.last = now;
  if (receive.bytes == 0) {
    receive.first = now;
    Moment first = receive.moment;
    first.kind = MomentKind::kFirstBlock;
    first.at = first.since = now;
    first.bytes = bytes;
    keep(first);
  }
  receive.bytes += bytes;
}

void ObjectTrace::record_close(const CloseReceive& close, Instant now) {
  const auto found = receives_.find({close.from, close.transfer});
  if (found == receives_.end()) return;
  const Receive& receive = found->second;
  if (prints_) print(receive.moment.object, "", "CloseReceive");
  Moment moment = receive.moment;
  moment.kind = MomentKind::kReceived;
  moment.bytes = receive.bytes;
  moment.since = receive.bytes > 0 ? receive.first : now;
  moment.at = receive.bytes > 0 ? receive.last : now;
  keep(moment);
  receives_.erase(found);
}

void ObjectTrace::record_reply(const ReplyToClient& reply, Instant now) {
  PendingReply& pending = reply_slot(reply.client, reply.request);
  if (pending.client != reply.client || pending.request != reply.request) return;
  if (prints_) print(pending.moment.object, "", "ReplyToClient");
  Moment moment = pending.moment;
  moment.at = now;
  pending.request = RequestId{0};
  if (const auto* fetched = std::get_if<Fetched>(&reply.reply)) {
    moment.bytes = fetched->meta.size_bytes;
  } else if (std::holds_alternative<Reserved>(reply.reply)) {
    moment.kind = MomentKind::kReserved;
  } else if (const auto error = error_of(reply.reply)) {
    moment.kind = MomentKind::kFailed;
    moment.code = error->code;
  } else if (moment.kind == MomentKind::kDelete || moment.kind == MomentKind::kOrphaned) {
    return;  // recorded at the request
  }
  keep(moment);
}

// A spill has many steps, and one moment for its begin and one for its end.
void ObjectTrace::record_spill(const SpillJob& job, Instant now) {
  if (!keeps_) return;
  if (job.way == SpillWay::kFree) return record_freed(job, now);
  const auto [found, is_first] = spills_.try_emplace(job.spill);
  Spill& spill = found->second;
  spill.step_bytes = job.file.size_bytes;
  if (!is_first) return;
  const bool is_written = job.way == SpillWay::kWrite;
  spill.moment =
      moment_of(job.object, is_written ? MomentKind::kSpilling : MomentKind::kReading, now);
  spill.moment.bytes = job.whole_bytes;
  spill.file = {job.file.offset, job.whole_bytes};
  keep(spill.moment);
}

void ObjectTrace::record_spill_done(const SpillDone& done, Instant now) {
  const auto found = spills_.find(done.spill);
  if (found == spills_.end()) return;
  if (!done.error.empty()) return end_spill(done.spill, Code::kSystem, now);
  Spill& spill = found->second;
  spill.done_bytes += std::exchange(spill.step_bytes, 0);
  if (spill.is_cut || spill.done_bytes == spill.file.size_bytes) {
    end_spill(done.spill, Code::kOk, now);
  }
}

// An object that is dropped meanwhile has no further step. Its range in the file is freed: of a
// read at once, and of a write when the disk has ended its step.
void ObjectTrace::record_freed(const SpillJob& job, Instant now) {
  const auto found = std::ranges::find_if(
      spills_, [&job](const auto& each) { return each.second.file.offset == job.file.offset; });
  if (found == spills_.end()) return;
  if (found->second.step_bytes > 0) {
    found->second.is_cut = true;
  } else {
    end_spill(found->first, Code::kOk, now);
  }
}

void ObjectTrace::end_spill(SpillId spill, Code code, Instant now) {
  const auto ended = spills_.extract(spill);
  Moment moment = ended.mapped().moment;
  moment.kind = MomentKind::kSpilled;
  moment.at = now;
  moment.bytes = ended.mapped().done_bytes;
  moment.code = code;
  keep(moment);
}

void ObjectTrace::keep(const Moment& moment) {
  if (keeps_) (moment.kind == MomentKind::kGot ? gets_ : lives_).keep(moment);
}

ObjectTrace::PendingReply& ObjectTrace::reply_slot(ClientId client, RequestId request) {
  return pending_[(client.value * 611 + request.value) % kPendingReplies];
}

}  // namespace hoplite
