// SPDX-License-Identifier: Apache-2.0
#include "world/socket_pipe.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/units.h"
#include "io/system_error.h"

namespace hoplite::worlds {
namespace {

// Sixteen messages of 4 KiB by one call. More is copied once more without saving calls.
constexpr std::size_t kReadAheadBytes = 64_KiB;
// Of a large message, before its reader wakes up: more lets the sender run dry, less is a wake-up
// for each segment (docs/design.md).
constexpr std::uint64_t kEnoughBytesMax = 64_KiB;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

Error end_of_socket(const char* call) {
  const bool is_closed = errno == ECONNRESET || errno == EPIPE;
  return system_error(call, is_closed ? Code::kPeerLost : Code::kSystem);
}

}  // namespace

Result<void> SocketPipe::prepare(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return system_error("fcntl");
  const int one = 1;  // refused by a Unix socket, which has nothing to turn off
  [[maybe_unused]] const int set = ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return {};
}

Result<std::size_t> SocketPipe::write(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(socket_.value(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (would_block()) return std::size_t{0};
  has_failed_ = true;
  return end_of_socket("sendmsg");
}

Result<std::size_t> SocketPipe::read(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t got = ::recvmsg(socket_.value(), &message, MSG_DONTWAIT);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0) return Error{Code::kPeerLost, "the connection was closed"};
  if (would_block()) return std::size_t{0};
  has_failed_ = true;
  return end_of_socket("recvmsg");
}

std::size_t SocketPipe::read_ahead_bytes() const { return kReadAheadBytes; }

bool SocketPipe::await(Interest interest, std::uint64_t enough) {
  const bool reads = interest == Interest::kRead || interest == Interest::kBoth;
  const int wanted = reads ? static_cast<int>(std::min(enough, kEnoughBytesMax)) : 1;
  if (wanted != wakes_at_bytes_ &&
      ::setsockopt(socket_.value(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) {
    wakes_at_bytes_ = wanted;
  }
  return false;
}

void SocketPipe::finish() { ::shutdown(socket_.value(), SHUT_WR); }

}  // namespace hoplite::worlds
