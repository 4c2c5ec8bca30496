// SPDX-License-Identifier: Apache-2.0
// The graph of waits in the whole cluster, from each engine's own report (plan/engine/waits.h). An
// edge leads from an unfinished stripe on one node to the stripe on the sending node that lacks the
// block it needs. A block that a client still writes, or that a message in flight will answer,
// makes no edge, because it comes without any other node.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/engine/waits.h"

namespace hoplite::sim {

class WaitGraph {
 public:
  // Replaces the waits of `node`. An empty list means that it waits for nothing, or is gone.
  void set(NodeId node, std::vector<Wait> waits);
  // Returns a circle of waits through `node`, as a sentence that says how far each stripe is. After
  // a turn of one node every new circle leads through that node. Cost: the edges that can be
  // reached from it; once more for each of its waits if one leads back to the node.
  [[nodiscard]] std::optional<std::string> circle_through(NodeId node) const;

 private:
  struct Point {  // a stripe that is unfinished on a node
    NodeId node;
    ObjectId object;
    StripeIndex stripe;
    std::uint32_t ready = 0;
    auto operator<=>(const Point&) const = default;
  };
  [[nodiscard]] bool leads_to_itself(NodeId node) const;
  [[nodiscard]] bool leads_back(const Point& from, std::vector<Point>& walk,
                                std::set<Point>& seen) const;
  [[nodiscard]] std::set<Point> needs(const Point& from) const;

  // Sorted by object and stripe, which is how they are looked up.
  std::map<NodeId, std::vector<Wait>> waits_;
};

}  // namespace hoplite::sim
