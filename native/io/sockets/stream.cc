// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/stream.h"

#include <sys/socket.h>

#include <cerrno>

#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Result<void> Stream::flush() {
  if (!has_unsent()) return {};
  auto flushed = tls_->flush(fd());
  if (const auto end = tls_->end()) end_ = end->number;
  return flushed;
}

Result<std::size_t> Stream::send(std::span<iovec> parts) {
  if (tls_ != nullptr) {
    auto sent = tls_->send(fd(), parts);
    if (const auto end = tls_->end()) end_ = end->number;
    return sent;
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t result = ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (result >= 0) return static_cast<std::size_t>(result);
  if (would_block()) return std::size_t{0};
  end_ = errno;
  return system_error("sendmsg", Code::kPeerLost);
}

Result<std::size_t> Stream::receive(std::span<iovec> parts, ReadAhead ahead) {
  if (tls_ != nullptr) {
    auto got = tls_->receive(fd(), parts, ahead);
    if (const auto end = tls_->end()) end_ = end->number;
    return got;
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t result = ::recvmsg(fd(), &message, MSG_DONTWAIT);
  if (result > 0) return static_cast<std::size_t>(result);
  if (result < 0 && would_block()) return std::size_t{0};
  end_ = result < 0 ? errno : 0;
  if (result == 0) return Error{Code::kPeerLost, "the peer closed the connection"};
  return system_error("recvmsg", Code::kPeerLost);
}

}  // namespace hoplite
