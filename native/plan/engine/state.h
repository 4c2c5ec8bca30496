// The handlers of one node's engine, private to this folder. Each changes the tables and queues
// actions; settle() then does what follows. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/engine/tables.h"

namespace hoplite {

class Engine::State : private EngineTables {
 public:
  State(const EngineConfig& config, std::uint64_t seed);
  void begin(Instant now) { now_ = now; }
  void handle_command(const Command& command);
  void handle_io(const IoEvent& event);
  void settle();
  void handle_timeout();
  void handle_put(const Waiter& waiter, const PutCommand& put);
  void handle_wrote(const Waiter& waiter, const WroteCommand& wrote);
  void handle_get(const Waiter& waiter, const GetCommand& get);
  void handle_release(ClientId client, const ReleaseCommand& release);
  void handle_delete(const Waiter& waiter, const DeleteCommand& remove);
  void handle_reduce(const Waiter& waiter, const ReduceCommand& reduce);
  void handle_reduce_source(const ReduceSourceCommand& source);
  void handle_cancel(const Waiter& waiter, const CancelCommand& cancel);
  void handle_client_lost(ClientId client);
  void handle_set_view(const SetViewCommand& view);
  void handle_list(RequestId request, const ListCommand& list);
  void handle_orphan(const Waiter& waiter, const OrphanCommand& orphan);
  void handle_drain();
  void handle_message(const MessageIn& event);
  void handle_block_landed(const BlockLanded& event);
  void handle_block_sent(const BlockSent& event);
  void handle_link_up(const LinkUp& event);
  void handle_link_down(const LinkDown& event);
  void handle_peer_dead(const PeerDead& event);
  void handle_spill_done(const SpillDone& event);
  std::optional<Action> poll_action();
  [[nodiscard]] std::optional<Instant> poll_timeout() const;
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] std::vector<Wait> waits() const;  // waits.cc
  void check_invariants() const;

 private:
  void receive(NodeId from, const Message& message, Bytes payload);  // and from this node itself
  void handle_claim(NodeId from, const Claim& claim, Epoch epoch, Bytes payload);
  void handle_progress(NodeId from, const Progress& progress);
  void handle_delete_at_home(NodeId from, const Delete& remove);
  void handle_orphan_at_home(const Orphan& orphan);
  void handle_locate(NodeId from, const Locate& locate);
  void handle_reduce_want(NodeId from, const ReduceWant& want);
  void handle_reduce_report(NodeId from, const ReduceReport& report);
  void handle_resync_done(NodeId from, const ResyncDone& done);
  void handle_resync_wanted(NodeId from);
  void handle_grant(NodeId from, const Grant& grant);
  void handle_adopt(NodeId from, const Adopt& adopt);
  void handle_standing(NodeId from, const Standing& standing);
  void handle_located(NodeId from, const Located& located, Bytes payload);
  void handle_push(const Push& push, Bytes payload);
  void handle_push_to(NodeId from, const PushTo& push);
  void handle_lost(NodeId from, const Lost& lost);
  void handle_drop(NodeId from, const Drop& drop);
  void handle_deleted(NodeId from, const Deleted& deleted);
  void handle_reduce_own(NodeId from, const ReduceOwn& own);
  void handle_reduce_state(NodeId from, const ReduceState& state);
  void handle_pull_start(NodeId from, TransferId transfer, const PullStart& start);
  void handle_credit(NodeId from, TransferId transfer, const Credit& credit);
  void handle_pull_stop(NodeId from, TransferId transfer);
  void handle_pull_refused(NodeId from, TransferId transfer);
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
