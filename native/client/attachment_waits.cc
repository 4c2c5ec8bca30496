// SPDX-License-Identifier: Apache-2.0
// How answers arrive: the thread that reads the socket, and the threads that it wakes.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>
#include <variant>

#include "client/attachment.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

constexpr std::size_t kReadBytes = 128_KiB;  // one inline reply, or some thousand small ones

using SteadyClock = std::chrono::steady_clock;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int poll_ms(Duration timeout) {
  const std::int64_t ms = (std::max<std::int64_t>(timeout.ns, 0) + 999'999) / 1'000'000;
  return static_cast<int>(std::min<std::int64_t>(ms, 1 << 30));
}

Duration until(SteadyClock::time_point deadline) {
  const auto left = deadline - SteadyClock::now();
  return {std::max<std::int64_t>(
      0, std::chrono::duration_cast<std::chrono::nanoseconds>(left).count())};
}

}  // namespace

Attachment::Seat::Seat() : wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

// REQUIRES: mutex_ is held.
void Attachment::wake(const Seat& seat) {
  if (seat.is_taken) static_cast<void>(::eventfd_write(seat.wake.value(), 1));
}

// ---- waiting ----

template <typename IsOver>
bool Attachment::wait_until(const IsOver& is_over, Duration timeout) {
  const auto deadline = SteadyClock::now() + std::chrono::nanoseconds(timeout.ns);
  bool is_done = false;
  {
    std::unique_lock guard(mutex_);
    bool is_first = true;
    for (Duration left = timeout; !(is_done = is_over()); left = until(deadline)) {
      if (left.ns == 0 && !std::exchange(is_first, false)) break;
      if (!waiter_.is_taken) {
        poll_as_leader(guard, waiter_, left);
      } else {
        progress_.wait_for(guard, std::chrono::nanoseconds(left.ns));
      }
    }
  }
  release_orphans();
  return is_done;
}

bool Attachment::wait(Request& request, Duration timeout) {
  if (is_forked_) return true;  // take() says why
  return wait_until([&] { return request.is_finished_; }, timeout);
}

std::optional<std::size_t> Attachment::wait_all(std::span<const std::shared_ptr<Request>> all,
                                                Duration timeout) {
  if (is_forked_) return std::size_t{0};
  const auto has_failed = [](const std::shared_ptr<Request>& each) {
    return each->is_finished_ && error_of(each->answer_.reply);
  };
  auto open = all.begin();  // all before it have finished
  auto failed = all.end();
  std::optional<std::uint64_t> failures;
  const auto is_over = [&] {
    if (std::exchange(failures, failures_) != failures_) {
      failed = std::ranges::find_if(all, has_failed);
    }
    while (open != all.end() && (*open)->is_finished_) ++open;
    return open == all.end() || failed != all.end();
  };
  if (!wait_until(is_over, timeout)) return std::nullopt;
  return static_cast<std::size_t>(failed - all.begin());
}

Result<void> Attachment::watch(Request& request) {
  if (is_forked_) return forked_error();
  const std::lock_guard guard(mutex_);
  if (end_) return *end_;
  request.is_watched_ = true;
  if (request.is_finished_) push_finished(request);
  return {};
}

Result<std::optional<RequestId>> Attachment::next_finished(Duration timeout) {
  if (is_forked_) return forked_error();
  const auto deadline = SteadyClock::now() + std::chrono::nanoseconds(timeout.ns);
  std::optional<RequestId> id;
  {
    std::unique_lock guard(mutex_);
    for (Duration left = timeout; finished_.empty(); left = until(deadline)) {
      if (end_) return *end_;
      if (!waiter_.is_taken && !watcher_.is_taken) {
        poll_as_leader(guard, watcher_, left);
      } else {
        progress_.wait_for(guard, std::chrono::nanoseconds(left.ns));
      }
      if (finished_.empty() && SteadyClock::now() >= deadline) break;
    }
    if (!finished_.empty()) {
      id = finished_.front();
      finished_.pop_front();
    }
  }
  release_orphans();
  return id;
}

void Attachment::poll_as_leader(std::unique_lock<std::mutex>& guard, Seat& seat, Duration timeout) {
  seat.is_taken = true;
  outbox_.flush();  // the outbox's thread may not have started
  guard.unlock();
  std::array<pollfd, 2> awaited{pollfd{socket_.value(), POLLIN, 0},
                                pollfd{seat.wake.value(), POLLIN, 0}};
  const auto is_there = [&] { return ::poll(awaited.data(), awaited.size(), 0) != 0; };
  const bool is_for_one = &seat == &waiter_ && timeout.ns > 0;
  if (!is_for_one || !brief_look_.finds(is_there)) {
    ::poll(awaited.data(), awaited.size(), poll_ms(timeout));
  }
  eventfd_t count = 0;
  if (awaited[1].revents != 0) ::eventfd_read(seat.wake.value(), &count);
  guard.lock();
  seat.is_taken = false;
  const bool is_readable = awaited[0].revents != 0;
  // A thread that waits for one answer has arrived meanwhile: it reads without a second wake-up.
  if (&seat == &watcher_ && waiter_.is_taken) return;
  if (is_readable && !end_) {
    if (auto received = read(); !received) fail(received.error());
  }
  progress_.notify_all();  // the threads whose answers are here, and the next reader
}

// Reads for the outbox's thread. Wakes both seats, because a thread there may have its answer or
// may have lost its turn.
void Attachment::read_for_outbox() {
  {
    const std::lock_guard guard(mutex_);
    if (auto received = read(); !received) fail(received.error());
    wake(waiter_);
    wake(watcher_);
    progress_.notify_all();
  }
  release_orphans();
}

// ---- reading; all REQUIRE that mutex_ is held ----

Result<void> Attachment::read() {
  if (input_.size() < input_bytes_ + kReadBytes) input_.resize(input_bytes_ + kReadBytes);
  const ssize_t got =
      ::recv(socket_.value(), input_.data() + input_bytes_, kReadBytes, MSG_DONTWAIT);
  const std::string node = "node " + std::to_string(attached_.node.value);
  if (got == 0) return Error{Code::kNodeLost, node + " is gone; attach again once it is back"};
  if (got < 0 && !would_block()) return system_error("reading from " + node, Code::kNodeLost);
  input_bytes_ += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  return parse();
}

Result<void> Attachment::parse() {
  std::size_t begin = 0;
  for (;;) {
    const auto here = std::span<const std::byte>(input_).subspan(begin, input_bytes_ - begin);
    if (here.size() < kLocalHeaderBytes) break;
    auto header = decode_local_header(here);
    if (!header) return header.error();
    const std::size_t body_end = kLocalHeaderBytes + header->body_bytes;
    const std::size_t whole = body_end + header->payload_bytes;
    if (here.size() < whole) break;
    auto frame = decode_local_body(*header, here.subspan(kLocalHeaderBytes, header->body_bytes));
    if (!frame) return frame.error();
    auto* reply = std::get_if<LocalReply>(&*frame);
    if (reply == nullptr) return Error{Code::kBadFrame, "the node sent something that is no reply"};
    const auto payload = here.subspan(body_end, header->payload_bytes);
    dispatch(std::move(*reply), Bytes(payload.begin(), payload.end()));
    begin += whole;
  }
  const auto first = input_.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = input_.begin() + static_cast<std::ptrdiff_t>(input_bytes_);
  std::copy(first, last, input_.begin());
  input_bytes_ -= begin;
  return {};
}

void Attachment::dispatch(LocalReply arrived, Bytes payload) {
  const auto found = pending_.find(arrived.request);
  if (found != pending_.end()) {
    Request& request = *found->second;
    pending_.erase(found);
    return finish(request, std::move(arrived.reply), std::move(payload));
  }
  // The request was cancelled or dropped while its answer was in flight: this code alone releases
  // what the answer holds.
  const auto cancelled = cancelled_.find(arrived.request);
  if (cancelled == cancelled_.end()) return;
  const auto* fetched = std::get_if<Fetched>(&arrived.reply);
  if (fetched != nullptr && fetched->mapped) {
    orphans_.emplace_back(cancelled->second, fetched->incarnation);
  }
  cancelled_.erase(cancelled);
}

void Attachment::finish(Request& request, Reply reply, Bytes payload) {
  request.is_finished_ = true;
  if (error_of(reply)) ++failures_;
  if (std::holds_alternative<Reserved>(reply)) request.range_ = Request::Range::kReserved;
  const auto* fetched = std::get_if<Fetched>(&reply);
  if (request.is_seal_) {
    if (fetched == nullptr) request.answer_.pin.forget();
  } else if (fetched != nullptr && fetched->mapped) {
    request.answer_.pin = Pin(shared_from_this(), request.object_, fetched->incarnation);
  }
  request.answer_.reply = std::move(reply);
  request.answer_.payload = std::move(payload);
  if (request.is_watched_) push_finished(request);
}

void Attachment::push_finished(const Request& request) {
  finished_.push_back(request.id_);
  wake(watcher_);
  progress_.notify_all();
}

void Attachment::fail_pending(const Error& why) {
  const Error end = end_.value_or(Error{Code::kNodeLost, why.text});
  end_ = end;
  for (auto& [id, request] : std::exchange(pending_, {})) finish(*request, end, {});
  wake(waiter_);
  wake(watcher_);
  progress_.notify_all();
}

void Attachment::fail(const Error& why) {
  fail_pending(why);
  outbox_.close();
}

void Attachment::release_orphans() {
  std::vector<std::pair<ObjectId, Incarnation>> orphans;
  {
    const std::lock_guard guard(mutex_);
    orphans.swap(orphans_);
  }
  for (const auto& [object, incarnation] : orphans) {
    [[maybe_unused]] const auto sent =  // or the node died
        send({ClientId{0}, RequestId{0}, ReleaseCommand{object, incarnation}});
  }
}

}  // namespace hoplite
