// SPDX-License-Identifier: Apache-2.0
#include "node/completion.h"

#include <chrono>
#include <utility>

namespace hoplite {
namespace {

using Named = std::map<std::string, std::uint64_t>;

// The arena's size, and what the node's own tables and queues hold now.
Named sizes_by_name(const NodeStats& stats) {
  const EngineStats& e = stats.engine;
  return {
      {"arena_bytes", stats.arena_bytes},
      {"parked_messages", e.parked_messages},
      {"parked_bytes", e.parked_bytes},
      {"deletions_open", e.deletions_open},
      {"deletions_remembered", e.deletions_remembered},
      {"objects_recent", e.objects_recent},
      {"questions", e.questions},
      {"reduces", e.reduces},
      {"channels", e.channels},
      {"channel_requests", e.channel_requests},
      {"excerpts_wanted", e.excerpts_wanted},
      {"actions", e.actions},
      {"link_layout_bytes", stats.links.layout_bytes},
      {"link_bytes_queued", stats.links.bytes_queued},
      {"client_bytes_queued", stats.clients.bytes_queued},
  };
}

// The work of the reactor and of its helper since the start.
Named work_by_name(const NodeStats& stats) {
  return {
      {"rebuilds", stats.engine.rebuilds},
      {"rebuilds_failed", stats.engine.rebuilds_failed},
      {"excerpts", stats.engine.excerpts},
      {"turns", stats.turns.turns},
      {"longest_turn_us", stats.turns.longest_turn_us},
      {"turns_over_10ms", stats.turns.turns_over_10ms},
  };
}

}  // namespace

Named counters_by_name(const NodeStats& stats) {
  const EngineStats& e = stats.engine;
  const LinkCounters& l = stats.links;
  const LocalCounters& c = stats.clients;
  Named named{
      {"arena_bytes_used", e.arena_bytes_used},
      {"arena_bytes_pinned", e.arena_bytes_pinned},
      {"arena_bytes_orphaned", e.arena_bytes_orphaned},
      {"spill_bytes", e.spill_bytes},
      {"spill_bytes_written", e.spill_bytes_written},
      {"spill_bytes_read", e.spill_bytes_read},
      {"spill_errors", e.spill_errors},
      {"objects", e.objects},
      {"draining", e.draining},
      {"sole_copies", e.sole_copies},
      {"waiters", e.waiters},
      {"directory_entries", e.directory_entries},
      {"view_epoch", e.view_epoch},
      {"members", e.members},
      {"blocks_sent", e.blocks_sent},
      {"blocks_received", e.blocks_received},
      {"blocks_folded", e.blocks_folded},
      {"blocks_combined", e.blocks_combined},
      {"bytes_sent", e.bytes_sent},
      {"grants", e.grants},
      {"regrants", e.regrants},
      {"edges_moved", e.edges_moved},
      {"pushes", e.pushes},
      {"evictions", e.evictions},
      {"reduces_committed", e.reduces_committed},
      {"reduces_branched", e.reduces_branched},
      {"reduce_branches", e.reduce_branches},
      {"reduce_degree", e.reduce_degree},
      {"messages_parked", e.messages_parked},
      {"messages_stale", e.messages_stale},
      {"link_bytes_sent", l.bytes_sent},
      {"link_bytes_received", l.bytes_received},
      {"link_bytes_discarded", l.bytes_discarded},
      {"link_blocks_sent", l.blocks_sent},
      {"link_blocks_landed", l.blocks_landed},
      {"link_blocks_discarded", l.blocks_discarded},
      {"link_blocks_corrupt", l.blocks_corrupt},
      {"link_frames_sent", l.frames_sent},
      {"link_frames_received", l.frames_received},
      {"link_frames_bad", l.frames_bad},
      {"link_dials", l.dials},
      {"link_handshakes", l.handshakes},
      {"link_handshakes_refused", l.handshakes_refused},
      {"link_versions_refused", l.versions_refused},
      {"link_connections_refused", l.connections_refused},
      {"links_up", l.links_up},
      {"links_down", l.links_down},
      {"rails_lost", l.rails_lost},
      {"peers_dead", l.peers_dead},
      {"peers_unreachable", l.peers_unreachable},
      {"peers_frozen", l.peers_frozen},
      {"peers_suspected", l.peers_suspected},
      {"clients", c.clients},
      {"client_losses", c.clients_lost},
      {"client_refusals", c.clients_refused},
      {"client_frames_bad", c.frames_bad},
      {"client_commands", c.commands},
      {"client_replies", c.replies},
  };
  named.merge(sizes_by_name(stats));
  named.merge(work_by_name(stats));
  return named;
}

void Completion::publish(const NodeStats& stats) {
  const std::lock_guard guard(mutex_);
  stats_ = stats;
}

void Completion::push_event(const NodeEvent& event) {
  {
    const std::lock_guard guard(mutex_);
    if (events_.size() == kEventsWaitingMax) events_.pop_front();
    events_.push_back(event);
  }
  has_event_.notify_one();
}

void Completion::close() {
  {
    const std::lock_guard guard(mutex_);
    is_closed_ = true;
  }
  has_event_.notify_all();
  has_list_.notify_all();
}

RequestId Completion::begin_list() {
  const std::lock_guard guard(mutex_);
  const RequestId list{++last_list_};
  lists_.emplace(list, std::nullopt);
  return list;
}

void Completion::finish_list(RequestId list, Listing listing) {
  {
    const std::lock_guard guard(mutex_);
    const auto it = lists_.find(list);
    if (it != lists_.end()) it->second = std::move(listing);
  }
  has_list_.notify_all();
}

Listing Completion::take_list(RequestId list) {
  std::unique_lock guard(mutex_);
  const auto it = lists_.find(list);
  has_list_.wait(guard, [&] { return is_closed_ || it->second; });
  Listing listing = std::move(it->second).value_or(Listing{});
  lists_.erase(it);
  return listing;
}

std::optional<NodeEvent> Completion::next_event(Duration timeout) {
  std::unique_lock guard(mutex_);
  has_event_.wait_for(guard, std::chrono::nanoseconds(timeout.ns),
                      [this] { return is_closed_ || !events_.empty(); });
  if (events_.empty()) return std::nullopt;
  const NodeEvent event = events_.front();
  events_.pop_front();
  return event;
}

NodeStats Completion::stats() const {
  const std::lock_guard guard(mutex_);
  return stats_;
}

}  // namespace hoplite
