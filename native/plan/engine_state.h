// All state of one node's engine, private to engine*.cc: the machines and the tables between them.
// Each handler changes tables and queues actions; settle() then lets what follows inside this node
// happen, until nothing more does. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/accumulator.h"
#include "plan/directory.h"
#include "plan/engine.h"
#include "plan/inventory.h"
#include "plan/local_object.h"
#include "plan/pull.h"
#include "plan/rails.h"
#include "plan/reduce_tree.h"
#include "plan/sender.h"

namespace hoplite {

inline constexpr std::size_t kFoldPullsMax = 2;  // decision 8: two sources per owner's downlink

class Engine::State {
 public:
  State(const EngineConfig& config, std::uint64_t seed);

  void begin(Instant now) { now_ = now; }
  void settle();
  void handle_timeout();

  // engine_commands.cc
  void on(const Command& command, const PutCommand& put);
  void on(const Command& command, const WroteCommand& wrote);
  void on(const Command& command, const GetCommand& get);
  void on(const Command& command, const ReleaseCommand& release);
  void on(const Command& command, const DeleteCommand& remove);
  void on(const Command& command, const ReduceCommand& reduce);
  void on(const Command& command, const ReduceSourceCommand& source);
  void on(const Command& command, const CancelCommand& cancel);
  void on(const Command& command, const ClientLostCommand& lost);
  void on(const Command& command, const SetViewCommand& view);

  // engine_io.cc
  void on(const MessageIn& event);
  void on(const BlockLanded& event);
  void on(const BlockSent& event);
  void on(const LinkUp& event);
  void on(const LinkDown& event);
  void on(const PeerDead& event);

  std::optional<Action> poll_action();
  [[nodiscard]] std::optional<Instant> poll_timeout() const;
  [[nodiscard]] EngineStats stats() const;
  void check_invariants() const;

 private:
  struct Retired {  // bytes that no name leads to any more, still mapped, being sent or written
    Extent extent;
    std::map<ClientId, std::uint32_t> pins;
    std::optional<Waiter> writer;  // of a put that was dropped: its client does not know yet
  };
  struct Tombstone {
    Incarnation upto;
    Instant until;
  };
  struct Call {  // the caller's side of a reduce
    Waiter waiter;
    ReduceWant want;                    // everything confirmed so far
    std::vector<ReduceSource> awaited;  // to be confirmed once some node has them
  };
  struct Folding {  // the owner's side of a reduce
    Accumulator accumulator;
    std::optional<Extent> slots;              // where remote blocks land before they are folded
    std::map<TransferId, std::size_t> pulls;  // -> which half of `slots`
    std::set<StripeIndex> reported;
    bool failed = false;
  };

  // messages from peers (engine_io.cc); `from` may be this node
  void receive(NodeId from, const Message& message, Bytes payload);
  void on(NodeId from, const Message& message, const Claim& claim);
  void on(NodeId from, const Message& message, const Delete& remove);
  void on(NodeId from, const Message& message, const Locate& locate);
  void on(NodeId from, const Message& message, const ReduceWant& want);
  void on(NodeId from, const Message& message, const ReduceReport& report);
  void on(NodeId from, const Message& message, const ResyncDone& done);
  void on(NodeId from, const Message& message, const Grant& grant);
  void on(NodeId from, const Message& message, const Located& located);
  void on(NodeId from, const Message& message, const Push& push);
  void on(NodeId from, const Message& message, const PushTo& push);
  void on(NodeId from, const Message& message, const Lost& lost);
  void on(NodeId from, const Message& message, const Drop& drop);
  void on(NodeId from, const Message& message, const ReduceOwn& own);
  void on(NodeId from, const Message& message, const ReduceState& state);
  void on(NodeId from, const Message& message, const PullStart& start);
  void on(NodeId from, const Message& message, const Credit& credit);
  void on(NodeId from, const Message& message, const PullStop& stop);
  void on(NodeId from, const Message& message, const PullRefused& refused);

  // what goes out (engine.cc)
  void send(NodeId to, PeerMessage body, TransferId transfer = {},
            std::optional<Extent> payload = {});
  void send_parcel(Parcel parcel);
  void reply(const Waiter& waiter, Reply reply);
  void claim(const ObjectId& id);
  void resync(std::optional<NodeId> only_to);
  void part_from(NodeId node);
  void admit();
  void pump();

  // objects (engine_objects.cc)
  void complete(const ObjectId& id, LocalObject& object);
  void answer_get(const ObjectId& id, LocalObject& object, const Waiter& waiter);
  void fail_waiters(LocalObject& object, Code code, const std::string& text);
  void store_small(const ObjectId& id, LocalObject& object, Bytes payload);
  void void_bytes(const ObjectId& id, LocalObject& object);
  void forget_if_empty(const ObjectId& id);
  void abandon(const ObjectId& id);
  void drop_object(const ObjectId& id, Incarnation upto, bool deleted);
  void unpin(const ObjectId& id, Incarnation incarnation, ClientId client, bool all);
  void free_retired();  // those that nobody maps, sends or writes any more
  void note_use(const ObjectId& id, const LocalObject& object);
  void on_admitted(const ObjectId& id, Extent extent);
  void on_refused(const ObjectId& id, std::uint64_t size_bytes);
  bool ask_range(const ObjectId& id, std::uint64_t size_bytes);
  [[nodiscard]] std::string full_text(const ObjectId& id, std::uint64_t size_bytes) const;
  [[nodiscard]] ObjectMeta cut(ObjectMeta meta) const;

  // transfers (engine_transfers.cc)
  void start_pull(const ObjectId& id, LocalObject& object, StripeIndex stripe, NodeId sender);
  void open_pull(TransferId transfer, Pull pull, const OpenReceive& receive);
  void end_pull(TransferId transfer, bool tell_sender);
  void fail_pull(TransferId transfer);
  void land_in_object(TransferId transfer, Pull& pull);
  void land_in_fold(Pull& pull, const Pull::Landed& landed);

  // reduce, the owner's side (engine_reduce.cc)
  void drive_fold(const ObjectId& target);
  void locate_member(const ObjectId& target, Accumulator::Member& member);
  bool fold_local(const ObjectId& target, Folding& folding, Accumulator::Member& member);
  void pull_member(const ObjectId& target, Folding& folding, Accumulator::Member& member);
  void publish_folded(const ObjectId& target, Folding& folding);
  void member_lost(const ObjectId& source);
  void commit_target(const ReduceState& state, LocalObject& object);
  void raise_target(const ReduceState& state, LocalObject& object);
  void end_fold(const ObjectId& target);
  void confirm(const ObjectId& target, const ReduceSource& source);
  void note_arrival(const ObjectId& source, std::optional<Incarnation> incarnation);
  void end_call(const ObjectId& target);
  void report(const ObjectId& target, ReduceReport report);

  EngineConfig config_;
  Instant now_;
  Membership view_;
  Directory directory_;
  ReduceTree reduces_;
  Inventory inventory_;
  Rails rails_;
  Sender sender_;
  LocalObjects objects_;
  std::multimap<std::pair<ObjectId, Incarnation>, Retired> retired_;
  std::map<TransferId, Pull> pulls_;
  std::uint64_t last_transfer_;
  std::map<ObjectId, Folding> folds_;
  std::map<ObjectId, ObjectId> slot_keys_;  // a fold's second reservation -> its target
  std::set<ObjectId> dirty_folds_;
  std::map<ObjectId, Call> calls_;
  std::map<ObjectId, Locate> locates_;
  std::map<ObjectId, Tombstone> tombstones_;
  std::deque<std::pair<Instant, ObjectId>> tombstone_order_;  // each life is equally long
  std::map<ObjectId, std::vector<std::uint32_t>> committed_;  // members of results held here
  std::map<NodeId, Member> connected_;
  std::set<NodeId> links_;  // peers whose link is up
  std::deque<Message> loop_;
  std::deque<MessageIn> parked_;
  std::deque<Action> actions_;
  Bytes payload_in_;                  // of the message being received
  std::optional<ObjectId> granting_;  // whose range is asked for while its grant is handled
  std::uint64_t fold_bytes_left_ = 0;
  bool more_ = false;  // a turn's worth was done and there is more
  EngineStats stats_;
};

}  // namespace hoplite
