// SPDX-License-Identifier: Apache-2.0
#include "sim/check/fences.h"

#include <algorithm>

#include "sim/model/describe.h"

namespace hoplite::sim {
namespace {

// These are of a transfer, whose id is of one life of its receiver and never used twice.
bool is_of_a_transfer(const PeerMessage& body) {
  return std::holds_alternative<PullStart>(body) || std::holds_alternative<Credit>(body) ||
         std::holds_alternative<PullStop>(body) || std::holds_alternative<PullRefused>(body);
}

}  // namespace

bool Fences::is_void(const Message& message) const {
  return message.view_epoch < view_ && !is_of_a_transfer(message.body);
}

Fences::Breach Fences::check_message(const Message& message, bool is_taken) {
  if (const auto* grant = std::get_if<Grant>(&message.body); grant != nullptr && is_taken) {
    for (const StripeLease& each : grant->leases) {
      LeaseId& newest = granted_[{name_of(*grant, each.stripe), each.sender}];
      newest = std::max(newest, each.lease);
    }
  }
  if (!is_taken || !is_void(message)) return std::nullopt;
  return "goes by a message of view " + std::to_string(message.view_epoch.value) +
         ", though it has view " + std::to_string(view_.value) + ": " + describe(message);
}

Fences::Breach Fences::check_open(const OpenReceive& receive, bool do_peers_lie) {
  Receive& open = open_[{receive.from, receive.transfer}];
  open.opened = receive;
  const StripeName name = name_of(receive, receive.stripe);
  const auto granted = granted_.find({name, receive.from});
  const bool is_granted = granted != granted_.end() && receive.slots == 0;
  if (!is_granted) return std::nullopt;  // else its home is here, or the grant waited for its view
  const LeaseId lease = granted->second;
  opened_.insert(name);
  if (do_peers_lie) granted_.erase(granted);
  open.lease = lease;
  const auto before = ended_.find(name);
  if (before == ended_.end() || before->second < lease) return std::nullopt;
  return "goes by lease " + std::to_string(lease.value) + " of " + short_name(receive.object) +
         ", though it has lease " + std::to_string(before->second.value);
}

void Fences::note_close(const CloseReceive& receive) {
  const auto open = open_.find({receive.from, receive.transfer});
  if (open == open_.end()) return;
  if (open->second.lease) {
    const StripeName name = name_of(open->second.opened, open->second.opened.stripe);
    ended_[name] = *open->second.lease;
    closing_[open->first] = {name, *open->second.lease, {}, true};
  }
  open_.erase(open);
}

void Fences::note_receive_closed(const ReceiveClosed& receive) {
  const auto closing = closing_.extract({receive.from, receive.transfer});
  if (closing.empty() || closing.mapped().waiting.empty()) return;
  const Closing& closed = closing.mapped();
  for (const auto& [sender, lease] : closed.waiting) {
    LeaseId& newest = granted_[{closed.name, sender}];
    newest = std::max(newest, lease);
  }
  LeaseId& ended = ended_[closed.name];
  ended = std::max(ended, closed.lease);
}

Fences::Breach Fences::check_block(NodeId from, const BlockHeader& block) const {
  const auto open = open_.find({from, block.transfer});
  const bool is_meant = open != open_.end() && open->second.opened.object == block.object &&
                        open->second.opened.incarnation == block.incarnation &&
                        open->second.opened.target_epoch == block.target_epoch;
  if (is_meant) return std::nullopt;
  return "takes in a block of " + short_name(block.object) + ", attempt " +
         std::to_string(block.incarnation.value) + ", target epoch " +
         std::to_string(block.target_epoch.value) + ", though transfer " +
         std::to_string(block.transfer.value) +
         (open == open_.end() ? " is closed" : " is of other bytes");
}

void Fences::note_waiting(Closing& closing) {
  if (opened_.contains(closing.name)) return;
  const auto first = granted_.lower_bound({closing.name, NodeId{}});
  for (auto granted = first; granted != granted_.end(); ++granted) {
    const auto& [name, sender] = granted->first;
    if (name != closing.name) return;
    LeaseId& newest = closing.waiting[sender];
    newest = std::max(newest, granted->second);
  }
}

void Fences::end_turn() {
  for (auto& [transfer, closing] : closing_) {
    if (closing.is_of_this_turn || !closing.waiting.empty()) note_waiting(closing);
    closing.is_of_this_turn = false;
  }
  opened_.clear();
  granted_.clear();
  ended_.clear();
}

}  // namespace hoplite::sim
