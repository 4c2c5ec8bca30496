// SPDX-License-Identifier: Apache-2.0
#include "node/jobs/spiller.h"

#include <utility>

#include "io/log.h"

namespace hoplite {

Result<std::unique_ptr<Spiller>> Spiller::start(const std::string& directory, const Arena& arena,
                                                const Poller& poller) {
  auto file = SpillFile::open(directory);
  if (!file) return file.error();
  return std::unique_ptr<Spiller>(new Spiller(std::move(*file), arena, poller));
}

Spiller::Spiller(SpillFile file, const Arena& arena, const Poller& poller)
    : file_(std::move(file)),
      arena_(&arena),
      worker_("hoplite-spill", poller, [this](const SpillJob& job) { return work(job); }) {}

std::optional<SpillDone> Spiller::work(const SpillJob& job) {
  const auto moved = move(job);
  if (job.way == SpillWay::kFree) return std::nullopt;
  if (!moved && !has_failed_) log_warning(kSpillLogger, moved.error().text);
  has_failed_ = !moved;
  return SpillDone{job.spill, moved ? "" : moved.error().text};
}

Result<void> Spiller::move(const SpillJob& job) const {
  switch (job.way) {
    case SpillWay::kWrite:
      return file_.write(arena_->at(job.arena), job.file.offset);
    case SpillWay::kRead:
      return file_.read(arena_->at(job.arena), job.file.offset);
    case SpillWay::kFree:
      file_.free(job.file);
  }
  return {};
}

}  // namespace hoplite
