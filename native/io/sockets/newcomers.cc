// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/newcomers.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace hoplite {

void Newcomers::add(std::uint64_t token, const SocketAddress& from) {
  const Source source = source_of(from);
  sources_.emplace(token, source);
  of_a_source_[source].insert(token);
}

void Newcomers::remove(std::uint64_t token) {
  const auto found = sources_.find(token);
  if (found == sources_.end()) return;
  const auto source = of_a_source_.find(found->second);
  source->second.erase(token);
  if (source->second.empty()) of_a_source_.erase(source);
  sources_.erase(found);
}

std::optional<std::uint64_t> Newcomers::eviction_candidate() const {
  const auto most = std::max_element(
      of_a_source_.begin(), of_a_source_.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == of_a_source_.end() || most->second.size() <= kKept) return std::nullopt;
  return *most->second.begin();
}

Newcomers::Source Newcomers::source_of(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    Source network = 0;
    std::memcpy(&network, &v6.sin6_addr, sizeof network);
    return network;
  }
  return reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr;
}

}  // namespace hoplite
