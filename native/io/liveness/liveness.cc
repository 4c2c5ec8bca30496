// SPDX-License-Identifier: Apache-2.0
#include "io/liveness/liveness.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/liveness/liveness_thread.h"
#include "io/signals_blocked.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

constexpr int kFirstFreeFd = 3;  // below are the standard ones

bool send_order(int orders, const LivenessOrder& order, Stream& connection) {
  LivenessOrder order_sent = order;
  order_sent.tls = connection.tls();
  iovec part{&order_sent, sizeof order_sent};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (connection.fd() >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = connection.fd();
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (::sendmsg(orders, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof order_sent) return false;
  [[maybe_unused]] const TlsSession* const theirs = connection.release_tls().release();
  return true;
}

}  // namespace

Result<Liveness> Liveness::start(const LivenessLimits& limits) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_error("socketpair");
  }
  UniqueFd ours(ends[0]);
  UniqueFd low(ends[1]);
  UniqueFd theirs(::fcntl(low.value(), F_DUPFD_CLOEXEC, kFirstFreeFd));
  if (!theirs.is_open()) return system_error("fcntl");
  low.reset();
  Liveness liveness(std::move(ours));
  const int orders = LivenessThread::kHasOwnTable ? theirs.value() : ::dup(theirs.value());
  {
    const SignalsBlocked guard;
    liveness.thread_ = std::thread(LivenessThread::thread_main, orders, limits);
  }
  int number = 0;
  while (::recv(liveness.fd(), &number, sizeof number, 0) < 0) HOPLITE_CHECK(errno == EINTR);
  if (number != 0) {
    errno = number;
    return system_error("a descriptor table for the liveness thread (needs Linux 5.9)");
  }
  return liveness;
}

Liveness::~Liveness() {
  if (!thread_.joinable()) return;  // moved from
  // close() alone would not do, because a forked child may have a copy
  ::shutdown(orders_.value(), SHUT_RDWR);
  thread_.join();
}

void Liveness::watch(NodeId node, Incarnation incarnation, RailId rail, Stream connection) {
  queue_order({LivenessOrder::Kind::kWatch, node, incarnation, rail}, std::move(connection));
}

void Liveness::forget(NodeId node, Incarnation upto) {
  queue_order({LivenessOrder::Kind::kForget, node, upto, RailId{}}, Stream{});
}

void Liveness::queue_order(const LivenessOrder& order, Stream connection) {
  waiting_.push_back({order, std::move(connection)});
  [[maybe_unused]] const bool is_taken = flush();
}

bool Liveness::flush() {
  while (!waiting_.empty()) {
    if (!send_order(orders_.value(), waiting_.front().order, waiting_.front().connection)) {
      return false;
    }
    waiting_.pop_front();
  }
  return true;
}

std::vector<LivenessEvent> Liveness::take_events() {
  std::vector<LivenessEvent> events;
  LivenessEvent event;
  while (::recv(orders_.value(), &event, sizeof event, MSG_DONTWAIT) == sizeof event) {
    events.push_back(event);
  }
  return events;
}

}  // namespace hoplite
