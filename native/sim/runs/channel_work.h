// SPDX-License-Identifier: Apache-2.0
// The share of version channels in a random run: publishers that take terms, publish, die and move
// to other nodes, and readers that watch or ask for the latest version. Some versions name an
// object that several nodes keep, which readers get. It draws by itself, so that a run without it
// stays as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
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
    Request* keep = nullptr;  // of the object that its next version will name
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
  bool put_copies(Publisher& publisher);
  std::string name_copies(Publisher& publisher);
  void read();
  void read_copies(const Reader& reader);
  void watch(Reader& reader);

  Cluster& cluster_;
  Prng prng_;
  std::deque<Publisher> publishers_;
  std::deque<Reader> readers_;
  std::vector<ObjectId> copied_;  // objects that publishers have put, the oldest first
  std::map<std::string, ObjectId> by_payload_;  // of the versions that name them
};

}  // namespace hoplite::sim
