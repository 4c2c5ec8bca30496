// SPDX-License-Identifier: Apache-2.0
// Blocks on their way: the pulls of this node, the pulls that it serves, and the rails between.
// Leases become pulls, and landed blocks become stripes of an object or go to Folds.
// Invariants: a stripe is being received if and only if it has a pull; a receive opens only where
// no closed one may still write; a block goes out only with a credit, and pins its object until it
// is sent.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/broadcast/pull.h"
#include "plan/broadcast/sender.h"
#include "plan/links/rails.h"
#include "plan/messages.h"
#include "plan/objects/local_object.h"

namespace hoplite {

struct Owners;

// Whether the sender of a pull that ends hears of it: not if it knows, or can't be reached.
enum class Notice : std::uint8_t { kTellSender, kSilent };

class Transfers {
 public:
  Transfers(Owners& engine, std::uint64_t seed);

  // ---- receiving ----
  void handle_grant(NodeId from, const Grant& grant);
  void handle_block_landed(const BlockLanded& event);
  void handle_receive_closed(const ReceiveClosed& event);
  void open_held_back();  // once for all receives that have closed in a turn
  [[nodiscard]] bool has_closed() const { return has_closed_; }
  void handle_pull_refused(NodeId from, TransferId transfer);
  // ---- sending ----
  void handle_pull_start(NodeId from, TransferId transfer, const PullStart& start);
  void handle_credit(NodeId from, TransferId transfer, const Credit& credit);
  void handle_pull_stop(NodeId from, TransferId transfer);
  void handle_block_sent(const BlockSent& event);
  void pump();

  // ---- links ----
  void open_rails(NodeId node, std::size_t count);
  void start_pulls_from(NodeId node);
  void stop_sending_to(NodeId node);
  void fail_pulls_from(NodeId node);

  // ---- pulls ----
  [[nodiscard]] TransferId next_transfer() { return TransferId{++last_transfer_}; }
  void open_pull(TransferId transfer, Pull pull);
  void end_pull(TransferId transfer, Notice notice);
  void give_credit(TransferId transfer, std::uint32_t blocks);
  [[nodiscard]] bool pulls_from(NodeId sender, const ObjectId& object) const;
  [[nodiscard]] const std::map<TransferId, Pull>& pulls() const { return pulls_; }

  // ---- readers of an object here ----
  [[nodiscard]] bool serves(const ObjectId& id) const { return sender_.serves(id); }
  void stop_serving(const ObjectId& id);
  void fail_readers(const ObjectId& id, const std::string& text);

  // ---- deadlines ----
  void report_progress();
  void fail_out_of_reach();
  [[nodiscard]] std::optional<Instant> next_deadline() const;
  void check_invariants() const;

 private:
  void take_leases(const Grant& grant);
  void start_pull(const ObjectId& id, LocalObject& object, StripeIndex stripe, NodeId sender);
  void open_receive(TransferId transfer, Pull& pull);
  void fail_pull(TransferId transfer);
  void note_sum(const PullGoal& goal, const BlockLanded& event);
  void land_in_object(TransferId transfer, Pull& pull, bool has_begun);
  void release_sent(const Sender::Sent& sent);
  void refuse(const std::vector<Sender::Unserved>& refused, const ObjectId& gone);

  Owners& engine_;
  Rails rails_;
  Sender sender_;
  std::map<TransferId, Pull> pulls_;
  std::set<TransferId> held_back_;  // those of that stage
  bool has_closed_ = false;         // since the last open_held_back()
  std::uint64_t last_transfer_;
  // Pulls from nodes that this node does not reach, and when they fail. Until then the node that
  // named the sender may learn better, and it does not name two such senders in endless turns.
  std::deque<std::pair<Instant, TransferId>> out_of_reach_;
  std::optional<Instant> progress_due_;       // while stripes come in
  ObjectId progress_after_;                   // the object reported last
  std::map<ObjectId, std::uint64_t> landed_;  // bytes that landed since the last report
  std::uint64_t landed_all_ = 0;
  std::uint64_t landed_rate_most_ = 0;  // recent peak, per second
  std::set<ObjectId> unclaimed_;        // objects with stripes newer than their claims
};

}  // namespace hoplite
