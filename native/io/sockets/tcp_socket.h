// SPDX-License-Identifier: Apache-2.0
// Addresses as text ("192.0.2.1:7000", "[2001:db8::1]:7000") and the options of a node's TCP
// sockets. Every socket is non-blocking and closed on exec.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/units.h"
#include "io/sockets/unique_fd.h"
#include "plan/messages.h"

namespace hoplite {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

// Numeric addresses only: a name would have to be looked up, which blocks.
[[nodiscard]] Result<SocketAddress> parse_address(const std::string& text);
[[nodiscard]] std::string address_text(const SocketAddress& address);

[[nodiscard]] Result<UniqueFd> listen_on(const SocketAddress& address);
[[nodiscard]] Result<SocketAddress> local_address(int fd);
[[nodiscard]] Result<SocketAddress> remote_address(int fd);

enum class DialState : std::uint8_t { kPending, kOpen, kRefused, kFailed };
struct Dial {
  UniqueFd fd;
  DialState state = DialState::kFailed;
};
// Starts to connect, if possible from `source`'s address, so that rail i leaves by its own network.
[[nodiscard]] Dial dial(const SocketAddress& to, const SocketAddress& source);
// Returns how a pending dial ended. A socket that is connected to itself counts as refused. This
// happens on loopback when the kernel gives the dialled port, if free, to the dialler.
[[nodiscard]] DialState finish_dial(int fd);

// 16 KiB. A segment of the loopback device is 64 KiB, as large as the window of a receiver that
// reads little at a time. A sender waits 200 ms until it sends less than a segment, and the
// receiver announces a larger window only once it has doubled. Four segments in such a window avoid
// the wait.
inline constexpr int kSegmentBytesMax = 16 * 1024;
// Linux's own queue of a device, pfifo_fast, sends what has this priority before all bulk bytes.
inline constexpr int kControlPriority = 6;
// 128 KiB. Without a limit half a copy of every bulk byte waits in the sender's kernel, and its
// queue hides how fast the rail is (design decision 19).
inline constexpr int kBulkNotSentBytesMax = 128 * 1024;
[[nodiscard]] Result<void> set_rail_options(int fd, ConnectionKind kind);
// The least window of a sender: with 36 KiB an allreduce over 8 nodes loses packets (decision 19b).
inline constexpr std::uint64_t kWindowBytesMin = 64_KiB;
// the largest that TCP can announce, which is no limit
inline constexpr std::uint64_t kWindowBytesMax = 1_GiB;
// Limits the bytes in flight from the peer, besides bytes that lie here unread. A window that the
// peer already has stays valid. The kernel forgets the limit when it enlarges the receive buffer.
[[nodiscard]] Result<void> limit_window(int fd, std::uint64_t bytes);
// Makes the socket readable when this many bytes have arrived, no more can arrive, or its window
// closes.
[[nodiscard]] Result<void> await_bytes(int fd, std::uint64_t bytes);
// For a liveness connection: it ends with ETIMEDOUT if bytes stay unacknowledged for `cut`.
[[nodiscard]] Result<void> set_liveness_options(int fd, Duration cut);

}  // namespace hoplite
