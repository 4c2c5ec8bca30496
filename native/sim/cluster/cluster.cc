// SPDX-License-Identifier: Apache-2.0
#include "sim/cluster/cluster.h"

#include <algorithm>
#include <cstdio>

namespace hoplite::sim {
namespace {

constexpr std::size_t kHopsOfADelete = 8;  // from its client to all nodes that have some, and back

}  // namespace

ClusterConfig ClusterConfig::small(std::uint16_t stripes) {
  ClusterConfig config;
  config.engine.arena_bytes = 4_MiB;
  config.engine.block_bytes_min = 1_KiB;
  config.engine.block_bytes_max = 1_KiB;  // so that a small object has many
  config.engine.inline_bytes_max = 256_B;
  config.engine.broadcast_stripes = stripes;
  config.engine.reduce_stripes = stripes;
  config.engine.credit_bytes = 16_KiB;
  config.engine.tombstone_life = 5_s;
  config.engine.caller_grace = 3_s;
  return config;
}

Cluster::Cluster(const ClusterConfig& config)
    : ClusterTables(config),
      network_(config.network, timeline_, *this, mix64(config.seed ^ 0x6e6574)) {
  for (std::size_t i = 0; i < config.nodes; ++i) add_node();
  for (const auto& node : nodes_) node->is_steady = true;
  for (const auto& node : nodes_) view_.members.push_back({node->id, node->life, {}});
  publish_view();
  lies_ = config_.liar.has_value();
  if (lies_) tell_lies();
}

Cluster::~Cluster() = default;

void Cluster::trace(const Node& node, const std::string& text) {
  if (!config_.trace) return;
  std::fprintf(stderr, "%12.6f ms node %zu.%u  %s\n",
               static_cast<double>(timeline_.now().ns) * 1e-6, node.index, node.life.value,
               text.c_str());
}

// ---- lives of nodes ----

void Cluster::add_node() {
  nodes_.push_back(std::make_unique<Node>());
  Node& node = *nodes_.back();
  node.index = nodes_.size() - 1;
  node.id = NodeId{nodes_.size()};
  start(node);
}

void Cluster::start(Node& node) {
  EngineConfig config = config_.engine;
  config.node = node.id;
  config.incarnation = node.life;
  node.alive = true;
  node.engine = std::make_unique<Engine>(config, prng_.next());
  node.arena = LazyArena(config.arena_bytes / config_.network.stands_for);
  node.layouts.clear();
  node.receives.clear();
  node.closing.clear();
  node.disk.clear();
  node.disk_used = 0;
  node.disk_free_at = node.helper_free_at = now();
  node.rebuilt.clear();
  node.deferred.clear();
  node.inbox.clear();
  node.is_busy = false;
  node.turn_at.reset();
  node.timer.reset();
  node.known_epoch = Epoch{};
  node.fences = {};
  node.paused_until = {};
  network_.start_node(node.id, node.life);
  trace(node, "starts");
}

void Cluster::crash(std::size_t index) {
  Node& node = *nodes_[index];
  if (!node.alive) return;
  trace(node, "crashes");
  node.alive = node.is_steady = false;
  waits_.set(node.id, {});
  network_.crash_node(node.id);
  checker_.note_node_loss(index, node.life, now());
  channel_checker_.note_death();
  for (Request& request : requests_) {
    if (request.node != index || request.node_life != node.life) continue;
    if (!request.answered) request.abandoned = true;
    request.pinned = false;
  }
  // Drop the member in the end even if no engine had a link that shows its death.
  timeline_.after(2_s, [this, id = node.id, life = node.life] { drop_member(id, life); });
}

void Cluster::restart(std::size_t index) {
  Node& node = *nodes_[index];
  HOPLITE_CHECK(!node.alive);
  std::erase_if(view_.members, [&](const Member& member) { return member.node == node.id; });
  node.life = Incarnation{node.life.value + 1};
  start(node);
  view_.members.push_back({node.id, node.life, {}});
  publish_view();
}

std::size_t Cluster::join() {
  add_node();
  const Node& node = *nodes_.back();
  view_.members.push_back({node.id, node.life, {}});
  publish_view();
  return node.index;
}

void Cluster::pause(std::size_t index, Duration duration) {
  Node& node = *nodes_[index];
  if (!node.alive) return;
  trace(node, "pauses");
  node.paused_until = std::max(node.paused_until, now() + duration);
  timeline_.at(node.paused_until, [this, index, life = node.life] {
    Node& paused = *nodes_[index];
    if (!paused.alive || paused.life != life || paused.paused_until > now()) return;
    trace(paused, "goes on");
    auto deferred = std::exchange(paused.deferred, {});
    for (const auto& deed : deferred) deed();
  });
}

void Cluster::reset_link(std::size_t a, std::size_t b) {
  network_.reset_link(nodes_[a]->id, nodes_[b]->id);
}

void Cluster::stall_link(std::size_t a, std::size_t b, Duration duration) {
  network_.stall_link(nodes_[a]->id, nodes_[b]->id, duration);
}

void Cluster::stall_way(std::size_t from, std::size_t to, Duration duration) {
  network_.stall_way(nodes_[from]->id, nodes_[to]->id, duration);
}

void Cluster::jump_clock(std::size_t index, Duration ahead) {
  run_in_turn(index, nodes_[index]->life,
              [this, ahead](Node& node) {
                trace(node, "'s clock jumps");
                node.clock_ahead = node.clock_ahead + ahead;
                node.timer.reset();
                node.engine->handle_timeout(clock_of(node));
              },
              {});
}

void Cluster::report_death(std::size_t to, NodeId of, Incarnation life) {
  if (of.value <= nodes_.size()) node_of(of).is_steady = false;
  handle_io(nodes_[to]->id, PeerDead{of, life}, notice_of(of));
}

// Cuts the two nodes off from each other. After `until_told` the view drops the younger one.
void Cluster::separate(std::size_t elder, std::size_t younger, Duration until_told) {
  Node& a = *nodes_[elder];
  Node& b = *nodes_[younger];
  if (elder == younger || !a.alive || !b.alive) return;
  a.is_steady = b.is_steady = false;
  network_.disconnect(a.id, b.id);
  network_.disconnect(b.id, a.id);
  handle_io(a.id, PeerDead{b.id, b.life, false}, notice_of(b.id));
  handle_io(b.id, PeerDead{a.id, a.life, false}, notice_of(a.id));
  timeline_.after(until_told, [this, &a, &b, lives = std::pair(a.life, b.life)] {
    if (a.alive && std::pair(a.life, b.life) == lives) crash(b.index);
  });
}

void Cluster::set_rate(std::size_t node, std::uint64_t rate_bytes_per_s) {
  network_.set_rate(nodes_[node]->id, rate_bytes_per_s);
}

// ---- views ----

// Tells each live member of the view at a time of its own. A member that has a newer view by then
// skips the older one.
void Cluster::publish_view() {
  view_.epoch = Epoch{view_.epoch.value + 1};
  views_[view_.epoch] = view_.members;
  for (const Member& member : view_.members) {
    const Node& receiver = node_of(member.node);
    timeline_.after(some(config_.view_delay_max),
                    [this, view = view_, index = receiver.index, life = member.incarnation] {
                      run_in_turn(index, life,
                                  [this, view](Node& node) {
                                    if (node.known_epoch >= view.epoch) return;
                                    node.known_epoch = view.epoch;
                                    node.fences.note_view(view.epoch);
                                    trace(node,
                                          "hears of view " + std::to_string(view.epoch.value));
                                    node.engine->handle_command({ClientId{0}, RequestId{0}, view},
                                                                clock_of(node));
                                  },
                                  {});
                    },
                    {Stream::Kind::kView, 0, receiver.id.value});
  }
}

void Cluster::drop_member(NodeId id, Incarnation life) {
  const Node& node = node_of(id);
  if (node.alive && node.life == life) return;  // a report is a proposal; this one is wrong
  const auto is_it = [&](const Member& m) { return m.node == id && m.incarnation == life; };
  if (std::erase_if(view_.members, is_it) > 0) publish_view();
}

// ---- what waits ----

// A circle is a failure only if it is still there once every message now in flight must have come,
// because the home may have sent a grant that replaces one of its edges.
void Cluster::check_waits() {
  const std::vector<NodeId> asked = ask_waits();
  if (config_.lies_per_mille > 0) return;
  for (const NodeId id : asked) {
    const auto circle = waits_.circle_through(id);
    if (!circle || !suspected_.insert(*circle).second) continue;
    timeline_.after(kUnderWayMax, [this, id, circle = *circle] {
      suspected_.erase(circle);
      ask_waits();
      if (waits_.circle_through(id) == circle) checker_.fail(circle);
    });
  }
}

// Brings the wait-for graph up to date. Returns the nodes that have had a turn.
std::vector<NodeId> Cluster::ask_waits() {
  std::vector<NodeId> asked;
  for (const auto& node : nodes_) {
    if (!node->alive || !std::exchange(node->waits_differ, false)) continue;
    std::vector<Wait> waits = node->engine->waits();
    std::erase_if(waits, [this](const Wait& wait) { return !is_honest(wait.name.object); });
    waits_.set(node->id, std::move(waits));
    asked.push_back(node->id);
  }
  return asked;
}

// ---- time ----

void Cluster::run_for(Duration duration) {
  const Instant end = now() + duration;
  for (auto next = timeline_.next_at(); next && *next <= end; next = timeline_.next_at()) {
    timeline_.step();
  }
  timeline_.advance(end);
}

bool Cluster::run_until(const std::function<bool()>& holds, Duration limit) {
  const Instant end = now() + limit;
  while (!holds()) {
    const auto next = timeline_.next_at();
    if (!next || *next > end) {
      timeline_.advance(end);
      return false;
    }
    timeline_.step();
  }
  return true;
}

bool Cluster::run_until_answered(const Request& request, Duration limit) {
  return run_until([&] { return !request.is_pending(); }, limit) && request.answered.has_value();
}

void Cluster::finish() {
  end_jitter();
  std::map<ObjectId, std::size_t> objects;
  std::map<ObjectId, Incarnation> attempts;
  const auto alive =
      std::find_if(nodes_.begin(), nodes_.end(), [](const auto& n) { return n->alive; });
  if (alive == nodes_.end()) return;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Request& request = requests_[i];
    if (is_of_channel(request.verb)) {  // a watch may wait for a version that never comes
      cancel(request);
      continue;
    }
    objects[request.object] = is_alive(request.node) ? request.node : (*alive)->index;
    if (request.verb == Verb::kPut) {
      const Incarnation upto = config_.liar ? Incarnation{~std::uint32_t{0}} : request.incarnation;
      attempts[request.object] = std::max(attempts[request.object], upto);
    }
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) release(requests_[i]);
  for (const auto& [object, node] : objects) erase(node, object, attempts[object]);
  const std::size_t rounds = objects.size() / config_.engine.deletes_max + 1;
  const Duration late = config_.late_max() * static_cast<std::int64_t>(kHopsOfADelete * rounds);
  const Duration bound = 20_s + late;
  const auto is_answered = [this] {
    return std::none_of(requests_.begin(), requests_.end(),
                        [](const Request& request) { return request.is_pending(); });
  };
  if (config_.engine.recent_objects_max < kRecentObjectsMax && !run_until(is_answered, bound)) {
    // A node that joined late may ask for an object whose home has forgotten its deletion.
    for (std::size_t i = 0, count = requests_.size(); i < count; ++i) {
      const ObjectId object = requests_[i].object;
      if (requests_[i].is_pending() && !is_of_channel(requests_[i].verb))
        erase(objects[object], object, attempts[object]);
    }
  }
  if (!run_until(is_answered, bound)) {
    for (const Request& request : requests_) {
      if (request.is_pending()) checker_.fail("never answered: " + name_of(request));
    }
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) release(requests_[i]);
  run_for(config_.engine.tombstone_life * 2 + 10_s);
  checker_.check_reduces(requests_);
  for (const auto& node : nodes_) {
    if (!node->alive) continue;
    const EngineStats left = node->engine->stats();
    const auto expect_zero = [&](std::uint64_t count, const char* what) {
      if (count == 0) return;
      checker_.fail("node " + std::to_string(node->index) + " keeps " + std::to_string(count) +
                    " " + what + " after everything was deleted");
    };
    expect_zero(left.objects, "objects");
    expect_zero(left.arena_bytes_used, "arena bytes");
    expect_zero(left.arena_bytes_pinned, "pinned arena bytes");
    expect_zero(left.spill_bytes, "spilled bytes");
    expect_zero(node->disk_used, "bytes on disk");
    expect_zero(left.waiters, "waiters");
    expect_zero(left.channel_requests, "requests about channels");
    expect_zero(left.directory_entries, "directory entries");
    expect_zero(node->receives.size(), "open receives");
    expect_zero(node->closing.size(), "closed receives that may still write");
  }
}

}  // namespace hoplite::sim
