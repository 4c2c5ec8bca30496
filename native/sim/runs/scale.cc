// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/scale.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "plan/links/membership.h"
#include "sim/cluster/cluster.h"
#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

// Bytes that are really stored of an object. Beyond it each stored byte stands for several.
constexpr std::uint64_t kStoredBytesMax = 32_KiB;
constexpr Duration kAnswerMax = 60_s;            // of virtual time
constexpr Duration kAftermath = 300_ms;          // claims and reports that follow the last answer
constexpr Duration kTombstoneLifeHere = 200_ms;  // so that each case finds empty tables
// An allgather asks nodes x nodes times; more than this takes gigabytes.
constexpr std::size_t kAllgatherNodesMax = 256;
constexpr Duration kFrameTime = 5_us;  // of a core at each end of a frame
constexpr std::uint64_t kStoredArenaBytes = 2_MiB;
// Slots of a small allreduce take two blocks of 8 KiB of each of 1,024 sources; as much is left.
constexpr std::uint64_t kSmallArenaBytes = 32_MiB;

class Scale {
 public:
  Scale(std::size_t nodes, std::uint64_t size_bytes)
      : size_bytes_(size_bytes), cluster_(config_of(nodes, stands_for(size_bytes))) {
    cluster_.run_for(1_s);  // all links are up and each node has been heard
  }

  // Every node gets an object that is there, or, if `all_wait`, waits for its put.
  ScaleRow broadcast(bool all_wait) {
    clear();
    const ObjectId object = next_name();
    if (!all_wait) put_now(0, object);
    ScaleRow row = begin(all_wait ? "broadcast, all wait" : "broadcast", object);
    for (std::size_t node = 1; node < cluster_.size(); ++node) ask(node, object);
    if (all_wait) {
      cluster_.run_for(50_ms);
      asked_ = cluster_.now();
      put_now(0, object);
    }
    return end(std::move(row));
  }

  // The node that has sent most of it but for the origin dies half-way.
  ScaleRow death_of_a_relay() {
    clear();
    const ObjectId object = next_name();
    put_now(0, object);
    std::vector<std::uint64_t> sent(cluster_.size());
    for (std::size_t node = 0; node < sent.size(); ++node) {
      sent[node] = cluster_.stats(node).blocks_sent;
    }
    ScaleRow row = begin("broadcast, a relay dies", object);
    for (std::size_t node = 1; node < cluster_.size(); ++node) ask(node, object);
    cluster_.run_for(Duration{static_cast<std::int64_t>(copy_s() * 0.5e9)});
    std::size_t relay = 1;
    for (std::size_t node = 1; node < sent.size(); ++node) {
      sent[node] = cluster_.stats(node).blocks_sent - sent[node];
      if (sent[node] > sent[relay] && node != home_) relay = node;
    }
    cluster_.crash(relay);
    return end(std::move(row));
  }

  ScaleRow reduce(bool everywhere) {
    clear();
    const auto count = static_cast<std::uint32_t>(cluster_.size());
    const std::vector<ObjectId> sources = put_on_all();
    const ObjectId target = next_name();
    ScaleRow row = begin(everywhere ? "allreduce" : "reduce", target);
    const double n = static_cast<double>(count);
    if (everywhere) row.bound_s = 2 * (n - 1) / n * copy_s();
    Request& reduce = cluster_.reduce(
        0, target, {.source_count = count, .count = count, .everywhere = everywhere});
    for (std::size_t node = 0; node < (everywhere ? cluster_.size() : 1); ++node) {
      ask(node, target);
    }
    for (std::uint32_t i = 0; i < count; ++i) cluster_.confirm(reduce, i, sources[i]);
    return end(std::move(row));
  }

  // Node 0, or every node, gets an object of each.
  ScaleRow gather(bool everywhere) {
    clear();
    const std::vector<ObjectId> sources = put_on_all();
    ScaleRow row = begin(everywhere ? "allgather" : "gather", std::nullopt);
    row.objects = sources.size();
    row.bound_s = static_cast<double>(sources.size() - 1) * copy_s();
    for (std::size_t node = 0; node < (everywhere ? cluster_.size() : 1); ++node) {
      for (const ObjectId& source : sources) ask(node, source);
    }
    return end(std::move(row));
  }

  // So many objects over all nodes.
  ScaleRow many_objects(std::uint64_t count) {
    clear();
    ScaleRow row = begin("puts of many", std::nullopt);
    row.objects = count;
    row.bound_s = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      asks_.push_back(&cluster_.put(i % cluster_.size(), next_name(), options()));
    }
    return end(std::move(row));
  }

  // The last node dies, and the others say all that they have to their homes of the new view.
  ScaleRow change_of_the_view(std::uint64_t objects) {
    ScaleRow row = begin("a node leaves", std::nullopt);
    row.objects = objects;
    row.bound_s = 0;
    cluster_.crash(cluster_.size() - 1);
    cluster_.run_for(1_s);
    row = end(std::move(row));
    Instant heard = asked_;
    for (std::size_t i = 0; i < cluster_.size(); ++i) {
      heard = std::max(heard, cluster_.load(i).last_heard);
    }
    row.seconds = static_cast<double>((heard - asked_).ns) * 1e-9;
    return row;
  }

 private:
  // A small object travels in messages, with all of its bytes.
  static std::uint64_t stands_for(std::uint64_t size_bytes) {
    if (size_bytes <= kInlineBytesMax) return 1;
    return std::max<std::uint64_t>(1, size_bytes / kStoredBytesMax);
  }
  static ClusterConfig config_of(std::size_t nodes, std::uint64_t stands_for) {
    ClusterConfig config;
    config.nodes = nodes;
    config.engine.arena_bytes = stands_for > 1 ? kStoredArenaBytes * stands_for : kSmallArenaBytes;
    config.engine.tombstone_life = kTombstoneLifeHere;
    config.network.stands_for = stands_for;
    config.network.hearing_time = kFrameTime;
    config.turns.are_real = true;
    config.turns.is_fair = true;
    config.turns.per_frame = kFrameTime;
    config.check_every = 0;
    return config;
  }

  [[nodiscard]] double copy_s() const {
    return static_cast<double>(size_bytes_) / static_cast<double>(NetworkConfig{}.rate_bytes_per_s);
  }
  [[nodiscard]] PutOptions options() const {
    return {.size_bytes = size_bytes_, .dtype = DType::kFloat32};
  }
  ObjectId next_name() { return object_named(++named_); }

  void put_now(std::size_t node, const ObjectId& object) {
    Request& put = cluster_.put(node, object, options());
    if (!cluster_.run_until_answered(put, kAnswerMax)) failures_.push_back(name_of(put));
  }
  std::vector<ObjectId> put_on_all() {
    std::vector<ObjectId> names;
    for (std::size_t node = 0; node < cluster_.size(); ++node) {
      names.push_back(next_name());
      asks_.push_back(&cluster_.put(node, names.back(), options()));
    }
    wait();
    cluster_.run_for(kAftermath);
    return names;
  }
  void ask(std::size_t node, const ObjectId& object) {
    asks_.push_back(&cluster_.get(node, object));
  }
  void wait() {
    std::size_t first = 0;
    const auto is_done = [&] {
      while (first < asks_.size() && !asks_[first]->is_pending()) ++first;
      return first == asks_.size();
    };
    if (!cluster_.run_until(is_done, kAnswerMax)) failures_.push_back(name_of(*asks_[first]));
    for (const Request* request : asks_) {
      if (request->error) failures_.push_back(name_of(*request) + ": " + request->error->text);
    }
    waited_.swap(asks_);
    asks_.clear();
  }

  ScaleRow begin(std::string name, const std::optional<ObjectId>& object) {
    home_ = object ? home_of(*object) : cluster_.size();
    before_.clear();
    for (std::size_t i = 0; i < cluster_.size(); ++i) before_.push_back(cluster_.load(i));
    asked_ = cluster_.now();
    ScaleRow row;
    row.name = std::move(name);
    row.nodes = cluster_.size();
    row.size_bytes = size_bytes_;
    row.bound_s = copy_s();
    return row;
  }

  ScaleRow end(ScaleRow row) {
    wait();
    for (const Request* request : waited_) {
      if (!request->answered) continue;  // the client's node has died
      const auto took = static_cast<double>((*request->answered - asked_).ns) * 1e-9;
      row.seconds = std::max(row.seconds, took);
      row.depth = std::max(row.depth, request->hops);
    }
    cluster_.run_for(kAftermath);
    for (std::size_t i = 0; i < cluster_.size(); ++i) {
      const NodeLoad& load = cluster_.load(i);
      const std::uint64_t sent = load.messages_sent - before_[i].messages_sent;
      const std::uint64_t both = sent + load.messages_heard - before_[i].messages_heard;
      row.messages += sent;
      row.message_bytes += load.message_bytes_sent - before_[i].message_bytes_sent;
      if (i == home_) row.messages_home = both;
      row.messages_busiest = std::max(row.messages_busiest, both);
      row.turns += load.turns - before_[i].turns;
      row.turns_busiest = std::max(row.turns_busiest, load.turns - before_[i].turns);
      row.shard_max = std::max(row.shard_max, cluster_.stats(i).directory_entries);
    }
    row.failures = std::move(failures_);
    failures_.clear();
    const auto& violations = cluster_.checker().failures();
    row.failures.insert(row.failures.end(), violations.begin(), violations.end());
    return row;
  }

  // Deletes what the case before has left.
  void clear() {
    for (Request& request : cluster_.requests()) cluster_.release(request);
    for (; deleted_ < named_; ++deleted_) {
      cluster_.erase(0, object_named(deleted_ + 1), Incarnation{1});
    }
    cluster_.run_for(kTombstoneLifeHere * 2 + kAftermath);
  }

  std::size_t home_of(const ObjectId& object) const {
    std::size_t home = 0;
    for (std::size_t i = 0; i < cluster_.size(); ++i) {
      if (weight_of(object, NodeId{i + 1}) > weight_of(object, NodeId{home + 1})) home = i;
    }
    return home;
  }

  std::uint64_t size_bytes_;
  Cluster cluster_;
  std::uint64_t named_ = 0, deleted_ = 0;
  std::size_t home_ = 0;
  Instant asked_;
  std::vector<NodeLoad> before_;
  std::vector<Request*> asks_, waited_;
  std::vector<std::string> failures_;
};

}  // namespace

void measure_scale(const ScaleOptions& options, const std::function<void(const ScaleRow&)>& tell) {
  for (const std::size_t nodes : options.nodes) {
    for (const std::uint64_t size_bytes : options.sizes_bytes) {
      Scale scale(nodes, size_bytes);
      for (const bool all_wait : {false, true}) tell(scale.broadcast(all_wait));
      for (const bool everywhere : {false, true}) tell(scale.reduce(everywhere));
      if (size_bytes > kInlineBytesMax) {
        tell(scale.death_of_a_relay());
        continue;
      }
      if (nodes * size_bytes <= kStoredArenaBytes / 2) {
        tell(scale.gather(false));
        if (nodes <= kAllgatherNodesMax) tell(scale.gather(true));
      }
      // Each object has a copy at its home, and an arena is not to be more than half full.
      if (options.directory_objects * size_bytes > nodes * kStoredArenaBytes / 4) continue;
      tell(scale.many_objects(options.directory_objects));
      tell(scale.change_of_the_view(options.directory_objects));
    }
  }
}

std::string json_of(const ScaleRow& row) {
  std::string text = "{\"case\": \"" + row.name + "\"";
  const auto add = [&](const char* name, auto value) {
    text += std::string(", \"") + name + "\": " + std::to_string(value);
  };
  add("nodes", row.nodes);
  add("size_bytes", row.size_bytes);
  add("objects", row.objects);
  add("seconds", row.seconds);
  add("bound_s", row.bound_s);
  add("depth", row.depth);
  add("messages", row.messages);
  add("message_bytes", row.message_bytes);
  add("messages_home", row.messages_home);
  add("messages_busiest", row.messages_busiest);
  add("turns", row.turns);
  add("turns_busiest", row.turns_busiest);
  add("shard_max", row.shard_max);
  text += ", \"failures\": " + std::to_string(row.failures.size());
  return text + "}";
}

}  // namespace hoplite::sim
