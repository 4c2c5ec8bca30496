// SPDX-License-Identifier: Apache-2.0
// Runs many engines in virtual time and plays the product's io/, node/ and client/ around them.
// Clients ask and die; nodes crash, pause, restart and join. Death reports become views, which
// reach nodes at different times. The seed decides everything.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/cluster/cluster_tables.h"
#include "sim/model/network.h"
#include "wire/local/local_frame.h"

namespace hoplite::sim {

class Cluster final : private ClusterTables, private NetworkUser {
 public:
  explicit Cluster(const ClusterConfig& config);
  ~Cluster() override;

  // ---- clients. The references stay valid as long as the cluster. ----
  Request& put(std::size_t node, const ObjectId& object, const PutOptions& options = {});
  Request& get(std::size_t node, const ObjectId&, bool exists = false, ClientId = ClientId{1},
               std::uint64_t upto_bytes = kAllBytes);
  // Put what makes `whole` of `base`, and get it with a recipe; get a part of a put.
  Request& put_delta(std::size_t node, const ObjectId&, const Request& base, const Request& whole);
  Request& rebuild(std::size_t node, const Request& whole, const Request& base,
                   std::span<const Request* const> deltas, ClientId client = ClientId{1});
  Request& excerpt(std::size_t node, const Request& put, const Excerpt&, ClientId = ClientId{1});
  Request& erase(std::size_t node, const ObjectId& object, Incarnation upto = {});
  Request& reduce(std::size_t node, const ObjectId& target, const ReduceOptions& options);
  void confirm(Request& reduce, std::uint32_t index, const ObjectId& source);
  void announce(Request& reduce, std::uint32_t index, const ObjectId& source);  // unconfirmed
  void fail_source(Request& reduce, std::uint32_t index);  // this source will never come
  void release(Request& get);                              // does nothing if nothing is pinned
  void cancel(Request& request);
  void kill_client(std::size_t node, ClientId client);
  Request& orphan(std::size_t node, const ObjectId& object, Incarnation upto = {});
  Request& keep(const Request& put, std::uint8_t copies);  // of what it has put, or puts
  Request& ask_channel(Verb verb, std::size_t node, const ObjectId&, const ChannelOptions& = {});
  void drain(std::size_t node);
  [[nodiscard]] std::uint64_t drain_count(std::size_t node) const { return nodes_[node]->drained; }
  // Lists the objects of a node, in a turn of it.
  std::vector<ObjectRow> objects(std::size_t node, std::uint64_t limit = 1000);

  // ---- faults ----
  void crash(std::size_t node);
  void restart(std::size_t node);  // REQUIRES: it crashed
  std::size_t join();              // returns the new node's index
  void pause(std::size_t node, Duration duration);
  void reset_link(std::size_t a, std::size_t b);
  void stall_link(std::size_t a, std::size_t b, Duration duration);
  void stall_way(std::size_t from, std::size_t to, Duration duration);
  void jump_clock(std::size_t node, Duration ahead);
  void report_death(std::size_t to, NodeId of, Incarnation life);              // true or not
  void separate(std::size_t elder, std::size_t younger, Duration until_told);  // younger dies
  void set_rate(std::size_t node, std::uint64_t rate_bytes_per_s);
  void end_lies();  // the lying member stops its lies and dies
  [[nodiscard]] std::uint64_t lie_count() const { return lies_told_; }
  [[nodiscard]] bool is_honest(const ObjectId& object) const;
  [[nodiscard]] bool waits_for_liar(const ObjectId& target) const;  // which folds a part of it
  void fail_disks(std::uint32_t per_mille) { config_.disk_faults_per_mille = per_mille; }
  void end_jitter() { network_.end_jitter(); }
  void run_for(Duration duration);
  bool run_until(const std::function<bool()>& holds, Duration limit);
  bool run_until_answered(const Request& request, Duration limit = 10_s);
  [[nodiscard]] Timeline& timeline() { return timeline_; }
  void finish();  // deletes and releases everything, and checks that nothing is left
  [[nodiscard]] Instant now() const { return timeline_.now(); }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] bool is_alive(std::size_t node) const { return nodes_[node]->alive; }
  [[nodiscard]] EngineStats stats(std::size_t node) const { return nodes_[node]->engine->stats(); }
  [[nodiscard]] const NodeLoad& load(std::size_t node) const { return nodes_[node]->load; }
  [[nodiscard]] std::deque<Request>& requests() { return requests_; }
  [[nodiscard]] Checker& checker() { return checker_; }
  [[nodiscard]] const ChannelChecker& channels() const { return channel_checker_; }
  [[nodiscard]] std::uint64_t events() const { return events_; }
  [[nodiscard]] Epoch epoch() const { return view_.epoch; }

 private:
  using Node = ClusterNode;
  void start(Node& node);
  void add_node();
  void handle_io(NodeId node, IoEvent event, const Origin& origin);
  void publish_view();
  void drop_member(NodeId node, Incarnation life);
  void check_waits();
  std::vector<NodeId> ask_waits();
  void trace(const Node& node, const std::string& text);
  // cluster_turns.cc
  void run_in_turn(std::size_t, Incarnation, const std::function<void(Node&)>&, const Origin&);
  void drive(Node& node);
  void count_turn(Node& node, bool is_idle);
  [[nodiscard]] std::optional<Instant> due_of(const Node& node) const;
  void perform_all(Node& node);
  void end_turn(Node& node);
  void wake(Node& node, Instant when);
  void take_turn(Node& node);
  void perform_some(Node& node);
  void finish_turn(Node& node);
  void continue_later(Node& node, Duration taken, void (Cluster::*step)(Node&));
  // cluster_io.cc
  void perform(Node& node, const Action& action);
  void send_message(Node& node, const SendMessage& action);
  void send_frame(Node&, NodeId to, const Message&, std::span<const std::byte>, std::uint32_t hops);
  LinkLayouts* layouts_of(Node& node, NodeId peer, std::uint64_t life);
  void close_receive(Node& node, const CloseReceive& action);
  void scribble(Node& node, const OpenedReceive& receive);
  void fold(Node& node, const Fold& action);
  void finish(Node& node, const Finish& action);
  void handle_message(NodeId id, Message received, MessageIn handed, std::uint32_t hops = 0);
  void land(Node& node, NodeId from, const ByteVector& frame, std::uint32_t hops);
  void land_late(Node&, OpenedReceive&, const BlockHeader&, std::span<const std::byte> bytes);
  void handle_frame(NodeId, NodeId, ConnectionKind, ByteVector frame, std::uint32_t hops) override;
  std::pair<ByteVector, std::uint32_t> read_block(NodeId node, const SendBlock& block) override;
  void handle_block_sent(NodeId node, const BlockSent& sent) override;
  void handle_link_up(NodeId node, NodeId peer, Incarnation, std::uint64_t life) override;
  void handle_link_down(NodeId node, NodeId peer) override;
  void handle_peer_dead(NodeId node, NodeId peer, Incarnation incarnation) override;
  std::span<std::byte> bytes_at(Node& node, const Extent& extent);
  // cluster_jobs.cc
  void submit_to_disk(Node& node, const SpillJob& job);
  std::string move_on_disk(Node& node, const SpillJob& job);
  void submit_to_helper(Node& node, const RebuildJob& job);
  RebuildDone make_step(Node& node, const RebuildJob& job);
  void hear_job_end(Node& node, const IoEvent& ended);
  // cluster_lies.cc
  void grant_in_circle(NodeId receiver, const MessageIn& heard);
  void renew_lease(NodeId receiver, const MessageIn& heard);
  bool lie(NodeId to, NodeId from, ConnectionKind kind, ByteVector& frame);
  void overhear(NodeId from, NodeId to, const Message& message);
  void tell_lie(Node& node);
  void tell_lies();
  // cluster_clients.cc
  Request& ask(Verb verb, std::size_t node, ClientId client, const ObjectId& object);
  void command(const Request& request, CommandBody body);
  void command(std::size_t node, Incarnation life, Command command);
  void reply(Node& node, const ReplyToClient& reply);
  void handle_answer(Request& request, const Reply& reply);
  void continue_write(Request& put);
  std::vector<std::uint32_t> sums_of(const Request& put, std::uint64_t from_bytes);
  Network network_;
};

}  // namespace hoplite::sim
