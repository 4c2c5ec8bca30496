// SPDX-License-Identifier: Apache-2.0
// One engine of which a test plays client and peer, message by message: for what must hold whatever
// a peer says, and in states that nodes wired together pass too quickly.
#pragma once

#include <variant>
#include <vector>

#include "plan/engine/engine_test.h"

namespace hoplite {

class OneEngine : public ::testing::Test {
 protected:
  static constexpr std::size_t kParkedMax = 64;
  static constexpr std::size_t kDeletesMaxHere = 8;
  static constexpr std::uint64_t kFoldBytesMaxHere = 64_KiB;

  // Node 1 of `nodes`, whose links are up; its object has its home at `home`.
  OneEngine(std::size_t nodes, NodeId home, WhenFull when_full = WhenFull::kWait)
      : id_(Nodes(nodes).object_at(home.value - 1)), engine_(config(when_full), 7) {
    std::vector<Member> members;
    for (std::uint64_t node = 1; node <= nodes; ++node) {
      members.push_back({NodeId{node}, Incarnation{1}, {}});
    }
    ask(SetViewCommand{Epoch{1}, members});
    for (std::uint64_t node = 2; node <= nodes; ++node) {
      engine_.handle_io(LinkUp{NodeId{node}, Incarnation{1}}, now_);
      hear(NodeId{node}, ResyncDone{});
    }
  }
  static EngineConfig config(WhenFull when_full) {
    EngineConfig config;
    config.when_full = when_full;
    config.node = NodeId{1};
    config.arena_bytes = 1_MiB;
    config.parked_messages_max = kParkedMax;
    config.deletes_max = kDeletesMaxHere;
    config.fold_bytes_max = kFoldBytesMaxHere;
    return config;
  }
  static ObjectMeta meta() {
    ObjectMeta meta = floats_meta(100'000);
    meta.block_bytes = 8192;
    return meta;
  }
  void hear(NodeId from, PeerMessage body, TransferId transfer = {}) {
    engine_.handle_io(MessageIn{from, Message{Epoch{1}, transfer, {}, std::move(body)}, {}}, now_);
    engine_.check_invariants();
  }
  RequestId ask(CommandBody body) {
    const RequestId request{++last_request_};
    engine_.handle_command({ClientId{1}, request, std::move(body)}, now_);
    engine_.check_invariants();
    return request;
  }
  void cancel(RequestId request) {  // about the object
    engine_.handle_command({ClientId{1}, request, CancelCommand{id_}}, now_);
    engine_.check_invariants();
  }
  void end_receive(const CloseReceive& closed) {
    engine_.handle_io(ReceiveClosed{closed.from, closed.transfer}, now_);
    engine_.check_invariants();
  }
  // Actions of type T since the last call of this or of `said`.
  template <typename T>
  std::vector<T> deeds() {
    std::vector<T> found;
    while (const auto action = engine_.poll_action()) {
      if (const auto* deed = std::get_if<T>(&*action)) found.push_back(*deed);
      const auto* closed = std::get_if<CloseReceive>(&*action);
      if (closed != nullptr && closes_at_once_) end_receive(*closed);
    }
    return found;
  }
  // Messages of type T that went out since then.
  template <typename T>
  std::vector<T> said() {
    std::vector<T> found;
    for (const SendMessage& sent : deeds<SendMessage>()) {
      if (const auto* body = std::get_if<T>(&sent.message.body)) {
        found.push_back(*body);
        transfer_ = sent.message.transfer;
      }
    }
    return found;
  }

  const ObjectId id_;
  const Instant now_{1'000'000};
  Engine engine_;
  TransferId transfer_;  // of the last message that `said` returned
  bool closes_at_once_ =
      true;  // False if the test says when a receive that is closed writes no more

 private:
  std::uint64_t last_request_ = 0;
};

}  // namespace hoplite
