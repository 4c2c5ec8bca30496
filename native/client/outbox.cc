// SPDX-License-Identifier: Apache-2.0
#include "client/outbox.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/units.h"
#include "io/signals_blocked.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

constexpr std::size_t kFramesPerSend = 64;
// The cost of a waiting frame beside its bytes: its place in the table, and two allocations.
constexpr std::uint64_t kFrameCostBytes = 128;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Returns how many bytes the socket has taken, 0 when it is full.
Result<std::size_t> send_at_once(int socket, std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (would_block()) return std::size_t{0};
  return system_error("sending to the node", Code::kNodeLost);
}

iovec part_of(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

Outbox::Outbox(int socket, std::uint64_t waiting_bytes_max, std::function<void()> read)
    : socket_(socket),
      waiting_bytes_max_(waiting_bytes_max),
      read_(std::move(read)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Outbox::~Outbox() {
  if (thread_ == nullptr) return;
  is_closing_ = true;
  wake();
  thread_->join();
}

void Outbox::after_fork_in_child() {
  static_cast<void>(thread_.release());  // NOLINT: it runs in the parent only
  wake_.reset();
}

// ---- sending ----

Result<std::uint64_t> Outbox::send(const Frames& frames) {
  const std::lock_guard guard(mutex_);
  if (auto flushed = send_waiting(); !flushed) return flushed.error();
  const std::size_t size = frames.head.size() + frames.payload.size();
  const bool is_first = waiting_.empty();
  std::size_t sent = 0;
  if (is_first) {
    std::array<iovec, 2> parts{part_of(frames.head), part_of(frames.payload)};
    auto taken = send_at_once(socket_, parts);
    if (!taken) return taken.error();
    sent = *taken;
  } else if (frames.room == Room::kBounded &&
             waiting_bytes_ + size + frames.ends.size() * kFrameCostBytes > waiting_bytes_max_) {
    return Error{Code::kStoreFull, std::to_string(waiting_.size()) + " commands"};
  }
  const std::uint64_t number = std::exchange(next_number_, next_number_ + frames.ends.size());
  if (sent == size) return number;
  queue_rest(number, frames, sent);
  if (thread_ == nullptr) {
    start();
  } else if (is_first) {
    wake();
  }
  return number;
}

void Outbox::queue_rest(std::uint64_t number, const Frames& frames, std::size_t sent) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < frames.ends.size(); ++i) {
    const auto own = frames.head.subspan(begin, frames.ends[i] - begin);
    const bool is_last = i + 1 == frames.ends.size();
    const auto carried = is_last ? frames.payload : std::span<const std::byte>{};
    const std::size_t size = own.size() + carried.size();
    if (sent < begin + size) {
      Frame frame;
      frame.bytes.reserve(size);
      frame.bytes.insert(frame.bytes.end(), own.begin(), own.end());
      frame.bytes.insert(frame.bytes.end(), carried.begin(), carried.end());
      frame.sent = sent > begin ? sent - begin : 0;
      waiting_bytes_ += size + kFrameCostBytes;
      waiting_.emplace_hint(waiting_.end(), number + i, std::move(frame));
    }
    begin = frames.ends[i];
  }
}

Result<void> Outbox::send_waiting() {
  while (!waiting_.empty()) {
    std::array<iovec, kFramesPerSend> parts;
    std::size_t count = 0;
    for (auto each = waiting_.begin(); each != waiting_.end() && count < parts.size(); ++each) {
      parts[count++] = part_of(std::span(each->second.bytes).subspan(each->second.sent));
    }
    auto taken = send_at_once(socket_, std::span(parts).first(count));
    if (!taken) {
      waiting_.clear();
      waiting_bytes_ = 0;
      return taken.error();
    }
    if (*taken == 0) return {};
    for (std::size_t left = *taken; left > 0;) {
      Frame& frame = waiting_.begin()->second;
      const std::size_t here = std::min(left, frame.bytes.size() - frame.sent);
      frame.sent += here;
      left -= here;
      if (frame.sent == frame.bytes.size()) drop(waiting_.begin());
    }
  }
  return {};
}

void Outbox::drop(std::map<std::uint64_t, Frame>::iterator frame) {
  waiting_bytes_ -= frame->second.bytes.size() + kFrameCostBytes;
  waiting_.erase(frame);
}

bool Outbox::drop_unsent(std::uint64_t number) {
  const std::lock_guard guard(mutex_);
  const auto found = waiting_.find(number);
  if (found == waiting_.end() || found->second.sent > 0) return false;
  drop(found);
  return true;
}

void Outbox::flush() {
  const std::lock_guard guard(mutex_);
  [[maybe_unused]] const auto sent = send_waiting();  // the next read reports the end
}

void Outbox::close() {
  const std::lock_guard guard(mutex_);
  waiting_.clear();
  waiting_bytes_ = 0;
}

// ---- the thread ----

// If the process may start no more threads, the next send or wait writes the waiting frames.
void Outbox::start() {
  const SignalsBlocked guard;
  try {
    thread_ = std::make_unique<std::thread>(&Outbox::run, this);
  } catch (const std::system_error&) {
    thread_.reset();
  }
}

void Outbox::wake() const { static_cast<void>(::eventfd_write(wake_.value(), 1)); }

void Outbox::run() {
  while (!is_closing_) {
    const bool has_waiting = [this] {
      const std::lock_guard guard(mutex_);
      return !waiting_.empty();
    }();
    std::array<pollfd, 2> awaited{pollfd{has_waiting ? socket_ : -1, POLLIN | POLLOUT, 0},
                                  pollfd{wake_.value(), POLLIN, 0}};
    ::poll(awaited.data(), awaited.size(), -1);
    eventfd_t count = 0;
    if (awaited[1].revents != 0) ::eventfd_read(wake_.value(), &count);
    if ((awaited[0].revents & ~POLLOUT) != 0) read_();
    if ((awaited[0].revents & POLLOUT) != 0) flush();
  }
}

}  // namespace hoplite
