// SPDX-License-Identifier: Apache-2.0
#include "io/liveness/liveness_thread.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <variant>

#include "base/check.h"
#include "io/read_clock.h"
#include "io/sockets/system_error.h"

#ifdef __SANITIZE_THREAD__
// TSan sees no hand-over here, because the connections reach this thread through the kernel.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:io/liveness/liveness_thread.cc\n";
}
#endif

namespace hoplite {
namespace {

constexpr std::uint64_t kOrdersToken = 1;
constexpr int kReadsPerTurn = 16;
// 4 KiB: a hundred frames, or ten seconds of one peer's pulses
constexpr std::size_t kReadBytes = 4096;
// 10 s without a word from the peer; beyond it this node sends no Pulse. A silent peer reads
// nothing either. More unread Pulses would fill its socket, and our kernel would then report it as
// unreachable. When the peer sends again, so does this node.
constexpr Duration kUnreadMax = 10_s;
// The limit on waiting events that are only counted, while the reactor has no time to take them.
constexpr std::size_t kUnsentEventsMax = 64;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

RailEnd end_of(const Stream& stream) {
  // an invalid record does not prove the end of a process
  const int number = stream.end().value_or(EBADMSG);
  const bool is_closed = number == 0 || number == ECONNRESET || number == EPIPE;
  return is_closed ? RailEnd::kClosed : RailEnd::kCut;
}

const Bytes& pulse_frame() {
  static const Bytes frame = [] {
    Bytes bytes;
    encode(LinkFrame{Pulse{}}, bytes);
    return bytes;
  }();
  return frame;
}

// The first version of the kernel's struct sched_attr.
struct SchedAttributes {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t slice_ns, deadline_ns, period_ns;
};
static_assert(sizeof(SchedAttributes) == 48);

// The last thread of a killed process frees all of its memory before it closes its descriptors, and
// a gigabyte takes tens of milliseconds. So this thread must be among the first to end. It asks for
// the shortest turns (Linux 6.12) and for a higher priority, if it is allowed.
void ask_for_early_turns() {
  constexpr std::uint64_t kSliceNs = 100'000;  // the shortest there is
  constexpr std::int32_t kNiceLeast = -20;
  SchedAttributes ours{};
  if (::syscall(SYS_sched_getattr, 0, &ours, sizeof ours, 0) != 0) return;
  if (ours.policy != SCHED_OTHER) return;
  ours.slice_ns = kSliceNs;
  SchedAttributes first = ours;
  first.nice = kNiceLeast;
  if (::syscall(SYS_sched_setattr, 0, &first, 0) == 0) return;
  [[maybe_unused]] const long set = ::syscall(SYS_sched_setattr, 0, &ours, 0);
}

}  // namespace

void LivenessThread::thread_main(int orders, const LivenessLimits& limits) noexcept {
  ::pthread_setname_np(::pthread_self(), "hoplite-live");
  ask_for_early_turns();
  const auto answer = [orders](int number) {
    HOPLITE_CHECK(::send(orders, &number, sizeof number, MSG_NOSIGNAL) == sizeof number);
  };
  if (kHasOwnTable && !leave_table(orders)) return answer(std::max(errno, 1));
  auto thread = open(UniqueFd(orders), limits);
  if (!thread) return answer(std::max(errno, 1));
  answer(0);
  thread->run();
}

Result<void> LivenessThread::leave_table(int orders) {
  const auto first_above = static_cast<unsigned>(orders) + 1;
  if (::close_range(first_above, ~0U, CLOSE_RANGE_UNSHARE) != 0) return system_error("close_range");
  if (orders > STDERR_FILENO + 1) {
    ::close_range(STDERR_FILENO + 1, static_cast<unsigned>(orders) - 1, 0);
  }
  // A pipe that the process closes must not stay open here, and no connection may get number 0 to
  // 2.
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!nothing.is_open()) return system_error("/dev/null");
  if (::dup2(nothing.value(), STDIN_FILENO) < 0 || ::dup2(nothing.value(), STDOUT_FILENO) < 0) {
    return system_error("dup2");
  }
  return {};
}

Result<LivenessThread> LivenessThread::open(UniqueFd orders, const LivenessLimits& limits) {
  auto poller = Poller::open();
  if (!poller) return poller.error();
  if (auto added = poller->add(orders.value(), kOrdersToken, Interest::kRead); !added) {
    return added.error();
  }
  return LivenessThread(std::move(orders), std::move(*poller), limits);
}

LivenessThread::LivenessThread(UniqueFd orders, Poller poller, const LivenessLimits& limits)
    : orders_(std::move(orders)),
      poller_(std::move(poller)),
      rules_(limits),
      next_token_(kOrdersToken + 1) {}

// The thread has a clock of its own: the reactor's time is old while the reactor is busy, and
// starving is what this thread measures.
void LivenessThread::run() noexcept {
  next_tick_ = read_clock();
  while (is_running_) {
    const Duration left = next_tick_ - read_clock();
    for (const Ready& ready : poller_.wait(std::max(left, Duration{0}))) {
      if (ready.token == kOrdersToken) take_orders();
      const auto each = connections_.find(ready.token);
      if (each != connections_.end()) receive_from(each);
    }
    const Instant now = read_clock();
    if (now >= next_tick_) tick(now);
    send_events();
  }
}

// ---- the reactor's orders ----

void LivenessThread::take_orders() {
  for (;;) {
    LivenessOrder order;
    iovec part{&order, sizeof order};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(orders_.value(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && would_block()) return;
    if (got != sizeof order) {
      is_running_ = false;
      return;
    }
    UniqueFd fd;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header), sizeof number);
      fd = UniqueFd(number);
    }
    handle_order(order, Stream(std::move(fd), std::unique_ptr<TlsSession>(order.tls)));
  }
}

void LivenessThread::handle_order(const LivenessOrder& order, Stream connection) {
  if (order.kind == LivenessOrder::Kind::kForget) {
    end_connections(order.node, order.incarnation);
    rules_.handle_forget(order.node);
    return;
  }
  std::erase_if(connections_, [&](const auto& each) {
    return each.second.node == order.node &&
           (each.second.rail == order.rail || each.second.incarnation != order.incarnation);
  });
  const std::uint64_t token = next_token_++;
  // The end of the stream is an event even without interest. Ticks read the bytes that arrive
  // earlier.
  if (connection.fd() < 0 || !poller_.add(connection.fd(), token, Interest::kNone)) {
    unsent_events_.push_back({order.node, order.incarnation, order.rail, Verdict::kRailLost});
    return;
  }
  Connection& added = connections_[token];
  added.stream = std::move(connection);
  added.node = order.node;
  added.incarnation = order.incarnation;
  added.rail = order.rail;
  rules_.handle_watch(order.node, order.incarnation, order.rail);
}

// ---- connections ----

void LivenessThread::receive_from(Connections::iterator each) {
  if (const auto how = receive(each->second)) end(each, *how);
}

std::optional<RailEnd> LivenessThread::receive(Connection& connection) {
  for (int i = 0; i < kReadsPerTurn; ++i) {
    std::array<std::byte, kReadBytes> bytes;
    iovec part{bytes.data(), bytes.size()};
    auto got = connection.stream.receive({&part, 1}, ReadAhead::kNone);
    if (!got) return end_of(connection.stream);
    if (*got == 0) return std::nullopt;
    const auto came = std::span(bytes).first(*got);
    if (!handle_input(connection, came)) {
      return RailEnd::kCut;  // an invalid frame does not prove the end of a process
    }
    if (came.size() < bytes.size()) return std::nullopt;  // less: there was no more
  }
  return std::nullopt;
}

bool LivenessThread::handle_input(Connection& connection, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t missing = connection.input.size() - connection.input_got;
    const std::size_t taken = std::min(missing, bytes.size());
    std::copy_n(bytes.begin(), taken, connection.input.begin() + connection.input_got);
    bytes = bytes.subspan(taken);
    connection.input_got += taken;
    if (connection.input_got < connection.input.size()) return true;
    connection.input_got = 0;
    auto header = decode_header(connection.input);
    if (!header || header->body_bytes != 0) return false;
    if (header->type == FrameType::kGoodbye) {
      rules_.handle_goodbye(connection.node);
    } else if (header->type == FrameType::kPulse) {
      rules_.handle_pulse(connection.node);
    } else {
      return false;
    }
  }
  return true;
}

void LivenessThread::pulse(Connections::iterator each) {
  Connection& connection = each->second;
  if (rules_.silence(connection.node) > kUnreadMax) return;
  const auto sent = send_bytes(connection, std::span(pulse_frame()).subspan(connection.pulse_sent));
  if (!sent) {
    const RailEnd how = end_of(connection.stream);
    [[maybe_unused]] const auto rest = receive(connection);  // its Goodbye may have come meanwhile
    return end(each, how);
  }
  connection.pulse_sent = (connection.pulse_sent + *sent) % pulse_frame().size();
}

Result<std::size_t> LivenessThread::send_bytes(Connection& connection,
                                               std::span<const std::byte> bytes) {
  Stream& stream = connection.stream;
  if (auto flushed = stream.flush(); !flushed) return flushed.error();
  if (!stream.is_ready()) return std::size_t{0};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return stream.send({&part, 1});
}

void LivenessThread::end(Connections::iterator each, RailEnd how) {
  const NodeId node = each->second.node;
  const RailId rail = each->second.rail;
  connections_.erase(each);
  rules_.handle_end(node, rail, how);
}

void LivenessThread::end_connections(NodeId node, Incarnation upto) {
  const auto is_meant = [&](const Connection& connection) {
    return connection.node == node && connection.incarnation <= upto;
  };
  for (auto& [token, connection] : connections_) {
    if (!is_meant(connection)) continue;
    // with unread bytes close() would send a RST
    [[maybe_unused]] const auto ended = receive(connection);
    Bytes last_words;
    if (connection.pulse_sent > 0) {
      last_words.assign(pulse_frame().begin() + static_cast<std::ptrdiff_t>(connection.pulse_sent),
                        pulse_frame().end());
    }
    encode(LinkFrame{Goodbye{}}, last_words);
    [[maybe_unused]] const auto sent = send_bytes(connection, last_words);
  }
  std::erase_if(connections_, [&](const auto& each) { return is_meant(each.second); });
}

// ---- turns ----

void LivenessThread::tick(Instant now) {
  for (auto each = connections_.begin(); each != connections_.end();) receive_from(each++);
  for (auto each = connections_.begin(); each != connections_.end();) pulse(each++);
  rules_.handle_tick(now);
  next_tick_ = now + kPulseEvery;
}

void LivenessThread::send_events() {
  while (const auto event = rules_.poll_event()) {
    if (is_final(event->verdict)) end_connections(event->node, event->incarnation);
    const bool is_only_counted =
        event->verdict == Verdict::kSuspect || event->verdict == Verdict::kRecovered;
    if (!is_only_counted || unsent_events_.size() < kUnsentEventsMax)
      unsent_events_.push_back(*event);
  }
  while (!unsent_events_.empty()) {
    const ssize_t sent = ::send(orders_.value(), &unsent_events_.front(), sizeof(LivenessEvent),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && would_block()) return;  // again at the next tick
    // on another error the reactor is gone, and the end of `orders` shows it
    unsent_events_.pop_front();
  }
}

}  // namespace hoplite
