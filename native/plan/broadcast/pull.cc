// SPDX-License-Identifier: Apache-2.0
#include "plan/broadcast/pull.h"

#include <algorithm>

namespace hoplite {

std::uint32_t window_blocks(const ObjectMeta& meta, const EngineConfig& config) {
  const auto by_bytes = config.credit_bytes / std::max<std::uint64_t>(meta.block_bytes, 1);
  const auto window = std::max(config.credit_blocks_min, static_cast<std::uint32_t>(by_bytes));
  return std::min(window, std::max(meta.block_count(), 1U));  // never more than there are
}

Pull::Pull(PullGoal goal, std::uint32_t window_max)
    : goal_(std::move(goal)),
      total_(stripe_blocks(goal_.meta.block_count(), goal_.stripe_count, goal_.stripe)),
      window_(std::min(window_max, std::max(total_, 1U))),
      ready_(goal_.from),
      allowed_(std::min(total_, goal_.from + window_)) {}

PullStart Pull::start() const {
  return {.object = goal_.object,
          .incarnation = goal_.incarnation,
          .target_epoch = goal_.target_epoch,
          .stripe_count = goal_.stripe_count,
          .stripe = goal_.stripe,
          .from = ready_,
          .credits = window_,
          .is_range = goal_.share.is_share(),
          .range = {goal_.share.offset, goal_.share.is_share() ? goal_.meta.size_bytes : 0},
          .block_bytes = goal_.share.is_share() ? goal_.meta.block_bytes : 0,
          .beside = goal_.beside,
          .op = goal_.op,
          .of_branch = goal_.of_branch};
}

OpenReceive Pull::open(TransferId transfer) const {
  return {.transfer = transfer,
          .from = goal_.sender,
          .object = goal_.object,
          .incarnation = goal_.incarnation,
          .target_epoch = goal_.target_epoch,
          .meta = goal_.meta,
          .stripe_count = goal_.stripe_count,
          .stripe = goal_.stripe,
          .base = range,
          .slots = fold ? window_ : 0};
}

Place Pull::place() const {
  if (fold) return {range, 0, 1, {}};  // a slot takes any block
  return {range, goal_.meta.block_bytes, goal_.stripe_count, goal_.stripe};
}

Pull::Landed Pull::handle_landed(BlockIndex block) {
  const std::uint32_t count = goal_.stripe_count;
  if (block.value % count != goal_.stripe.value) return {};
  const std::uint32_t n = block.value / count;
  if (n < ready_ || n >= total_) return {};
  const std::uint32_t before = ready_;
  if (n == ready_) {
    ++ready_;
  } else if (!beyond_.insert(n).second) {
    return {};
  }
  while (!beyond_.empty() && *beyond_.begin() == ready_) {
    beyond_.erase(beyond_.begin());
    ++ready_;
  }
  Landed landed{.is_new = true, .n = n, .credits = 0};
  // Half a window at a time: one small frame for many small blocks, and the sender never runs dry.
  // A slot is free for its next block only when all before it have been folded.
  uncredited_ += fold ? ready_ - before : 1;
  if (uncredited_ > 0 && uncredited_ * 2 >= window_) {
    landed.credits = std::min(uncredited_, total_ - allowed_);  // none for blocks past the end
    allowed_ += landed.credits;
    uncredited_ = 0;
  }
  return landed;
}

}  // namespace hoplite
