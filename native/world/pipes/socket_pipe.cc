// SPDX-License-Identifier: Apache-2.0
#include "world/pipes/socket_pipe.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "io/sockets/system_error.h"

namespace hoplite::worlds {
namespace {

// Bytes read ahead by one call: sixteen messages of 4 KiB. More bytes are copied twice and save no
// calls.
constexpr std::size_t kReadAheadBytes = 64_KiB;
// Bytes of a large message that wake its reader. More lets the sender run dry; less means a
// wake-up for each segment. Design decision 22g.
constexpr std::uint64_t kEnoughBytesMax = 64_KiB;

// Bytes of an unfinished record that a TLS session may hold. No poller counts them, so await()
// subtracts them.
constexpr std::uint64_t kRecordBytesMax = 17_KiB;

}  // namespace

Result<void> SocketPipe::prepare(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return system_error("fcntl");
  const int one = 1;  // a Unix socket refuses the option and needs none
  [[maybe_unused]] const int set = ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return {};
}

SocketPipe::SocketPipe(Stream stream) : stream_(std::move(stream)) {
  HOPLITE_CHECK(stream_.is_open());
}

Result<std::size_t> SocketPipe::write(std::span<iovec> parts) {
  if (auto flushed = stream_.flush(); !flushed) return handle_end(flushed.error());
  if (stream_.has_unsent()) return std::size_t{0};
  auto taken = stream_.send(parts);
  if (!taken) return handle_end(taken.error());
  return taken;
}

void SocketPipe::flush() {
  if (auto flushed = stream_.flush(); !flushed) {
    [[maybe_unused]] const Error read_says = handle_end(flushed.error());
  }
}

Result<std::size_t> SocketPipe::read(std::span<iovec> parts) {
  auto got = stream_.receive(parts, ReadAhead::kNone);
  if (!got) return handle_end(got.error());
  return got;
}

// Turns `error` into kSystem, a cut by the network, except when the peer's kernel has closed or
// reset the connection.
Error SocketPipe::handle_end(Error error) {
  const std::optional<int> number = stream_.end();
  has_failed_ = has_failed_ || number != 0;
  const bool is_cut = number.value_or(0) != 0 && *number != ECONNRESET && *number != EPIPE;
  if (is_cut) error.code = Code::kSystem;
  return error;
}

std::size_t SocketPipe::read_ahead_bytes() const { return kReadAheadBytes; }

bool SocketPipe::await(Interest interest, std::uint64_t enough) {
  const bool reads = interest == Interest::kRead || interest == Interest::kBoth;
  if (reads && stream_.has_unread()) return true;  // the session holds it, unseen by a poller
  const std::uint64_t in_hand_max = stream_.tls() == nullptr ? 0 : kRecordBytesMax;
  const std::uint64_t to_come = std::min(enough, kEnoughBytesMax);
  const int wanted = reads && to_come > in_hand_max ? static_cast<int>(to_come - in_hand_max) : 1;
  if (wanted != wakes_at_bytes_ &&
      ::setsockopt(fd(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) {
    wakes_at_bytes_ = wanted;
  }
  return false;
}

void SocketPipe::finish() { ::shutdown(fd(), SHUT_WR); }

}  // namespace hoplite::worlds
