// SPDX-License-Identifier: Apache-2.0
// The connections that have not proven themselves yet. When there are too many, the oldest one of
// the address with the most is displaced. So one stranger at one address holds no place that
// another peer needs. IPv6 addresses count by their network, because one machine may use any
// address of its network. Plain state. Reactor thread only. Design decision 19d.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "io/sockets/tcp_socket.h"

namespace hoplite {

class Newcomers {
 public:
  // Connections that a source keeps however many others come. A node dials 3 for each of at most 8
  // rails, so a whole cluster that starts displaces no node.
  static constexpr std::size_t kKept = 32;

  explicit Newcomers(std::size_t max) : max_(max) {}

  void add(std::uint64_t token, const SocketAddress& from);
  void remove(std::uint64_t token);  // it is proven or closed; an unknown token has no effect
  [[nodiscard]] bool is_full() const { return sources_.size() >= max_; }
  // Returns the connection that the next one displaces when all places are taken; nullopt if none
  // may be displaced. Cost: O(sources).
  [[nodiscard]] std::optional<std::uint64_t> eviction_candidate() const;

 private:
  using Source = std::uint64_t;
  [[nodiscard]] static Source source_of(const SocketAddress& address);

  std::size_t max_;
  std::map<std::uint64_t, Source> sources_;                // by token, which count up
  std::map<Source, std::set<std::uint64_t>> of_a_source_;  // none is empty
};

}  // namespace hoplite
