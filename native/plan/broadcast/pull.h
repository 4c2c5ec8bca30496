// SPDX-License-Identifier: Apache-2.0
// One receiver fetching one stripe of one object from one sender: which blocks have landed, and
// when to give credit for more. The bytes land either in the object's own range, or in a few slots
// from which a reduce folds them (design decisions 4, 5, 19).
#pragma once

#include <optional>
#include <set>

#include "plan/broadcast/broadcast.h"
#include "plan/messages.h"
#include "plan/objects/loans.h"

namespace hoplite {

struct PullGoal {
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  std::uint16_t stripe_count = 1;
  StripeIndex stripe;
  NodeId sender;
  std::uint32_t from = 0;           // leading blocks of the stripe that are here already
  Share share = {};                 // `meta` is of this range of the object
  std::vector<Beside> beside = {};  // combined with it by the sender
  ReduceOp op = ReduceOp::kSum;
  bool of_branch = false;
};

struct FoldGoal {  // the members of a reduce that this pull is for; several: combined by the sender
  ObjectId target;
  std::vector<std::uint32_t> members;
};

// Blocks in flight of one of several stripes: 8. Each sender feeds many receivers in turn, and with
// two blocks a late receiver leaves it idle. More blocks wait for credit (decision 4a;
// sim/scenarios/broadcast_scenarios_test.cc).
inline constexpr std::uint32_t kCreditBlocksStriped = 8;

// How far a pull has got with its sender. Each step is taken once, in this order.
enum class PullStage : std::uint8_t {
  kHeldBack,  // a closed receive may still write where its blocks land
  kOpened,    // OpenReceive has gone out
  kStarted,   // PullStart has gone out over the link that is up
};

class Pull {
 public:
  Pull(PullGoal goal, std::uint32_t window_max);

  // The effect of a landed block: whether it is new, and how much credit to give now.
  struct Landed {
    bool is_new = false;
    std::uint32_t n = 0;  // its position in the stripe
    std::uint32_t credits = 0;
  };
  Landed handle_landed(BlockIndex block);

  [[nodiscard]] const PullGoal& goal() const { return goal_; }
  [[nodiscard]] std::uint32_t window() const { return window_; }
  [[nodiscard]] std::uint32_t ready() const { return ready_; }
  [[nodiscard]] const std::set<std::uint32_t>& beyond() const { return beyond_; }
  [[nodiscard]] bool is_beginning() const { return hoplite::is_beginning(ready_, total_); }
  [[nodiscard]] bool is_done() const { return ready_ >= total_; }
  [[nodiscard]] PullStart start() const;
  [[nodiscard]] OpenReceive open(TransferId transfer) const;
  [[nodiscard]] Place place() const;

  std::optional<FoldGoal> fold;
  Extent range;  // where its blocks land: the object's, or of a fold the slots of `window()` blocks
  PullStage stage = PullStage::kHeldBack;

 private:
  PullGoal goal_;
  std::uint32_t total_;
  std::uint32_t window_;
  std::uint32_t ready_;
  std::uint32_t allowed_;  // blocks of the stripe that the sender has credit for
  std::uint32_t uncredited_ = 0;
  std::set<std::uint32_t> beyond_;
};

// Returns how many blocks a transfer may have in flight: two, or as many as hide a round trip.
std::uint32_t window_blocks(const ObjectMeta& meta, const EngineConfig& config);

}  // namespace hoplite
