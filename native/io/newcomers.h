// Who has connected and not proven itself yet, and who of these goes when there are too many: the
// oldest of the address that has most, so that one stranger at one address holds no place that
// somebody else needs. Addresses of IPv6 count by their network, for everybody has the rest of it.
// Plain state. Reactor thread only. Design decision 19d. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "io/tcp_socket.h"

namespace hoplite {

class Newcomers {
 public:
  // That many places a source keeps whoever comes. A node dials 3 of each of at most 8 rails, and
  // who stands there is about to prove itself: a whole cluster that starts displaces nobody.
  static constexpr std::size_t kKept = 32;

  explicit Newcomers(std::size_t max) : max_(max) {}

  void add(std::uint64_t token, const SocketAddress& from);
  void remove(std::uint64_t token);  // who has proven itself, or is gone; nothing for others
  [[nodiscard]] bool is_full() const { return sources_.size() >= max_; }
  // Whose place the next one takes where all are taken; nullopt: nobody's. O(sources).
  [[nodiscard]] std::optional<std::uint64_t> displaced() const;

 private:
  using Source = std::uint64_t;
  [[nodiscard]] static Source source_of(const SocketAddress& address);

  std::size_t max_;
  std::map<std::uint64_t, Source> sources_;                // by token, which count up
  std::map<Source, std::set<std::uint64_t>> of_a_source_;  // none is empty
};

}  // namespace hoplite
