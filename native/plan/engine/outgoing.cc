// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/outgoing.h"

#include <cstring>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {
namespace {

constexpr std::size_t kPerformedMax = 1024;  // that stay in front of a queue which never ends
constexpr std::size_t kKeptMax = 4096;       // actions, 1 MiB, for which the queue keeps memory

}  // namespace

void Outgoing::reply(const Waiter& waiter, Reply reply) {
  if (waiter.client == kThisNode) {
    return engine_.rebuilds.note_answer(waiter.request, std::move(reply));
  }
  act(ReplyToClient{waiter.client, waiter.request, std::move(reply)});
}

void Outgoing::send(NodeId to, PeerMessage body, TransferId transfer,
                    std::optional<Extent> payload) {
  Message message{engine_.peers.view().epoch(), transfer, {}, std::move(body)};
  std::visit(
      [&](const auto& m) {
        if constexpr (requires { m.object; }) {
          std::memcpy(&message.trace.value, m.object.bytes.data(), sizeof message.trace.value);
        } else if constexpr (requires { m.target; }) {
          std::memcpy(&message.trace.value, m.target.bytes.data(), sizeof message.trace.value);
        }
      },
      message.body);
  if (to == engine_.config.node) {
    loop_.push_back(std::move(message));
  } else if (links_.contains(to)) {  // else: Peers repeats everything when the link is up
    act(SendMessage{to, std::move(message), payload});
  }
}

std::optional<Action> Outgoing::poll_action() {
  if (action_count() == 0) return std::nullopt;
  Action action = std::move(actions_[performed_++]);
  if (performed_ == actions_.size()) {
    actions_.clear();
    if (actions_.capacity() > kKeptMax) std::vector<Action>().swap(actions_);
    performed_ = 0;
  } else if (performed_ >= kPerformedMax && 2 * performed_ >= actions_.size()) {
    actions_.erase(actions_.begin(), actions_.begin() + static_cast<std::ptrdiff_t>(performed_));
    performed_ = 0;
  }
  if (const auto* fold = std::get_if<Fold>(&action)) fold_bytes_queued_ -= fold->from.size_bytes;
  if (const auto* end = std::get_if<Finish>(&action)) fold_bytes_queued_ -= end->from.size_bytes;
  return action;
}

void Outgoing::begin_turn() {
  const std::uint64_t most = engine_.config.fold_bytes_max;
  fold_bytes_left_ = most - std::min(most, fold_bytes_queued_);
}

std::optional<Message> Outgoing::poll_own_message() {
  if (loop_.empty()) return std::nullopt;
  Message message = std::move(loop_.front());
  loop_.pop_front();
  return message;
}

void Outgoing::check_invariants() const {
  std::uint64_t queued = 0;
  for (std::size_t i = performed_; i < actions_.size(); ++i) {
    const Action& action = actions_[i];
    if (const auto* fold = std::get_if<Fold>(&action)) queued += fold->from.size_bytes;
    if (const auto* end = std::get_if<Finish>(&action)) queued += end->from.size_bytes;
  }
  HOPLITE_CHECK(queued == fold_bytes_queued_);
}

}  // namespace hoplite
