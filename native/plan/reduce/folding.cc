// SPDX-License-Identifier: Apache-2.0
#include "plan/reduce/folding.h"

#include <algorithm>
#include <iterator>

namespace hoplite {

void Folding::note_members(const ReduceOwn& own, bool all) {
  const auto& members = accumulator.members();
  if (all) {
    waiting.clear();
    waiting_at.clear();
    news.clear();
    here.clear();
    for (const auto& [index, member] : members) news.insert(index);
  }
  for (const ReduceSource& source : own.members) {
    if (members.contains(source.index)) news.insert(source.index);
  }
}

void Folding::stop_waiting(const Accumulator::Member& member) {
  waiting.erase(member.source.index);
  waiting_at.erase({member.sender, member.source.index});
}

std::set<ObjectId> Folding::whole_sources() const {
  std::set<ObjectId> sources;
  for (const auto& [index, member] : accumulator.members()) {
    if (member.whole) sources.insert(member.source.object);
  }
  return sources;
}

std::size_t Folding::take_slot() {
  if (free_slots.empty()) return slots++;
  return free_slots.extract(free_slots.begin()).value();
}

std::uint32_t Folding::first_in_turn() const {
  const std::vector<StripeIndex>& owned = accumulator.own().owned;
  const auto& members = accumulator.members();
  if (owned.empty() || members.empty()) return 0;
  const auto turn = static_cast<std::ptrdiff_t>(owned.front().value % members.size());
  return std::next(members.begin(), turn)->first;
}

std::vector<std::uint32_t> Folding::combined_with(std::uint32_t member, StripeIndex stripe,
                                                  std::uint64_t bytes_max) const {
  const NodeId sender = accumulator.members().at(member).sender;
  std::vector<std::uint32_t> members{member};
  const auto is_branch = [&](std::uint32_t index) {
    return accumulator.members().at(index).source.is_branch;
  };
  if (singly.contains(sender) || !accumulator.can_combine() || is_branch(member)) {
    return members;
  }
  const std::size_t most = bytes_max / accumulator.own().meta.block_bytes;
  auto beside = waiting_at.lower_bound({sender, 0});
  for (; beside != waiting_at.end() && beside->first == sender; ++beside) {
    const std::uint32_t other = beside->second;
    if (members.size() >= most) break;
    if (other == member || is_branch(other)) continue;
    if (accumulator.members().at(other).pulled.contains(stripe)) continue;
    if (accumulator.lacks_alike(member, other, stripe)) members.push_back(other);
  }
  std::sort(members.begin(),
            members.end());  // all owners name the same first one: the sender takes turns by it
  return members;
}

}  // namespace hoplite
