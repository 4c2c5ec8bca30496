// SPDX-License-Identifier: Apache-2.0
#include "node/jobs/rebuilder.h"

#include <span>
#include <string>
#include <utility>

#include "io/log.h"

namespace hoplite {

static_assert(kRebuildDeltasMax == kDeltasPerPassMax, "all deltas of a recipe fit into one pass");

Rebuilder::Rebuilder(const Arena& arena, const Poller& poller)
    : arena_(&arena),
      worker_("hoplite-rebuild", poller, [this](const RebuildJob& job) { return work(job); }) {}

std::optional<RebuildDone> Rebuilder::work(const RebuildJob& job) {
  if (job.way == RebuildWay::kForget) {
    open_.erase(job.rebuild);
    return std::nullopt;
  }
  const auto made = make_step(job);
  if (!made || *made) open_.erase(job.rebuild);
  if (made) return RebuildDone{job.rebuild, *made, ""};
  const std::string text = job.runs.empty()
                               ? "rebuilding object " + short_name(job.object) + ": " +
                                     made.error().text + "; the node fetches the object whole"
                               : "making part " + short_name(job.object) + ": " +
                                     made.error().text + "; its reader asks another node";
  log_warning(kRebuildLogger, text);
  return RebuildDone{job.rebuild, false, text};
}

Result<bool> Rebuilder::make_step(const RebuildJob& job) {
  if (!open_.contains(job.rebuild)) {
    if (auto begun = begin(job); !begun) return begun.error();
  }
  auto& maker = open_.at(job.rebuild);
  if (auto* gatherer = std::get_if<Gatherer>(&maker)) {
    gatherer->step(arena_->at(job.base), arena_->at(job.target), job.step_bytes);
    return gatherer->is_done();
  }
  auto& applier = std::get<DeltaApplier>(maker);
  if (auto step = applier.step(arena_->at(job.base), arena_->at(job.target), job.step_bytes); !step)
    return step.error();
  return applier.is_done();
}

Result<void> Rebuilder::begin(const RebuildJob& job) {
  if (!job.runs.empty()) {
    if (!do_runs_fit(job.runs, job.base.size_bytes, job.target.size_bytes))
      return Error{Code::kInvalidArgument, "its runs end outside of its source"};
    open_.emplace(job.rebuild, Gatherer(job.runs));
    return {};
  }
  std::vector<std::span<const std::byte>> deltas;
  for (const Extent& delta : job.deltas) deltas.push_back(arena_->at(delta));
  auto applier = DeltaApplier::open(deltas);
  if (!applier) return applier.error();
  if (applier->new_crc() != job.crc32c)
    return Error{Code::kInvalidArgument, "its deltas lead to another version"};
  open_.emplace(job.rebuild, std::move(*applier));
  return {};
}

}  // namespace hoplite
