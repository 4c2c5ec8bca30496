// The handlers of one node's engine, private to this folder. Each changes the tables and queues
// actions; settle() then does what follows. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/engine/tables.h"

namespace hoplite {

class Engine::State : private EngineTables {
 public:
  State(const EngineConfig& config, std::uint64_t seed);
  void begin(Instant now) { now_ = now; }
  void settle();
  void handle_timeout();
  // commands.cc
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
  void on(const Command& command, const ListCommand& list);
  void on(const Command& command, const OrphanCommand& orphan);
  void on(const Command& command, const DrainCommand& drain);
  // io.cc
  void on(const MessageIn& event);
  void on(const BlockLanded& event);
  void on(const BlockSent& event);
  void on(const LinkUp& event);
  void on(const LinkDown& event);
  void on(const PeerDead& event);
  void on(const SpillDone& event);  // spill.cc
  std::optional<Action> poll_action();
  [[nodiscard]] std::optional<Instant> poll_timeout() const;
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] std::vector<Wait> waits() const;  // waits.cc
  void check_invariants() const;

 private:
  // messages from peers (io.cc); `from` may be this node
  void receive(NodeId from, const Message& message, Bytes payload);
  void on(NodeId from, const Message& message, const Claim& claim);
  void on(NodeId from, const Message& message, const Progress& progress);
  void on(NodeId from, const Message& message, const Delete& remove);
  void on(NodeId from, const Message& message, const Orphan& orphan);
  void on(NodeId from, const Message& message, const Locate& locate);
  void on(NodeId from, const Message& message, const ReduceWant& want);
  void on(NodeId from, const Message& message, const ReduceReport& report);
  void on(NodeId from, const Message& message, const ResyncDone& done);
  void on(NodeId from, const Message& message, const ResyncWanted& wanted);
  void on(NodeId from, const Message& message, const Grant& grant);
  void on(NodeId from, const Message& message, const Adopt& adopt);
  void on(NodeId from, const Message& message, const Standing& standing);
  void on(NodeId from, const Message& message, const Located& located);
  void on(NodeId from, const Message& message, const Push& push);
  void on(NodeId from, const Message& message, const PushTo& push);
  void on(NodeId from, const Message& message, const Lost& lost);
  void on(NodeId from, const Message& message, const Drop& drop);
  void on(NodeId from, const Message& message, const Deleted& deleted);
  void on(NodeId from, const Message& message, const ReduceOwn& own);
  void on(NodeId from, const Message& message, const ReduceState& state);
  void on(NodeId from, const Message& message, const PullStart& start);
  void on(NodeId from, const Message& message, const Credit& credit);
  void on(NodeId from, const Message& message, const PullStop& stop);
  void on(NodeId from, const Message& message, const PullRefused& refused);
  // what goes out (engine.cc)
  void send(NodeId to, PeerMessage body, TransferId id = {}, std::optional<Extent> payload = {});
  void send_parcel(Parcel parcel);
  void reply(const Waiter& waiter, Reply reply);
  void claim(const ObjectId& id);
  void resync(std::optional<NodeId> only_to, const ResyncDone& end);
  void part_from(NodeId node);
  void admit();
  void pump();
  // objects (objects.cc)
  void complete(const ObjectId& id, LocalObject& object);
  void answer_get(const ObjectId& id, LocalObject& object, const Waiter& waiter);
  void fail_waiters(LocalObject& object, Code code, const std::string& text);
  void store_small(const ObjectId& id, LocalObject& object, Bytes payload);
  void void_bytes(const ObjectId& id, LocalObject& object);
  void end_put(const ObjectId& id, LocalObject& object, const char* what_happened);
  void forget_if_empty(const ObjectId& id);
  void abandon(const ObjectId& id);
  void take_back(ObjectId id, LocalObject& object, const Waiter& waiter);
  void delete_everywhere(const ObjectId& id, Incarnation upto);
  void drop_object(const ObjectId& id, Incarnation upto, bool deleted);
  void unpin(const ObjectId& id, Incarnation incarnation, ClientId client, bool all);
  void free_retired(const ObjectId& id, Incarnation incarnation);  // if none is used any more
  void note_use(const ObjectId& id);
  void note_sole(const ObjectId& id);
  void on_admitted(const Admitted& admitted);
  void on_refused(const ObjectId& id, std::uint64_t size_bytes);
  void give_up(const ObjectId& name, const std::string& text);
  bool reserve_at_once(const ObjectId& id, std::uint64_t size_bytes);  // keeping.cc
  void spill(const ObjectId& id);  // and what is in the file: spill.cc
  void begin_spill(const Spilling& spilling, LocalObject& object);
  void fetch_spilled(const ObjectId& id);
  void give_up_folds_of(const ObjectId& source, const std::string& text);
  void free_file_range(const ObjectId& id, Extent file);
  // transfers (transfers.cc)
  void start_pull(const ObjectId& id, LocalObject& object, StripeIndex stripe, NodeId sender);
  void open_pull(TransferId transfer, Pull pull, const OpenReceive& receive);
  void end_pull(TransferId transfer, bool tell_sender);
  void fail_pull(TransferId transfer);
  void report_progress();
  void land_in_object(TransferId transfer, Pull& pull, bool has_begun);
  void land_in_fold(TransferId transfer, Pull& pull, const Pull::Landed& landed);
  // what an owner folds with (fold.cc)
  bool reserve_fold(Folding& folding, const LocalObject& object);
  void place_workspace(const ObjectId& target, Extent range);
  void let_go(const Sender::Sent& sent);
  void refuse(const std::vector<Sender::Unserved>& refused, const ObjectId& gone);
  void combine(const Sender::Next& next);
  void fold_block(const LocalObject& target, Folding& folding,
                  std::span<const std::uint32_t> members, BlockIndex block, std::uint64_t from);
  void finish_block(const LocalObject& target, Folding& folding, const Accumulator::Whole& whole);
  void fold_steps(const LocalObject& target, const Folding& folding, BlockIndex block,
                  std::span<const FoldStep> steps, std::uint64_t from);
  // the members of a fold (members.cc)
  void note_here(const ObjectId& source);
  void drive_members(const ObjectId& target, Folding& folding);
  void look_at(const ObjectId& target, Folding& folding, Accumulator::Member& member);
  void locate_member(const ObjectId& target, Folding& folding, const Accumulator::Member& member);
  bool fold_carried(const ObjectId& target, Folding& folding, const Accumulator::Member& member);
  Here fold_local(const ObjectId& target, Folding& folding, Accumulator::Member& member);
  void pull_member(Folding& folding, std::uint32_t index, const FoldPulls& pulls);
  void member_lost(const ObjectId& source);
  // reduce, the owner's side and the caller's (reduce.cc)
  void own_stripes(const ReduceOwn& own, Folding& folding, LocalObject& object);
  void drive_fold(const ObjectId& target);
  void publish_folded(const ObjectId& target, Folding& folding);
  void commit_target(const ReduceState& state, LocalObject& object);
  void raise_target(const ReduceState& state, LocalObject& object);
  void end_fold(const ObjectId& target);
  void drop_branches();
  void confirm(const ObjectId& target, const ReduceSource& source);
  void begin_call(const ObjectId& target, bool is_lost = false);
  void forward(const ObjectId& target, const ReduceSource& source);
  void note_arrival(const ObjectId& source, const Located* located);
  void tell_state(const ReduceState& state);
  void end_call(const ObjectId& target);
  void report(const ObjectId& target, ReduceReport report);
  void report_committed(const ObjectId& target);
};

}  // namespace hoplite
