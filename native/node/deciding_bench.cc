// SPDX-License-Identifier: Apache-2.0
// What the decisions of an engine cost for each block that leaves or arrives, without the bytes:
// deciding_bench NODES SIZE_BYTES BLOCK_BYTES EVENTS_PER_TURN ROUNDS. Engines are wired to each
// other by queues, and a turn takes so many events of its queue, as the reactor does; only the
// engine's own time counts. One JSON object per collective; benchmarks/deciding.py reads them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "plan/engine/engine.h"

namespace hoplite {
namespace {

using Clock = std::chrono::steady_clock;

constexpr ClientId kClient{1};
constexpr Duration kTurnTime = 2_us;  // of virtual time, for the rates that engines measure

struct Options {
  std::size_t nodes = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;
  std::size_t events_per_turn = 0;
  std::size_t rounds = 0;
};

struct Cost {
  double seconds = 0;  // of the engines
  std::uint64_t turns = 0;
  std::uint64_t events = 0;
};

class Wired {
 public:
  explicit Wired(const Options& options) : options_(options) {
    for (std::size_t i = 0; i < options.nodes; ++i) {
      EngineConfig config;
      config.node = NodeId{i + 1};
      config.arena_bytes = 64 * options.size_bytes + 1_GiB;  // a number: no byte is stored
      config.block_bytes_min = config.block_bytes_max = options.block_bytes;
      config.tombstone_life = 10_ms;
      nodes_.push_back({.engine = std::make_unique<Engine>(config, i)});
      members_.push_back({config.node, config.incarnation, {"rail"}});
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      command(i, SetViewCommand{Epoch{1}, members_});
    }
    run();
  }

  void put(std::size_t node, const ObjectId& object) {
    ObjectMeta meta;
    meta.size_bytes = options_.size_bytes;
    meta.parts = {{DType::kFloat32, options_.size_bytes}};
    command(node, PutCommand{object, Incarnation{1}, meta, {}});
  }
  void get(std::size_t node, const ObjectId& object) { command(node, GetCommand{object, false}); }
  void reduce(std::size_t node, const ObjectId& target, const std::vector<ObjectId>& sources,
              bool everywhere) {
    const auto count = static_cast<std::uint32_t>(sources.size());
    command(node, ReduceCommand{.target = target,
                                .op = ReduceOp::kSum,
                                .source_count = count,
                                .count = count,
                                .everywhere = everywhere});
    for (std::uint32_t i = 0; i < count; ++i) {
      command(node, ReduceSourceCommand{target, ReduceSource{i, sources[i], Incarnation{}}});
    }
  }
  void erase(const ObjectId& object) { command(0, DeleteCommand{object, Incarnation{1}}); }

  // Runs until no event is under way.
  void run() {
    for (bool is_busy = true; is_busy;) {
      is_busy = false;
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        now_ = now_ + kTurnTime;
        is_busy = take_turn(i) || is_busy;
      }
    }
  }
  // Runs for so much virtual time as well, in which deletions end.
  void run_for(Duration duration) {
    for (const Instant end = now_ + duration; now_ < end; now_ = now_ + 1_ms) run();
  }

  [[nodiscard]] const Cost& cost() const { return cost_; }
  [[nodiscard]] std::uint64_t blocks() const {  // that have left or arrived
    std::uint64_t blocks = 0;
    for (const Node& node : nodes_) {
      const EngineStats stats = node.engine->stats();
      blocks += stats.blocks_sent + stats.blocks_received;
    }
    return blocks;
  }
  [[nodiscard]] std::uint64_t fetch_count() const { return fetched_; }

 private:
  struct Node {
    std::unique_ptr<Engine> engine;
    std::deque<Command> commands = {};
    std::deque<IoEvent> events = {};
    std::map<std::pair<NodeId, TransferId>, std::uint32_t> receives = {};  // -> bytes of a block
  };

  Node& node_of(NodeId id) { return nodes_[id.value - 1]; }
  void command(std::size_t node, CommandBody body) {
    const RequestId request{++last_request_};
    if (const auto* put = std::get_if<PutCommand>(&body)) puts_[request] = put->object;
    if (const auto* get = std::get_if<GetCommand>(&body)) gets_[request] = get->object;
    nodes_[node].commands.push_back({kClient, request, std::move(body)});
  }

  // Returns false if the node had nothing to do.
  bool take_turn(std::size_t index) {
    Node& node = nodes_[index];
    const auto due = node.engine->poll_timeout();
    const bool is_due = due && *due <= now_;
    if (node.commands.empty() && node.events.empty() && !is_due) return false;
    const auto begun = Clock::now();
    for (; !node.commands.empty(); node.commands.pop_front()) {
      node.engine->handle_command(std::move(node.commands.front()), now_);
    }
    for (std::size_t i = 0; i < options_.events_per_turn && !node.events.empty(); ++i) {
      node.engine->handle_io(std::move(node.events.front()), now_);
      node.events.pop_front();
      ++cost_.events;
    }
    node.engine->handle_timeout(now_);
    while (auto action = node.engine->poll_action()) actions_.push_back(std::move(*action));
    cost_.seconds += std::chrono::duration<double>(Clock::now() - begun).count();
    ++cost_.turns;
    for (Action& action : actions_) {
      std::visit([&](auto& deed) { perform(index, deed); }, action);
    }
    actions_.clear();
    return true;
  }

  void perform(std::size_t node, SendMessage& send) {
    node_of(send.to).events.emplace_back(MessageIn{id_of(node), std::move(send.message), {}});
  }
  void perform(std::size_t node, SendBlock& send) {
    nodes_[node].events.emplace_back(
        BlockSent{send.to, send.rail, send.extent.size_bytes, send.ticket});
    Node& to = node_of(send.to);
    const auto open = to.receives.find({id_of(node), send.header.transfer});
    if (open == to.receives.end()) return;
    const BlockIndex block{static_cast<std::uint32_t>(send.header.offset / open->second)};
    to.events.emplace_back(BlockLanded{id_of(node), send.header.transfer, block});
  }
  void perform(std::size_t node, OpenReceive& open) {
    nodes_[node].receives[{open.from, open.transfer}] = open.meta.block_bytes;
  }
  void perform(std::size_t node, CloseReceive& close) {
    nodes_[node].receives.erase({close.from, close.transfer});
    nodes_[node].events.emplace_back(ReceiveClosed{close.from, close.transfer});
  }
  void perform(std::size_t node, Connect& connect) {
    nodes_[node].events.emplace_back(LinkUp{connect.member.node, connect.member.incarnation});
  }
  void perform(std::size_t node, ReplyToClient& reply) {
    if (const auto error = error_of(reply.reply)) {
      std::fprintf(stderr, "deciding_bench: %s\n", error->text.c_str());
      std::exit(1);
    }
    if (std::holds_alternative<Reserved>(reply.reply)) {
      const ObjectId object = puts_.extract(reply.request).mapped();
      command(node, WroteCommand{object, Incarnation{1}, options_.size_bytes, false});
    }
    if (const auto* got = std::get_if<Fetched>(&reply.reply)) {
      ++fetched_;
      command(node, ReleaseCommand{gets_.extract(reply.request).mapped(), got->incarnation});
    }
  }
  template <typename Other>
  void perform(std::size_t, Other&) {}

  static NodeId id_of(std::size_t index) { return NodeId{index + 1}; }

  Options options_;
  std::vector<Node> nodes_;
  std::vector<Member> members_;
  std::vector<Action> actions_;
  std::map<RequestId, ObjectId> puts_, gets_;
  std::uint64_t last_request_ = 0, fetched_ = 0;
  Cost cost_;
  Instant now_{1'000'000'000};
};

enum class Collective : std::uint8_t { kBroadcast, kReduce, kAllreduce };

// Runs one collective on objects of names of its own. Returns what it has cost, and the blocks.
std::pair<Cost, std::uint64_t> run_once(Wired& wired, const Options& options, Collective which,
                                        std::uint32_t round) {
  const auto named = [&](std::uint8_t i) {
    ObjectId id;
    id.bytes[0] = static_cast<std::uint8_t>(which);
    id.bytes[1] = i;
    for (int at = 0; at < 4; ++at) id.bytes[2 + at] = static_cast<std::uint8_t>(round >> (8 * at));
    return id;
  };
  const bool is_broadcast = which == Collective::kBroadcast;
  std::vector<ObjectId> sources;
  for (std::size_t i = 0; i < (is_broadcast ? 1 : options.nodes); ++i) {
    sources.push_back(named(static_cast<std::uint8_t>(i)));
    wired.put(i, sources.back());
  }
  wired.run();
  const Cost before = wired.cost();
  const std::uint64_t blocks_before = wired.blocks();
  const std::uint64_t fetched_before = wired.fetch_count();
  const ObjectId target = is_broadcast ? sources.front() : named(255);
  const bool is_read_by_all = which != Collective::kReduce;
  const std::size_t readers = is_read_by_all ? options.nodes : 1;
  if (!is_broadcast) wired.reduce(0, target, sources, is_read_by_all);
  for (std::size_t i = 0; i < readers; ++i) wired.get(i, target);
  wired.run();
  HOPLITE_CHECK(wired.fetch_count() - fetched_before == readers);
  const Cost& after = wired.cost();
  const std::pair result{Cost{after.seconds - before.seconds, after.turns - before.turns,
                              after.events - before.events},
                         wired.blocks() - blocks_before};
  for (const ObjectId& source : sources) wired.erase(source);
  if (!is_broadcast) wired.erase(target);
  wired.run_for(50_ms);
  return result;
}

void measure(const Options& options, Collective which, std::string_view name) {
  Wired wired(options);
  std::vector<double> us_per_block;
  std::pair<Cost, std::uint64_t> last;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    last = run_once(wired, options, which, round);
    const double us = last.first.seconds * 1e6 / static_cast<double>(last.second);
    if (round > 0) us_per_block.push_back(us);  // the first one warms up
  }
  const auto& [cost, blocks] = last;
  std::printf(
      "{\"collective\": \"%s\", \"nodes\": %zu, \"size_bytes\": %llu, \"block_bytes\": %u, "
      "\"events_per_turn\": %zu, \"blocks\": %llu, \"events\": %llu, \"turns\": %llu, "
      "\"us_per_block\": [",
      name.data(), options.nodes, static_cast<unsigned long long>(options.size_bytes),
      options.block_bytes, options.events_per_turn, static_cast<unsigned long long>(blocks),
      static_cast<unsigned long long>(cost.events), static_cast<unsigned long long>(cost.turns));
  for (std::size_t i = 0; i < us_per_block.size(); ++i) {
    std::printf("%s%.4f", i == 0 ? "" : ", ", us_per_block[i]);
  }
  std::printf("]}\n");
}

}  // namespace
}  // namespace hoplite

int main(int argc, char** argv) {
  using hoplite::Collective;
  const auto number = [&](int at) {
    return at < argc ? std::strtoull(argv[at], nullptr, 10) : 0ULL;
  };
  const hoplite::Options options{number(1), number(2), static_cast<std::uint32_t>(number(3)),
                                 number(4), number(5)};
  const bool is_whole = options.block_bytes >= 64 && options.block_bytes % 64 == 0;
  if (argc != 6 || options.nodes < 2 || options.nodes > 200 || !is_whole ||
      options.size_bytes % 64 != 0 || options.size_bytes < options.block_bytes ||
      options.events_per_turn == 0 || options.rounds == 0) {
    std::fprintf(stderr,
                 "usage: deciding_bench NODES SIZE_BYTES BLOCK_BYTES EVENTS_PER_TURN ROUNDS\n"
                 "2 to 200 nodes; blocks of 64 bytes or a multiple, and no longer than the size\n");
    return 2;
  }
  hoplite::measure(options, Collective::kBroadcast, "broadcast");
  hoplite::measure(options, Collective::kReduce, "reduce");
  hoplite::measure(options, Collective::kAllreduce, "allreduce");
  return 0;
}
