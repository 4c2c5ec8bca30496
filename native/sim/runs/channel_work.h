// SPDX-License-Identifier: Apache-2.0
// The share of version channels in a random run: publishers that take terms, publish, die and move
// to other nodes, and readers that watch or ask for the latest version. It draws by itself, so that
// a run without it stays as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/prng.h"
#include "sim/cluster/cluster.h"

namespace hoplite::sim {

class ChannelWork {
 public:
  ChannelWork(Cluster& cluster, std::uint64_t seed) : cluster_(cluster), prng_(seed) {}

  void step();
  // Lets each reader watch once more, so that a version which it can't miss must come.
  void watch_all();
  // True if the request about a channel must be answered by itself.
  [[nodiscard]] bool is_owed(const Request& request) const;

 private:
  struct Publisher {
    ObjectId channel;
    std::size_t node = 0;
    Request* take = nullptr;  // its answer has the term
    std::uint64_t last_n = 0;
    Request* last = nullptr;  // its newest publication
  };
  struct Reader {
    ObjectId channel;
    std::size_t node = 0;
    ClientId client;
    VersionNumber seen;
    Request* watch = nullptr;
  };
  std::optional<std::size_t> some_node();
  ObjectId some_channel();
  void take_term();
  void publish();
  void read();
  void watch(Reader& reader);

  Cluster& cluster_;
  Prng prng_;
  std::deque<Publisher> publishers_;
  std::deque<Reader> readers_;
};

}  // namespace hoplite::sim
