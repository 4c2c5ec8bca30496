// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/explore.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>
#include <unordered_map>

#include "base/check.h"
#include "plan/links/membership.h"
#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

constexpr Duration kAnswerBound = 20_s;  // of virtual time, with nothing under way: many graces

ObjectId source(std::uint32_t index) { return object_named(100 + index); }

// An object whose home is the last of so many nodes: what the first ones say of it travels.
ObjectId object_of(std::size_t nodes) {
  for (std::uint64_t number = 1;; ++number) {
    const ObjectId object = object_named(number);
    const std::uint64_t last = weight_of(object, NodeId{nodes});
    bool is_best = true;
    for (std::size_t node = 1; node < nodes; ++node) {
      is_best = is_best && weight_of(object, NodeId{node}) < last;
    }
    if (is_best) return object;
  }
}

// One schedule of one world.
class Play {
 public:
  Play(const World& world, bool trace)
      : world_(world), object_(object_of(world.nodes)), cluster_(config_of(world, trace)) {
    cluster_.run_for(100_ms);
    begin();
    began_ = cluster_.now();
    wait_for_choices();
  }

  // How many ways there are to go on; 0: this is the end.
  [[nodiscard]] std::size_t choices() const { return in_flight_.size() + victims_.size(); }

  void take(std::size_t choice) {
    if (choice < in_flight_.size()) {
      const Stream stream = in_flight_[choice];
      record(stream);
      cluster_.timeline().step(stream);
    } else {
      const std::size_t victim = victims_[choice - in_flight_.size()];
      record({Stream::Kind::kAtOnce, 0, victim + 1});
      ++deaths_;
      cluster_.crash(victim);
    }
    wait_for_choices();
  }

  // Returns a hash of the state: the messages that each node has heard, in which order and when.
  [[nodiscard]] std::uint64_t state() const {
    std::uint64_t hash = 0;
    for (const auto& [node, history] : histories_)
      hash = mix64(hash ^ mix64(node ^ mix64(history)));
    return hash;
  }

  [[nodiscard]] std::vector<std::string> failures() { return cluster_.checker().failures(); }
  // Deletes everything; nothing may be left then. REQUIRES: the end.
  void finish() { cluster_.finish(); }

 private:
  static ClusterConfig config_of(const World& world, bool trace) {
    ClusterConfig config = ClusterConfig::small(world.stripes);
    config.nodes = world.nodes;
    config.engine.arena_bytes = 1_MiB;
    config.engine.reduce_degree = world.degree;
    if (world.play == World::Play::kSmall) config.engine.inline_bytes_max = 4_KiB;
    config.canary = world.canary;
    config.trace = trace;
    return config;
  }

  void begin() {
    const PutOptions options{.size_bytes = world_.blocks * 1_KiB, .dtype = DType::kFloat32};
    const std::size_t last = world_.nodes - 1;
    const bool is_small = world_.play == World::Play::kSmall;
    if (world_.play == World::Play::kReduce || is_small) {
      const std::size_t first = is_small ? world_.nodes - 2 : 0;
      const std::size_t caller = is_small ? 0 : last;
      for (std::uint32_t i = 0; i < 2; ++i) {
        cluster_.run_until_answered(cluster_.put(first + i, source(i), options));
      }
      cluster_.run_for(10_ms);
      Request& reduce = cluster_.reduce(caller, object_, {.source_count = 2, .count = 2});
      for (std::uint32_t i = 0; i < 2; ++i) cluster_.confirm(reduce, i, source(i));
      cluster_.get(last, object_, false, ClientId{2});
      return;
    }
    cluster_.put(0, object_, options);
    if (world_.play == World::Play::kBroadcast) {
      for (std::size_t node = 1; node < world_.nodes; ++node) cluster_.get(node, object_, true);
      return;
    }
    cluster_.get(last, object_, false, ClientId{2});
    cluster_.erase(last, object_, Incarnation{1});
    PutOptions again = options;
    again.incarnation = Incarnation{2};
    again.client = ClientId{3};
    cluster_.put(last, object_, again);
  }

  void record(const Stream& stream) {
    std::uint64_t& history = histories_[stream.to];
    history = mix64(history ^ mix64(static_cast<std::uint64_t>(stream.kind) ^ mix64(stream.from)) ^
                    mix64(static_cast<std::uint64_t>(cluster_.now().ns)));
  }

  // Runs timers while nothing is in flight, until there is a choice or no answer is owed.
  void wait_for_choices() {
    in_flight_ = cluster_.timeline().streams_in_flight();
    while (in_flight_.empty() && is_owed() && failures().empty()) {
      if (cluster_.now() - began_ > kAnswerBound || !cluster_.timeline().next_at()) {
        for (const Request& request : cluster_.requests()) {
          if (request.is_pending()) cluster_.checker().fail("never answered: " + name_of(request));
        }
        break;
      }
      cluster_.timeline().step(Stream{});
      in_flight_ = cluster_.timeline().streams_in_flight();
    }
    victims_.clear();
    if (!failures().empty()) in_flight_.clear();
    if (in_flight_.empty() || deaths_ == world_.deaths) return;
    for (std::size_t node = 0; node < world_.nodes; ++node) {
      if (cluster_.is_alive(node)) victims_.push_back(node);
    }
  }

  [[nodiscard]] bool is_owed() {
    return std::any_of(cluster_.requests().begin(), cluster_.requests().end(),
                       [&](const Request& r) { return r.is_pending() && !is_hopeless(r); });
  }
  // True for a get of an object that died with its putter, if the client does not know of the put.
  [[nodiscard]] bool is_hopeless(const Request& request) {
    return request.verb == Verb::kGet && !request.exists &&
           !cluster_.checker().has_live_copy(request.object) &&
           std::none_of(cluster_.requests().begin(), cluster_.requests().end(),
                        [](const Request& r) { return r.verb != Verb::kGet && r.is_pending(); });
  }

  World world_;
  ObjectId object_;
  Cluster cluster_;
  Instant began_{};
  std::vector<Stream> in_flight_;
  std::vector<std::size_t> victims_;
  std::uint32_t deaths_ = 0;
  std::map<std::uint64_t, std::uint64_t> histories_;  // by node; 0 is the view's keeper
};

struct Choice {
  std::size_t taken = 0;
  std::size_t count = 0;
};

std::string text_of(const std::vector<Choice>& path) {
  std::string text;
  for (const Choice& choice : path)
    text += (text.empty() ? "" : ".") + std::to_string(choice.taken);
  return text;
}

}  // namespace

Exploration explore(const World& world, std::uint64_t states_max) {
  Exploration result;
  std::unordered_map<std::uint64_t, std::size_t> known;  // with the ways that lead on from there
  std::vector<Choice> path;
  while (true) {
    Play play(world, false);
    for (const Choice& choice : path) play.take(choice.taken);
    auto [at, is_new] = known.emplace(play.state(), play.choices());
    while (is_new && play.choices() > 0 && known.size() < states_max) {
      path.push_back({0, play.choices()});
      play.take(0);
      std::tie(at, is_new) = known.emplace(play.state(), play.choices());
    }
    ++result.schedules;
    HOPLITE_CHECK(at->second == play.choices());  // else what was told does not name the state
    if (is_new && play.choices() == 0) {
      ++result.ends;
      if (play.failures().empty()) play.finish();
      result.failures = play.failures();
      if (!result.failures.empty()) result.schedule = text_of(path);
    }
    while (!path.empty() && path.back().taken + 1 == path.back().count) path.pop_back();
    result.is_complete = path.empty();
    if (path.empty() || !result.failures.empty() || known.size() >= states_max) break;
    ++path.back().taken;
  }
  result.states = known.size();
  return result;
}

std::vector<std::string> replay(const World& world, const std::string& schedule, bool trace) {
  Play play(world, trace);
  std::istringstream choices(schedule);
  std::string choice;
  while (std::getline(choices, choice, '.')) {
    const std::size_t taken = std::strtoull(choice.c_str(), nullptr, 10);
    if (taken >= play.choices()) return {"the schedule is not of this world"};
    play.take(taken);
  }
  if (play.choices() > 0) return {"the schedule ends before the world does"};
  if (play.failures().empty()) play.finish();
  return play.failures();
}

std::vector<World> tiny_worlds() {
  using enum World::Play;
  return {
      {.name = "broadcast-2-death", .play = kBroadcast, .nodes = 2, .blocks = 2, .deaths = 1},
      {.name = "broadcast-3", .play = kBroadcast, .nodes = 3, .blocks = 2},
      {.name = "forest-3", .play = kBroadcast, .nodes = 3, .blocks = 2, .stripes = 2},
      {.name = "race-2", .play = kRace, .nodes = 2},
      {.name = "reduce-2", .play = kReduce, .nodes = 2, .blocks = 2, .stripes = 2},
      {.name = "reduce-2-death", .play = kReduce, .nodes = 2, .deaths = 1},
      {.name = "small-2-death", .play = kSmall, .nodes = 2, .deaths = 1},
      {.name = "small-tree-3", .play = kSmall, .nodes = 3, .blocks = 2, .degree = 1},
  };
}

std::vector<World> small_worlds() {
  using enum World::Play;
  return {
      {.name = "broadcast-3-death", .play = kBroadcast, .nodes = 3, .deaths = 1},
      {.name = "race-2-death", .play = kRace, .nodes = 2, .deaths = 1},
      {.name = "reduce-3", .play = kReduce, .nodes = 3},
      {.name = "reduce-3-death", .play = kReduce, .nodes = 3, .deaths = 1},
      {.name = "small-3-death", .play = kSmall, .nodes = 3, .deaths = 1},
      {.name = "small-tree-3-death", .play = kSmall, .nodes = 3, .deaths = 1, .degree = 1},
  };
}

}  // namespace hoplite::sim
