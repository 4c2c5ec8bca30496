// SPDX-License-Identifier: Apache-2.0
// The state of a simulated cluster. Plain data; owned and changed by Cluster.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/prng.h"
#include "plan/engine/engine.h"
#include "sim/check/channel_checker.h"
#include "sim/check/checker.h"
#include "sim/check/wait_graph.h"
#include "sim/cluster/cluster_config.h"
#include "sim/cluster/cluster_node.h"
#include "sim/model/request.h"
#include "sim/model/timeline.h"

namespace hoplite::sim {

struct ClusterTables {
  explicit ClusterTables(const ClusterConfig& config)
      : config_(config),
        prng_(config.seed),
        closing_prng_(mix64(config.seed ^ 0x636c6f7365)),
        lying_(mix64(config.seed ^ 0x6c696172)) {}

  [[nodiscard]] bool is_liar(NodeId node) const {
    return config_.liar && node.value == *config_.liar + 1;
  }

  // Returns how many live members the view has in which the next decision of a home is made, or
  // fewer: a home may not know yet that a node has started.
  [[nodiscard]] std::size_t count_members() const {
    std::size_t least = nodes_.size();
    for (const auto& node : nodes_) {
      const auto view = views_.find(node->known_epoch);
      if (!node->alive || view == views_.end()) continue;
      const auto lives = [this](const Member& member) {
        const ClusterNode& each = *nodes_[member.node.value - 1];
        return each.alive && each.life == member.incarnation;
      };
      const auto count = std::ranges::count_if(view->second, lives);
      least = std::min(least, static_cast<std::size_t>(count));
    }
    return least;
  }

  ClusterNode& node_of(NodeId id) { return *nodes_[id.value - 1]; }
  [[nodiscard]] Instant clock_of(const ClusterNode& node) const {
    return timeline_.now() + node.clock_ahead;
  }
  static Duration draw(Prng& prng, Duration most) {
    return {static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(most.ns) + 1))};
  }
  Duration some(Duration most) { return draw(prng_, most); }

  ClusterConfig config_;
  Timeline timeline_;
  Prng prng_;
  Prng closing_prng_;  // of receives that are closed, so that they change no other draw
  Checker checker_;
  ChannelChecker channel_checker_;
  WaitGraph waits_;
  std::set<std::string> suspected_;  // circles that must be gone when they are looked at again
  std::vector<std::unique_ptr<ClusterNode>> nodes_;
  SetViewCommand view_;
  std::map<Epoch, std::vector<Member>> views_;
  std::deque<Request> requests_;
  Listing listed_;
  std::map<RequestId, Request*> waiting_;
  std::uint64_t next_request_ = 1, events_ = 0, canary_deeds_ = 0;
  std::deque<ByteVector> overheard_;  // to be said again by liars
  // State of the lying member.
  Prng lying_;
  std::deque<TransferId> overheard_transfers_;
  std::set<ObjectId> asked_of_liar_;
  std::set<std::uint64_t> folded_by_liar_;      // numbers of the reduces of which it owns a part
  std::map<ObjectId, const Request*> reduces_;  // by target
  bool lies_ = false;
  std::uint64_t lies_told_ = 0;
};

}  // namespace hoplite::sim
