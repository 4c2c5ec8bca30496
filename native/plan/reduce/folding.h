// SPDX-License-Identifier: Apache-2.0
// An owner's state of the stripes that it folds in a reduce. Plain data, changed by the
// engine's Folds.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "plan/reduce/accumulator.h"
#include "plan/reduce/pace.h"
#include "plan/reduce/workspace.h"

namespace hoplite {

// The owner's side of a reduce. There may be thousands of members: a turn looks at those that have
// news. One in none of `news`, `here`, `waiting` and `asked` is pulled wherever it is lacking.
struct Folding {
  Accumulator accumulator;
  Workspace workspace;
  std::map<TransferId, std::size_t> pulls;  // -> which slot
  std::set<StripeIndex> reported;
  std::size_t members_begun = 0;  // at the home: members when the late owners were judged last
  bool failed = false;
  std::set<NodeId> singly = {};          // nodes that can't combine what they send
  std::set<std::uint32_t> news = {};     // members with news
  std::set<std::uint32_t> here = {};     // members of which some is here, or will be
  std::set<std::uint32_t> waiting = {};  // members that another node has, to be pulled
  std::set<std::pair<NodeId, std::uint32_t>> waiting_at = {};  // the same, by that node
  std::set<std::pair<ObjectId, std::uint32_t>> asked = {};     // members that are being located
  std::set<std::size_t> free_slots = {};                       // below `slots`
  std::size_t slots = 0;                                       // how many were ever in use
  std::map<StripeIndex, FoldPace> paces = {};                  // of the pulls

  // More members have come; `all`: what was known of the others has changed as well.
  void note_members(const ReduceOwn& own, bool all);
  void stop_waiting(const Accumulator::Member& member);
  [[nodiscard]] std::set<ObjectId> whole_sources() const;  // of members that are fetched whole
  std::size_t take_slot();                                 // the lowest free one
  // Returns the member with which an owner begins: each owner with another one, so that not all
  // pull from the same node at once.
  [[nodiscard]] std::uint32_t first_in_turn() const;
  // Returns the members that one pull combines in the stripe: `member`, and the waiting members
  // that the same node has and that lack the same blocks.
  [[nodiscard]] std::vector<std::uint32_t> combined_with(std::uint32_t member, StripeIndex stripe,
                                                         std::uint64_t bytes_max) const;
};
enum class Here { kNothing, kSome, kAll };  // of what an owner lacks of a member

}  // namespace hoplite
