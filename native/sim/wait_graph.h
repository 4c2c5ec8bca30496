// Who waits for whom in the whole cluster, from what each engine says of itself (plan/waits.h). An
// edge leads from a stripe that is unfinished on one node to the one it needs a block of, on the
// node that is to send it, as long as that node lacks the block itself. Blocks that a client still
// writes, and all that messages under way will answer, are no edges: they come by themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/waits.h"

namespace hoplite::sim {

class WaitGraph {
 public:
  // What `node` waits for now, in place of what it said before; nothing when it is gone.
  void set(NodeId node, std::vector<Wait> waits);
  // A circle of waits that leads through `node`, as a sentence that says how far each is. Whatever
  // a turn of one node changes, a new circle leads through that node. Cost: the edges that can be
  // reached from it; once more for each of its waits where one leads back to the node.
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
