// SPDX-License-Identifier: Apache-2.0
#include "plan/accumulator.h"

#include <algorithm>
#include <bit>

namespace hoplite {

bool Accumulator::handle_own(const ReduceOwn& own) {
  if (own.target_epoch < own_.target_epoch) return false;
  const bool raised = own.target_epoch > own_.target_epoch;
  if (raised) {
    received_.clear();
    final_.clear();
    std::set<std::uint32_t> kept;
    for (const ReduceSource& source : own.members) kept.insert(source.index);
    if (!own.sealed || !own_.sealed || !has_exactly(kept)) unfinish();
    for (auto it = members_.begin(); it != members_.end();) {
      if (kept.contains(it->first)) {
        ++it;
        continue;
      }
      const std::uint32_t removed = it->first;
      it = members_.erase(it);
      std::erase_if(folded_, [&](const auto& block) {
        const Bitmap& bits = block.second;
        return removed / 64 < bits.size() && (bits[removed / 64] >> (removed % 64) & 1) != 0;
      });
    }
  }
  const bool sealed = own.sealed || (!raised && own_.sealed);
  own_ = own;
  own_.sealed = sealed;
  for (const ReduceSource& source : own.members) {  // known ones keep what was located
    members_.try_emplace(source.index, Member{.source = source});
  }
  own_.members.clear();
  return true;
}

bool Accumulator::has_exactly(const std::set<std::uint32_t>& members) const {
  return members.size() == members_.size() &&
         std::all_of(members.begin(), members.end(),
                     [&](std::uint32_t index) { return members_.contains(index); });
}

// Other members are to be folded into what is finished: accumulators go on, but a mean was divided
// in its place.
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

std::optional<bool> Accumulator::take(std::uint32_t member, BlockIndex block) {
  if (received_.contains(block)) return std::nullopt;
  Bitmap& bits = folded_[block];
  const bool first = bits.empty();
  if (bits.size() <= member / 64) bits.resize(member / 64 + 1);
  std::uint64_t& word = bits[member / 64];
  const std::uint64_t bit = 1ULL << (member % 64);
  if ((word & bit) != 0) return std::nullopt;
  word |= bit;
  return first;
}

bool Accumulator::lacks(std::uint32_t member, BlockIndex block) const {
  if (received_.contains(block)) return false;
  const auto it = folded_.find(block);
  if (it == folded_.end() || it->second.size() <= member / 64) return true;
  return (it->second[member / 64] >> (member % 64) & 1) == 0;
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

bool Accumulator::is_whole(BlockIndex block) const {
  const auto it = folded_.find(block);
  if (!own_.sealed || it == folded_.end()) return false;
  std::size_t count = 0;
  for (const std::uint64_t word : it->second)
    count += static_cast<std::size_t>(std::popcount(word));
  return count == members_.size();
}

void Accumulator::skip_final(StripeIndex stripe) {
  std::uint32_t& n = final_[stripe];
  for (; n < total(stripe); ++n) {
    const BlockIndex block = stripe_block(own_.stripe_count, stripe, n);
    if (!received_.contains(block) && !finished_.contains(block)) return;
  }
}

std::optional<BlockIndex> Accumulator::poll_whole(StripeIndex stripe) {
  skip_final(stripe);
  const std::uint32_t n = final_.at(stripe);
  if (n == total(stripe)) return std::nullopt;
  const BlockIndex block = stripe_block(own_.stripe_count, stripe, n);
  if (!is_whole(block)) return std::nullopt;
  finished_.insert(block);
  ++final_.at(stripe);
  return block;
}

std::uint32_t Accumulator::final_blocks(StripeIndex stripe) const {
  const auto it = final_.find(stripe);
  return it == final_.end() ? 0 : it->second;
}

bool Accumulator::is_folded(StripeIndex stripe) const {
  return own_.sealed && final_blocks(stripe) == total(stripe);
}

}  // namespace hoplite
