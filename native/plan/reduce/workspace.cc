// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/workspace.h"

#include <algorithm>

#include "base/check.h"
#include "plan/reduce/pairwise.h"

namespace hoplite {
namespace {

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kPartAlignBytes - 1) / kPartAlignBytes * kPartAlignBytes;
}

// Bytes of cell 0, which has accumulators of the 16-bit elements only.
std::uint64_t halves_bytes(const ObjectMeta& meta, BlockIndex block) {
  std::uint64_t bytes = 0;
  for (const Run& run : runs_of(meta, block_extent(meta, block))) {
    if (is_half(run.dtype)) bytes += 2 * run.range.size_bytes;
  }
  return aligned(bytes);
}
// Bytes of each other cell.
std::uint64_t cell_bytes(const ObjectMeta& meta, BlockIndex block) {
  std::uint64_t bytes = 0;
  for (const Run& run : runs_of(meta, block_extent(meta, block))) {
    bytes += is_half(run.dtype) ? 2 * run.range.size_bytes : run.range.size_bytes;
  }
  return aligned(bytes);
}

// Members' blocks in flight to an owner, in windows of one transfer (decision 19b). With one
// reader: 1, so that all members get along evenly and the first blocks reach the reader soon. When
// all nodes read: 8, so that no uplink runs dry while its blocks queue at others. Beyond 8 an
// allreduce takes no less time.
constexpr std::uint64_t kFoldWindowsEverywhere = 8;
// From this many windows on, in one block of each member, a member has one block in flight only. A
// second block would queue in front of the owner, and delay its messages
// (docs/internals/performance/collectives.md). Only for a single reader: when all nodes read, they
// wait for all owners.
constexpr std::uint64_t kFoldWindowsOfOneEach = 1;
// Blocks that a pull may be ahead of the others (decision 5j): 2 for one reader, and 4 when all
// nodes read, because the members' uplinks then have results to send as well. A pull that is
// further ahead gets no credit.
constexpr std::uint32_t kFoldLead = 2, kFoldLeadEverywhere = 4;
// Divisor of the stripe that caps a member's window where other owners pull from it too: at most a
// third is in flight. With 1 the first owner's stripe leaves whole, and other owners' blocks and
// messages queue behind it. More parts are faster, but cost CPU time (decision 5j).
constexpr std::uint32_t kFoldParts = 3;
// Inputs of a chain's root: the chain's end, and perhaps a spare that comes later.
constexpr std::uint32_t kUnaryMembers = 2;

}  // namespace

// Pulls from all members at once, so that a block is whole, and can be passed on, while the next
// ones are in flight. Pulls from fewer where even two blocks of each member are too much.
FoldPulls fold_pulls(const ReduceOwn& own, const EngineConfig& config, std::uint64_t bytes_max) {
  const std::uint64_t block_bytes = own.meta.block_bytes;
  const auto affordable = config.fold_slots_bytes_max / (config.credit_blocks_min * block_bytes);
  FoldPulls pulls;
  const std::uint32_t members = own.is_unary ? kUnaryMembers : own.count;
  pulls.at_once = std::min<std::size_t>(members, std::max<std::uint64_t>(affordable, 2));
  const std::uint64_t windows = own.everywhere ? kFoldWindowsEverywhere : 1;
  const std::uint64_t share = windows * config.credit_bytes / (pulls.at_once * block_bytes);
  pulls.window = static_cast<std::uint32_t>(std::min<std::uint64_t>(share, config.fold_window_max));
  const auto most = stripe_blocks(own.meta.block_count(), own.stripe_count, StripeIndex{0});
  if (own.stripe_count > 1) pulls.window = std::min(pulls.window, most / kFoldParts);
  const bool one_is_enough =
      !own.everywhere && pulls.at_once * block_bytes >= kFoldWindowsOfOneEach * config.credit_bytes;
  pulls.window = std::max(pulls.window, one_is_enough ? 1U : config.credit_blocks_min);
  pulls.window = std::min(pulls.window, std::max(most, 1U));
  const std::size_t blocks = std::max<std::size_t>(bytes_max / block_bytes, 1);
  pulls.at_once = std::min(pulls.at_once, blocks);
  const std::uint64_t fit = bytes_max / (pulls.at_once * block_bytes);
  pulls.window = static_cast<std::uint32_t>(std::min<std::uint64_t>(pulls.window, fit));
  pulls.lead = own.everywhere ? kFoldLeadEverywhere : kFoldLead;
  pulls.slot_bytes = pulls.window * block_bytes;
  return pulls;
}

ObjectId workspace_key(const ObjectId& target) {
  ObjectId key = target;
  for (auto& byte : key.bytes) byte = static_cast<std::uint8_t>(byte ^ 0xa5);
  return key;
}

std::optional<std::uint64_t> Workspace::ask(const ReduceOwn& own, std::uint64_t slots_bytes) {
  std::map<BlockIndex, std::uint64_t> missing;
  const std::uint64_t more =
      own.deterministic ? pairwise_cells(own.source_count, own.count) - 1 : 0;
  const bool has_halves = std::any_of(own.meta.parts.begin(), own.meta.parts.end(),
                                      [](const Part& part) { return is_half(part.dtype); });
  for (const StripeIndex stripe : own.owned) {
    const auto total = stripe_blocks(own.meta.block_count(), own.stripe_count, stripe);
    for (std::uint32_t n = 0; (has_halves || more > 0) && n < total; ++n) {
      const BlockIndex block = stripe_block(own.stripe_count, stripe, n);
      if (cells_.contains(block)) continue;
      const auto bytes = halves_bytes(own.meta, block) + more * cell_bytes(own.meta, block);
      if (bytes > 0) missing.emplace(block, bytes);
    }
  }
  const bool is_known = std::includes(asked_.begin(), asked_.end(), missing.begin(), missing.end());
  if (is_asking_ ? is_known : slots_ && missing.empty()) return std::nullopt;
  is_asking_ = true;
  asked_ = std::move(missing);
  slots_asked_bytes_ = slots_ ? 0 : slots_bytes;
  std::uint64_t total = slots_asked_bytes_;
  for (const auto& [block, bytes] : asked_) total += bytes;
  return total;
}

std::uint64_t Workspace::cell(const ObjectMeta& meta, BlockIndex block, std::uint32_t cell) const {
  const std::uint64_t first = cells_.at(block);
  if (cell == 0) return first;
  return first + halves_bytes(meta, block) + (cell - 1) * cell_bytes(meta, block);
}

void Workspace::place(Extent range) {
  HOPLITE_CHECK(is_asking_);
  is_asking_ = false;
  ranges_.push_back(range);
  std::uint64_t at = range.offset;
  for (const auto& [block, bytes] : asked_) {
    cells_.emplace(block, at);
    at += bytes;
  }
  asked_.clear();
  if (!slots_) slots_ = Extent{at, slots_asked_bytes_};
  HOPLITE_CHECK(at + slots_asked_bytes_ <= range.offset + range.size_bytes);
}

}  // namespace hoplite
