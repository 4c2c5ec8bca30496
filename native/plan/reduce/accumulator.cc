// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/accumulator.h"

#include <algorithm>

namespace hoplite {
namespace {

// Divisor of the owned blocks that are folded when the home may cut the stripes anew.
constexpr std::uint64_t kBegunPart = 16;

// Sources come one by one over the time of a copy, and the last one is still to come. All nodes own
// a stripe: 2 m / (m + 1) copies' time is left when it comes, where m others have. If the stripes
// are cut anew for the m nodes before, it is 2 (m - 1) / m, as of a reduce of m nodes. The
// difference has to be more than the part of a copy that a new cut voids (decision 5e).
constexpr bool pays_to_cut_anew(std::uint64_t members) {
  return 2 * kBegunPart > members * (members + 1);
}

}  // namespace

bool Accumulator::handle_own(const ReduceOwn& own) {
  if (own.target_epoch < own_.target_epoch) return false;
  const bool raised = own.target_epoch > own_.target_epoch;
  const bool was_sealed = !raised && own_.sealed;
  if (raised) begin_epoch(own);
  forget_unowned(own);
  own_ = own;
  own_.sealed = own.sealed || was_sealed;
  for (const ReduceSource& source : own.members) {  // known ones keep what was located
    if (was_sealed || members_.size() >= own.count) break;
    members_.try_emplace(
        source.index,
        Member{.source = source, .sender = source.holder, .located = source.holder != kNoNode});
    indices_.insert(source.index);
  }
  own_.members.clear();
  return true;
}

// Begins an epoch. Folded blocks stay if they hold no removed member and the new set of members
// would have folded them in the same way.
void Accumulator::begin_epoch(const ReduceOwn& own) {
  received_.clear();
  final_.clear();
  SourceSet kept;
  for (const ReduceSource& source : own.members) {
    // A branch carries the index of one of its sources; another branch may carry the same index
    // later.
    const auto known = members_.find(source.index);
    const bool is_other = known != members_.end() && known->second.source.object != source.object;
    if (!is_other) kept.insert(source.index);
  }
  if (!own.sealed || !own_.sealed || !(kept == indices_)) unfinish();
  PairwiseFold::Tree tree = this->tree();
  tree.members = own.sealed ? &kept : nullptr;
  std::erase_if(members_, [&](const auto& member) {
    const std::uint32_t index = member.first;
    if (kept.contains(index)) return false;
    indices_.erase(index);
    if (!own_.deterministic) {
      std::erase_if(folded_, [&](const auto& block) { return block.second.taken.contains(index); });
    }
    return true;
  });
  if (!own_.deterministic) return;
  for (auto& [index, block] : folded_) block.pairs.keep(tree, kept, block.taken);
}

// Forgets blocks that another owner folds. This node may receive that fold for a reader here, and
// it lands in the result, in the place of cell 0. No such block may count as begun when the stripe
// comes back.
void Accumulator::forget_unowned(const ReduceOwn& own) {
  if (own.stripe_count == own_.stripe_count && own.owned == own_.owned) return;
  const auto is_unowned = [&](BlockIndex block) {
    const auto stripe = static_cast<std::uint16_t>(block.value % own.stripe_count);
    return std::ranges::find(own.owned, StripeIndex{stripe}) == own.owned.end();
  };
  std::erase_if(folded_, [&](const auto& block) { return is_unowned(block.first); });
  std::erase_if(finished_, is_unowned);
}

PairwiseFold::Tree Accumulator::tree() const {
  return {own_.source_count, pairwise_cells(own_.source_count, own_.count),
          own_.sealed ? &indices_ : nullptr};
}

// Prepares finished blocks for further members: accumulators go on, except a mean, which was
// divided in place.
void Accumulator::unfinish() {
  if (own_.op == ReduceOp::kMean) {
    for (const BlockIndex block : finished_) folded_.erase(block);
  }
  finished_.clear();
}

void Accumulator::accept_final(StripeIndex stripe, std::uint32_t blocks) {
  for (std::uint32_t n = 0; n < blocks; ++n) {
    received_.insert(stripe_block(own_.stripe_count, stripe, n));
  }
}

std::optional<std::vector<FoldStep>> Accumulator::take(std::uint32_t member, BlockIndex block) {
  if (received_.contains(block)) return std::nullopt;
  Block& into = folded_[block];
  const bool first = into.taken.count() == 0;
  if (!into.taken.insert(member)) return std::nullopt;
  if (own_.deterministic) return into.pairs.take(member, tree());
  return std::vector{FoldStep{0, std::nullopt, first}};
}

std::optional<std::vector<FoldStep>> Accumulator::take(std::span<const std::uint32_t> members,
                                                       BlockIndex block) {
  const auto is_in = [&](std::uint32_t member) {
    return !members_.contains(member) || !lacks(member, block);
  };
  if (std::any_of(members.begin(), members.end(), is_in)) return std::nullopt;
  auto steps = take(members.front(), block);
  for (const std::uint32_t member : members.subspan(1)) folded_.at(block).taken.insert(member);
  return steps;
}

bool Accumulator::can_combine() const {
  return !own_.deterministic && can_combine_all(own_.meta.parts, own_.op);
}

bool Accumulator::lacks_alike(std::uint32_t one, std::uint32_t other, StripeIndex stripe) const {
  return std::all_of(folded_.begin(), folded_.end(), [&](const auto& folded) {
    const auto& [block, into] = folded;
    return block.value % own_.stripe_count != stripe.value || received_.contains(block) ||
           into.taken.contains(one) == into.taken.contains(other);
  });
}

bool Accumulator::lacks(std::uint32_t member, BlockIndex block) const {
  if (received_.contains(block)) return false;
  const auto it = folded_.find(block);
  return it == folded_.end() || !it->second.taken.contains(member);
}

std::uint32_t Accumulator::total(StripeIndex stripe) const {
  return stripe_blocks(own_.meta.block_count(), own_.stripe_count, stripe);
}

std::optional<std::uint32_t> Accumulator::first_lacking(std::uint32_t member,
                                                        StripeIndex stripe) const {
  for (std::uint32_t n = 0; n < total(stripe); ++n) {
    if (lacks(member, stripe_block(own_.stripe_count, stripe, n))) return n;
  }
  return std::nullopt;
}

// Members' blocks come in order.
bool Accumulator::has_begun() const {
  if (own_.owned.empty() || total(own_.owned.front()) == 0) return false;
  const StripeIndex stripe = own_.owned.front();
  const std::uint32_t blocks = total(stripe);
  const auto count_at = [&](std::uint32_t n) {
    const auto it = folded_.find(stripe_block(own_.stripe_count, stripe, n));
    return it == folded_.end() ? 0 : it->second.taken.count();
  };
  if (count_at(blocks / kBegunPart) < members_.size()) return false;
  const bool is_staggered = 2 * count_at(blocks / 4) >= members_.size();
  return !is_staggered || pays_to_cut_anew(members_.size()) ||
         count_at(blocks - 1) >= members_.size();
}

bool Accumulator::is_whole(BlockIndex block) const {
  const auto it = folded_.find(block);
  return own_.sealed && it != folded_.end() && it->second.taken.count() == members_.size();
}

void Accumulator::skip_final(StripeIndex stripe) {
  std::uint32_t& n = final_[stripe];
  for (; n < total(stripe); ++n) {
    const BlockIndex block = stripe_block(own_.stripe_count, stripe, n);
    if (!received_.contains(block) && !finished_.contains(block)) return;
  }
}

std::optional<Accumulator::Whole> Accumulator::poll_whole(StripeIndex stripe) {
  skip_final(stripe);
  const std::uint32_t n = final_.at(stripe);
  if (n == total(stripe)) return std::nullopt;
  const BlockIndex block = stripe_block(own_.stripe_count, stripe, n);
  if (!is_whole(block)) return std::nullopt;
  finished_.insert(block);
  ++final_.at(stripe);
  if (!own_.deterministic) return Whole{block, {}};
  return Whole{block, folded_.at(block).pairs.close(tree())};
}

std::uint32_t Accumulator::final_blocks(StripeIndex stripe) const {
  const auto it = final_.find(stripe);
  return it == final_.end() ? 0 : it->second;
}

bool Accumulator::is_folded(StripeIndex stripe) const {
  return own_.sealed && final_blocks(stripe) == total(stripe);
}

}  // namespace hoplite
