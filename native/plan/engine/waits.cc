// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/waits.h"

#include "plan/engine/state.h"

namespace hoplite {

std::vector<Wait> Engine::waits() const { return state_->waits(); }

// Returns one wait for each object of an open transfer, and for each member of a fold that is
// fetched whole.
std::vector<Wait> Engine::State::waits() const {
  std::vector<Wait> waits;
  for (const auto& [transfer, pull] : pulls_) {
    const PullGoal& goal = pull.goal();
    const BytesName needed{goal.object, goal.incarnation, goal.target_epoch};
    Wait wait{needed,
              goal.stripe_count,
              goal.stripe,
              pull.ready(),
              goal.sender,
              needed,
              stripe_block(goal.stripe_count, goal.stripe, pull.ready())};
    if (pull.fold) {
      const LocalObject& target = objects_.at(pull.fold->target);
      wait.name = {pull.fold->target, target.incarnation, target.target_epoch};
      wait.ready = target.stripes[goal.stripe.value].ready;
    }
    waits.push_back(wait);
    for (const Beside& other : goal.beside) {
      wait.needed = {other.object, other.incarnation, TargetEpoch{0}};
      waits.push_back(wait);
    }
  }
  for (const auto& [id, folding] : folds_) {
    const ReduceOwn& own = folding.accumulator.own();
    const LocalObject& target = objects_.at(id);
    for (const auto& [index, member] : folding.accumulator.members()) {
      if (!member.whole) continue;
      for (const StripeIndex stripe : own.owned) {
        const auto n = folding.accumulator.first_lacking(index, stripe);
        if (!n || stripe.value >= target.stripes.size()) continue;
        waits.push_back({{id, target.incarnation, target.target_epoch},
                         own.stripe_count,
                         stripe,
                         target.stripes[stripe.value].ready,
                         config_.node,
                         {member.source.object, member.source.incarnation, TargetEpoch{0}},
                         stripe_block(own.stripe_count, stripe, *n)});
      }
    }
  }
  return waits;
}

}  // namespace hoplite
