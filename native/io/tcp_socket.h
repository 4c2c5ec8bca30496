// Addresses as text ("192.0.2.1:7000", "[2001:db8::1]:7000") and the options of our TCP sockets.
// Every socket is non-blocking and closed on exec. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/units.h"
#include "io/unique_fd.h"
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
// Starts to connect, from `source`'s address where that is possible, so that rail i leaves by its
// own network.
[[nodiscard]] Dial dial(const SocketAddress& to, const SocketAddress& source);
// How a pending dial ended. A socket that has connected to itself (a free port of the local range,
// dialled on loopback, may be given to the dialler) counts as refused.
[[nodiscard]] DialState finish_dial(int fd);

// A segment of the loopback device is 64 KiB, and so is the window of a receiver that reads little
// at a time. A sender waits 200 ms before it sends less than a segment, and the receiver names a
// larger window only once it has doubled. Segments of a quarter of such a window leave no room for
// that.
inline constexpr int kSegmentBytesMax = 16 * 1024;
// Linux's own queue of a device, pfifo_fast, sends what has this priority before all bulk bytes.
inline constexpr int kControlPriority = 6;
// Half a copy of every bulk byte waits in the sender's kernel otherwise, and its queue hides how
// fast the rail is (design decision 19).
inline constexpr int kBulkNotSentBytesMax = 128 * 1024;
[[nodiscard]] Result<void> set_rail_options(int fd, ConnectionKind kind);
// With 36 KiB an allreduce over 8 nodes took 1.10 x its bound and lost packets, with 64 KiB 1.03.
inline constexpr std::uint64_t kWindowBytesMin = 64_KiB;
inline constexpr std::uint64_t kWindowBytesMax = 1_GiB;  // what TCP can say: no limit
// What the peer may have on the wire towards us, besides what lies here unread. What it was allowed
// before stays allowed. The kernel forgets the limit when it enlarges the receive buffer.
[[nodiscard]] Result<void> limit_window(int fd, std::uint64_t bytes);
// The socket is readable once so many bytes have come, or no more will, or its window closes.
[[nodiscard]] Result<void> await_bytes(int fd, std::uint64_t bytes);
// Of a connection of liveness: it ends with ETIMEDOUT when bytes stay unacknowledged for `cut`.
[[nodiscard]] Result<void> set_liveness_options(int fd, Duration cut);

}  // namespace hoplite
