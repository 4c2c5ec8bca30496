// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/draw.h"

#include "base/check.h"

namespace hoplite::sim {
namespace {

// Draws the first options of a run. A change here changes the run of every seed.
Draw draw_cluster(const RunOptions& options, Prng& prng) {
  const auto between = [&prng](std::uint64_t least, std::uint64_t most) {
    return least + prng.below(most - least + 1);
  };
  // Hoplite's chain, as many as fit no number of receivers well, and as the home chooses.
  static constexpr std::uint16_t kStripes[] = {1, 3, 0};
  Draw draw{ClusterConfig::small(kStripes[prng.below(3)])};
  ClusterConfig& config = draw.cluster;
  config.nodes = between(2, 7);
  config.seed = prng.next();
  config.engine.reduce_stripes = static_cast<std::uint16_t>(prng.below(4));
  config.engine.block_bytes_min = 256ULL << (2 * prng.below(3));
  config.engine.block_bytes_max = config.engine.block_bytes_min * (1ULL << prng.below(3));
  config.engine.inline_bytes_max = prng.chance(50) ? 256 : 2'000;
  config.engine.credit_bytes = between(1, 16) * config.engine.block_bytes_max;
  config.engine.rail_queue_bytes = between(1, 64) * config.engine.block_bytes_max;
  draw.has_small_arena = options.canary == Canary::kNone && prng.chance(25);
  // Each of the eleven sizes of small objects may take a slab of 256 KiB.
  config.engine.arena_bytes = draw.has_small_arena ? between(1, 3) * 1_MiB : 8_MiB;
  config.network.latency = {static_cast<std::int64_t>(between(5'000, 2'000'000))};
  config.network.jitter_max = prng.chance(50) ? Duration{0} : 1_ms;
  config.network.detection = {static_cast<std::int64_t>(between(1'000'000, 100'000'000))};
  config.network.redial = {static_cast<std::int64_t>(between(500'000, 20'000'000))};
  config.network.rate_bytes_per_s = 2'000'000ULL << prng.below(10);
  config.view_delay_max = {static_cast<std::int64_t>(between(1'000'000, 200'000'000))};
  config.write_bytes_per_s = 1'000'000ULL << prng.below(12);
  config.blocks_per_write = static_cast<std::uint32_t>(between(1, 8));
  config.check_every = 1;
  if (options.canary == Canary::kNone && prng.chance(10)) {
    config.lies_per_mille = static_cast<std::uint32_t>(between(1, 100));
  }
  return draw;
}

// Chooses more options by bits of the cluster's seed, because a draw would change all later draws.
void add_by_bits(Draw& draw) {
  ClusterConfig& config = draw.cluster;
  // A quarter of the runs have trees of 1 to 3; in a third small sources are pulled, not carried.
  const std::uint64_t bits = mix64(config.seed);
  if (bits % 4 == 0) config.engine.reduce_degree = static_cast<std::uint16_t>(1 + bits / 4 % 3);
  // Half of the runs expect slow links, so that large objects go along chains.
  if (bits / 4096 % 2 == 0) config.engine.link_bytes_per_s = 1'000'000;
  config.clients_send_up_to_64_kib = bits / 8192 % 2 == 0;
  config.doubts_deaths = bits / 16 % 3 == 0;
  if (bits / 64 % 3 == 0) config.engine.carried_bytes_max = 100;
  // Half of the runs park few messages for a later view.
  if (bits / 1'048'576 % 2 == 0) {
    config.engine.parked_messages_max = 1 + bits / 2'097'152 % 16;
    config.engine.parked_bytes_max = 16_KiB << (bits / 33'554'432 % 4);
  }
  // Half of the runs remember few objects and delete few at once.
  if (bits / 134'217'728 % 2 == 0) {
    config.engine.recent_objects_max = 1 + bits / 268'435'456 % 16;
    config.engine.deletes_max = 1 + bits / 4'294'967'296 % 16;
    config.engine.fold_bytes_max = 1 + bits / 68'719'476'736 % 65'536;
  }
  // Half of the runs with small arenas spill, a third of them to a disk that is small or faulty.
  if (draw.has_small_arena && bits / 256 % 2 == 0) {
    config.engine.when_full = WhenFull::kSpill;
    config.disk_bytes_per_s = 1'000'000ULL << (bits / 512 % 10);
    if (bits / 8192 % 3 == 0) config.disk_bytes = config.engine.arena_bytes;
    if (bits / 8192 % 3 == 1) config.disk_faults_per_mille = 50;
  }
  // In half of the runs a receive may still write after it was closed.
  if (config.canary == Canary::kNone && bits / 32 % 2 == 0) {
    config.closing_max = {1'000LL << (bits / 1'024 % 13)};  // 1 us to 4 ms
  }
  // A quarter have links with long queues.
  if (config.canary == Canary::kNone && bits / 16384 % 4 == 0) config.withheld_per_mille = 300;
}

// Shrinks every limit of a queue, a table or a turn to 8 to 16 entries or a few blocks.
void shrink_limits(ClusterConfig& config, Prng prng) {
  const auto count = [&prng] { return 8 + prng.below(9); };
  const auto blocks = [&] { return (2 + prng.below(3)) * config.engine.block_bytes_max; };
  EngineConfig& engine = config.engine;
  engine.parked_messages_max = count();
  engine.parked_bytes_max = count() * (engine.inline_bytes_max + 1_KiB);
  engine.deletes_max = count();
  engine.recent_objects_max = count();
  engine.forward_list_max = 1 + prng.below(3);  // of nine nodes at most
  engine.progress_per_window_max = count();
  engine.steps_per_turn_max = count();
  engine.fold_window_max = static_cast<std::uint32_t>(count());
  engine.fold_slots_bytes_max = blocks();
  engine.fold_bytes_max = blocks();
  engine.combined_bytes_max = blocks();
  engine.rail_queue_bytes = blocks();
  engine.spill_step_bytes = blocks();
  engine.carried_together_bytes_max = count() * 64;
  config.layout_table_bytes_max = count() * 64;
}

// Makes turns like the reactor's, whose actions take time. One peer is heard before others, and the
// messages or the blocks of links are late.
void make_turns_real(ClusterConfig& config, bool has_small_limits, Prng prng) {
  const auto up_to = [&prng](Duration most) {
    return Duration{static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(most.ns) + 1))};
  };
  TurnConfig& turns = config.turns;
  turns.are_real = true;
  if (has_small_limits) {
    turns.limits.commands_max = 8 + prng.below(9);
    turns.limits.actions_max = 8 + prng.below(9);
    turns.limits.bytes_max = (4 + prng.below(5)) * config.engine.block_bytes_max;
  }
  if (prng.chance(50)) turns.per_action = up_to(20_us);
  turns.bytes_per_s = 4'000'000ULL << prng.below(10);
  turns.stretch_max = up_to(20_ms);
  const std::uint64_t late = prng.below(3);
  if (late < config.network.late_max.size()) config.network.late_max[late] = up_to(20_ms);
}

// Steps of a few blocks, by a helper of any speed; in a third of these runs some steps fail.
void add_rebuilds(ClusterConfig& config, Prng prng) {
  config.engine.spill_step_bytes = (1 + prng.below(8)) * config.engine.block_bytes_max;
  config.rebuild_bytes_per_s = 1'000'000ULL << prng.below(12);
  if (config.canary == Canary::kNone && prng.chance(30)) config.rebuild_faults_per_mille = 50;
}

}  // namespace

Draw draw_run(const RunOptions& options, Prng& prng) {
  Draw draw = draw_cluster(options, prng);
  draw.cluster.canary = options.canary;
  draw.cluster.trace = options.trace;
  add_by_bits(draw);
  Prng more(mix64(draw.cluster.seed ^ 0x6c696d697473));
  const auto chooses = [&more](Choice choice, std::uint32_t percent) {
    const bool is_drawn = more.chance(percent);
    return choice == Choice::kAlways || (choice == Choice::kDrawn && is_drawn);
  };
  draw.has_small_limits = chooses(options.small_limits, 50);
  const bool is_fair = !chooses(options.real_turns, 50) || options.canary != Canary::kNone;
  if (draw.has_small_limits) shrink_limits(draw.cluster, more);
  const bool has_liar = chooses(options.liar, 15) && draw.cluster.lies_per_mille == 0;
  if (has_liar && options.canary == Canary::kNone) {
    draw.cluster.liar = more.below(draw.cluster.nodes);
    draw.cluster.lie_every = {static_cast<std::int64_t>(100'000ULL << more.below(8))};
  }
  if (!is_fair) make_turns_real(draw.cluster, draw.has_small_limits, more);
  Prng others(mix64(draw.cluster.seed ^ 0x72656275696c64));  // a seed's other draws stay
  const bool is_drawn = others.chance(30) || options.canary == Canary::kTrustBase;
  draw.has_rebuilds =
      options.rebuilds == Choice::kAlways || (options.rebuilds == Choice::kDrawn && is_drawn);
  if (draw.has_rebuilds) add_rebuilds(draw.cluster, others);
  const auto fault = fault_of(draw.cluster.engine);
  HOPLITE_CHECK(!fault);
  return draw;
}

}  // namespace hoplite::sim
