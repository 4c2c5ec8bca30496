// SPDX-License-Identifier: Apache-2.0
// The helper threads of a node: its disk, and the making of objects of a base and deltas.
#include <algorithm>

#include "sim/cluster/cluster.h"
#include "sim/model/content.h"
#include "sim/model/describe.h"
#include "wire/crc32c.h"

namespace hoplite::sim {

void Cluster::hear_job_end(Node& node, const IoEvent& ended) {
  run_in_turn(node.index, node.life,
              [this, ended](Node& awake) {
                if (config_.trace) trace(awake, describe(ended));
                awake.engine->handle_io(ended, clock_of(awake));
              },
              {});
}

// A disk does one job after the other, and goes on while its node is paused.
void Cluster::submit_to_disk(Node& node, const SpillJob& job) {
  const Duration taken{
      static_cast<std::int64_t>(job.arena.size_bytes * 1'000'000'000 / config_.disk_bytes_per_s)};
  node.disk_free_at = std::max(node.disk_free_at, now()) + taken;
  timeline_.at(node.disk_free_at, [this, index = node.index, life = node.life, job] {
    Node& done = *nodes_[index];
    if (!done.alive || done.life != life) return;
    const SpillDone answer{job.spill, move_on_disk(done, job)};
    if (job.way == SpillWay::kFree) return;
    hear_job_end(done, answer);
  });
}

// Returns what went wrong, or nothing.
std::string Cluster::move_on_disk(Node& node, const SpillJob& job) {
  if (job.way == SpillWay::kFree) {
    const auto first = node.disk.lower_bound(job.file.offset);
    const auto last = node.disk.lower_bound(job.file.offset + job.file.size_bytes);
    for (auto it = first; it != last; ++it) node.disk_used -= it->second.size();
    node.disk.erase(first, last);
    return {};
  }
  const bool fails = prng_.below(1000) < config_.disk_faults_per_mille;
  const auto bytes = bytes_at(node, job.arena);
  if (job.way == SpillWay::kWrite) {
    if (fails || node.disk_used + bytes.size() > config_.disk_bytes) return "no space left on disk";
    const auto [at, is_new] =
        node.disk.emplace(job.file.offset, std::vector<std::byte>(bytes.begin(), bytes.end()));
    if (!is_new) checker_.fail("a range of the disk is written twice");
    node.disk_used += bytes.size();
    return {};
  }
  if (fails) {
    checker_.note_copy_loss(job.object, node.index, node.life);
    return "input/output error";
  }
  const auto at = node.disk.find(job.file.offset);
  const bool is_there = at != node.disk.end() && at->second.size() == bytes.size();
  // The engine may have released the spilled copy meanwhile. It then never reads the range.
  if (is_there) std::copy(at->second.begin(), at->second.end(), bytes.begin());
  return {};
}

// A helper does one step after the other. It reads and writes the arena when the step ends: until
// then other bytes may have taken the place of those that the engine meant.
void Cluster::submit_to_helper(Node& node, const RebuildJob& job) {
  const Duration taken{
      static_cast<std::int64_t>(job.step_bytes * 1'000'000'000 / config_.rebuild_bytes_per_s)};
  node.helper_free_at = std::max(node.helper_free_at, now()) + taken;
  timeline_.at(node.helper_free_at, [this, index = node.index, life = node.life, job] {
    Node& done = *nodes_[index];
    if (!done.alive || done.life != life) return;
    if (job.way == RebuildWay::kForget) {
      if (done.rebuilt.erase(job.rebuild) == 0) checker_.fail("a helper forgets what it never did");
      return;
    }
    const RebuildDone answer = make_step(done, job);
    if (answer.is_whole || !answer.error.empty()) done.rebuilt.erase(job.rebuild);
    hear_job_end(done, answer);
  });
}

RebuildDone Cluster::make_step(Node& node, const RebuildJob& job) {
  const auto base = bytes_at(node, job.base);
  const auto target = bytes_at(node, job.target);
  std::vector<std::span<const std::byte>> deltas;
  for (const Extent& delta : job.deltas) deltas.emplace_back(bytes_at(node, delta));
  std::uint64_t& made = node.rebuilt.try_emplace(job.rebuild, 0).first->second;
  const std::uint64_t from = std::exchange(made, std::min(made + job.step_bytes, target.size()));
  const bool fails =
      config_.rebuild_faults_per_mille > 0 && prng_.below(1000) < config_.rebuild_faults_per_mille;
  if (!job.runs.empty()) {
    if (fails) return {job.rebuild, false, "a step has failed"};
    gather_runs(job.runs, base, from, made, target);
  } else if (fails || !apply_deltas(base, deltas, from, made, target)) {
    return {job.rebuild, false, "a delta is corrupt"};
  }
  if (made < target.size()) return {job.rebuild, false, ""};
  const bool trusts = config_.canary == Canary::kTrustBase || !job.runs.empty();
  if (!trusts && (crc32c(target) != job.crc32c || !are_deltas_of(base, target, deltas))) {
    return {job.rebuild, false, "the deltas are of another version"};
  }
  std::uint32_t hops = node.hops.of(job.base);
  for (const Extent& delta : job.deltas) hops = std::max(hops, node.hops.of(delta));
  node.hops.set(job.target, hops);
  checker_.check_rebuilt(job.object, target, node.index);
  return {job.rebuild, true, ""};
}

}  // namespace hoplite::sim
