// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/tcp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

constexpr int kListenBacklog = 256;  // a whole cluster of 64 nodes with two rails dials at once

sockaddr* raw(SocketAddress& address) { return reinterpret_cast<sockaddr*>(&address.storage); }
const sockaddr* raw(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

bool are_same(const SocketAddress& a, const SocketAddress& b) {
  return address_text(a) == address_text(b);
}

Result<void> set_option(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof value) != 0) return system_error(name);
  return {};
}

// Sets an option without which a connection is slower, but works.
void prefer(int fd, int level, int option, int value) {
  [[maybe_unused]] const int set = ::setsockopt(fd, level, option, &value, sizeof value);
}

// REQUIRES: the socket neither listens nor dials yet. An accepted socket inherits the option.
void bound_segments(int fd) { prefer(fd, IPPROTO_TCP, TCP_MAXSEG, kSegmentBytesMax); }

}  // namespace

Result<SocketAddress> parse_address(const std::string& text) {
  const Error bad{Code::kInvalidArgument,
                  "rail '" + text + "': expected a numeric address and a port, as 192.0.2.1:7000"};
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  std::string ip = text.substr(0, colon);
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return bad;
  SocketAddress address;
  if (ip.front() == '[' && ip.back() == ']') {
    ip = ip.substr(1, ip.size() - 2);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address.size = sizeof v6;
    if (::inet_pton(AF_INET6, ip.c_str(), &v6.sin6_addr) != 1) return bad;
    return address;
  }
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  address.size = sizeof v4;
  if (::inet_pton(AF_INET, ip.c_str(), &v4.sin_addr) != 1) return bad;
  return address;
}

std::string address_text(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    return "[" + std::string(text) + "]:" + std::to_string(ntohs(v6.sin6_port));
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
  ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
  return std::string(text) + ":" + std::to_string(ntohs(v4.sin_port));
}

Result<UniqueFd> listen_on(const SocketAddress& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return system_error("socket");
  // Connections of the previous process in TIME_WAIT must not keep the next one from its port.
  if (auto set = set_option(fd.value(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"); !set) {
    return set.error();
  }
  bound_segments(fd.value());
  if (::bind(fd.value(), raw(address), address.size) != 0 ||
      ::listen(fd.value(), kListenBacklog) != 0) {
    return system_error("listening on " + address_text(address));
  }
  return fd;
}

Result<SocketAddress> local_address(int fd) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (::getsockname(fd, raw(address), &address.size) != 0) return system_error("getsockname");
  return address;
}

Result<SocketAddress> remote_address(int fd) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (::getpeername(fd, raw(address), &address.size) != 0) return system_error("getpeername");
  return address;
}

Dial dial(const SocketAddress& to, const SocketAddress& source) {
  UniqueFd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return {};
  bound_segments(fd.value());
  if (source.storage.ss_family == to.storage.ss_family) {
    SocketAddress from = source;
    if (from.storage.ss_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6&>(from.storage).sin6_port = 0;
    } else {
      reinterpret_cast<sockaddr_in&>(from.storage).sin_port = 0;
    }
    const int late = 1;  // the port is chosen by connect, which knows the whole four-tuple
    ::setsockopt(fd.value(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof late);
    // If our own listening address can't be a source (0.0.0.0, NAT), the route decides.
    [[maybe_unused]] const int bound = ::bind(fd.value(), raw(from), from.size);
  }
  if (::connect(fd.value(), raw(to), to.size) == 0) {
    const DialState state = finish_dial(fd.value());
    return {std::move(fd), state};
  }
  if (errno == EINPROGRESS) return {std::move(fd), DialState::kPending};
  return {UniqueFd{}, errno == ECONNREFUSED ? DialState::kRefused : DialState::kFailed};
}

DialState finish_dial(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return DialState::kFailed;
  if (error != 0) return error == ECONNREFUSED ? DialState::kRefused : DialState::kFailed;
  auto peer = remote_address(fd);
  auto local = local_address(fd);
  if (!peer || !local) return DialState::kFailed;
  return are_same(*local, *peer) ? DialState::kRefused : DialState::kOpen;
}

Result<void> set_rail_options(int fd, ConnectionKind kind) {
  if (auto set = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"); !set) return set;
  if (kind == ConnectionKind::kControl) {
    prefer(fd, SOL_SOCKET, SO_PRIORITY, kControlPriority);
    return {};
  }
  return set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kBulkNotSentBytesMax, "TCP_NOTSENT_LOWAT");
}

Result<void> limit_window(int fd, std::uint64_t bytes) {
  const auto window = static_cast<int>(std::min(bytes, kWindowBytesMax));
  return set_option(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, window, "TCP_WINDOW_CLAMP");
}

Result<void> await_bytes(int fd, std::uint64_t bytes) {
  return set_option(fd, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes), "SO_RCVLOWAT");
}

Result<void> set_liveness_options(int fd, Duration cut) {
  if (auto set = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"); !set) return set;
  prefer(fd, SOL_SOCKET, SO_PRIORITY, kControlPriority);
  const auto cut_ms = static_cast<int>(cut.ns / 1'000'000);
  return set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, cut_ms, "TCP_USER_TIMEOUT");
}

}  // namespace hoplite
