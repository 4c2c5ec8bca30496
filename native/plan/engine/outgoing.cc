// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/outgoing.h"

#include <cstring>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {

void Outgoing::reply(const Waiter& waiter, Reply reply) {
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
  if (actions_.empty()) return std::nullopt;
  Action action = std::move(actions_.front());
  actions_.pop_front();
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
  for (const Action& action : actions_) {
    if (const auto* fold = std::get_if<Fold>(&action)) queued += fold->from.size_bytes;
    if (const auto* end = std::get_if<Finish>(&action)) queued += end->from.size_bytes;
  }
  HOPLITE_CHECK(queued == fold_bytes_queued_);
}

}  // namespace hoplite
