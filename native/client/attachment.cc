// SPDX-License-Identifier: Apache-2.0
#include "client/attachment.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>
#include <variant>

#include "client/attach.h"
#include "client/fork_guard.h"
#include "io/system_error.h"

namespace hoplite {
namespace {

constexpr std::size_t kReadBytes = 128_KiB;  // one largest reply, or some thousand small ones
// A sender that finds the socket full looks this often whether it may be the leader instead.
constexpr Duration kFullSocketPoll = 20_ms;

using SteadyClock = std::chrono::steady_clock;

Error forked_error() {
  return {Code::kInvalidArgument,
          "this client is unusable after fork: attach again in the child process"};
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int poll_ms(Duration timeout) {
  const std::int64_t ms = (std::max<std::int64_t>(timeout.ns, 0) + 999'999) / 1'000'000;
  return static_cast<int>(std::min<std::int64_t>(ms, 1 << 30));
}

}  // namespace

Result<std::shared_ptr<Attachment>> Attachment::open(const std::string& socket_path) {
  auto opened = attach_to(socket_path);
  if (!opened) return opened.error();
  auto attachment =
      std::make_shared<Attachment>(std::move(opened->socket), std::move(opened->writable),
                                   std::move(opened->readonly), opened->attached);
  return attachment;
}

Attachment::Attachment(UniqueFd socket, UniqueFd writable, UniqueFd readonly,
                       const Attached& attached)
    : socket_(std::move(socket)),
      writable_(std::move(writable)),
      readonly_(std::move(readonly)),
      attached_(attached) {
  guard_against_fork(this);
}

Attachment::~Attachment() { leave_fork_guard(this); }

// ---- asking ----

Result<void> Attachment::check() {
  if (is_forked_) return forked_error();
  const std::lock_guard guard(mutex_);
  if (end_) return *end_;
  return {};
}

bool Attachment::is_alive() {
  if (is_forked_) return false;
  std::unique_lock guard(mutex_);
  if (!end_ && !has_leader_) lead(guard, POLLIN, Duration{0});
  return !end_;
}

Result<std::shared_ptr<Request>> Attachment::ask(ObjectId object, CommandBody body,
                                                 std::uint64_t size_bytes) {
  if (auto usable = check(); !usable) return usable.error();
  std::shared_ptr<Request> request;
  {
    const std::lock_guard guard(mutex_);
    const RequestId id{next_request_++};
    request = std::make_shared<Request>(shared_from_this(), id, object, size_bytes);
    pending_.emplace(id, request.get());
  }
  release_orphans();
  if (auto sent = send({ClientId{0}, request->id(), std::move(body)}); !sent) return sent.error();
  return request;
}

Result<void> Attachment::tell(RequestId request, CommandBody body) {
  if (auto usable = check(); !usable) return usable.error();
  return send({ClientId{0}, request, std::move(body)});
}

Result<void> Attachment::send(const Command& command) {
  Bytes head;
  encode(command, head);
  std::array<iovec, 2> parts{iovec{head.data(), head.size()}, iovec{}};
  std::size_t left = head.size();
  if (const auto* put = std::get_if<PutCommand>(&command.body)) {
    parts[1] = {const_cast<std::byte*>(put->payload.data()), put->payload.size()};
    left += put->payload.size();
  }
  const std::lock_guard guard(sending_);  // a frame goes out whole before the next one
  while (left > 0) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = ::sendmsg(socket_.value(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (!would_block()) {
        const Error why = system_error("sending to the node", Code::kNodeLost);
        const std::lock_guard table(mutex_);
        die(why);
        return why;
      }
      if (auto writable = wait_until_writable(); !writable) return writable.error();
      continue;
    }
    left -= static_cast<std::size_t>(sent);
    auto skip = static_cast<std::size_t>(sent);
    for (iovec& part : parts) {
      const std::size_t here = std::min(skip, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + here;
      part.iov_len -= here;
      skip -= here;
    }
  }
  return {};
}

// The node stops listening to a client that leaves its answers unread, so a sender reads meanwhile.
Result<void> Attachment::wait_until_writable() {
  std::unique_lock guard(mutex_);
  if (end_) return *end_;
  if (!has_leader_) {
    lead(guard, POLLIN | POLLOUT, kFullSocketPoll);
    return {};
  }
  guard.unlock();
  pollfd socket{socket_.value(), POLLOUT, 0};
  ::poll(&socket, 1, poll_ms(kFullSocketPoll));
  return {};
}

// ---- answers ----

bool Attachment::wait(Request& request, Duration timeout) {
  if (is_forked_) return true;  // take() says why
  const auto deadline = SteadyClock::now() + std::chrono::nanoseconds(timeout.ns);
  {
    std::unique_lock guard(mutex_);
    while (!request.is_finished_) {
      const auto left = deadline - SteadyClock::now();
      const Duration patience{std::max<std::int64_t>(
          0, std::chrono::duration_cast<std::chrono::nanoseconds>(left).count())};
      if (!has_leader_) {
        lead(guard, POLLIN, patience);
        if (!request.is_finished_ && patience.ns == 0) return false;
      } else if (progress_.wait_for(guard, left) == std::cv_status::timeout) {
        if (!request.is_finished_ && SteadyClock::now() >= deadline) return false;
      }
    }
  }
  release_orphans();
  return true;
}

void Attachment::lead(std::unique_lock<std::mutex>& guard, short events, Duration timeout) {
  has_leader_ = true;
  guard.unlock();
  auto arrived = read(events, timeout);
  guard.lock();
  has_leader_ = false;
  if (arrived) {
    for (Arrived& each : *arrived) hand_out(std::move(each));
  } else {
    die(arrived.error());
  }
  progress_.notify_all();  // those who are served, and one who leads next
}

Result<std::vector<Attachment::Arrived>> Attachment::read(short events, Duration timeout) {
  pollfd socket{socket_.value(), events, 0};
  const int ready = ::poll(&socket, 1, poll_ms(timeout));
  if (ready <= 0 || (socket.revents & ~POLLOUT) == 0) return std::vector<Arrived>{};
  const std::size_t at = input_.size();
  input_.resize(at + kReadBytes);
  const ssize_t got = ::recv(socket_.value(), input_.data() + at, kReadBytes, MSG_DONTWAIT);
  const int error = errno;
  input_.resize(at + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  errno = error;
  const std::string node = "node " + std::to_string(attached_.node.value);
  if (got == 0) return Error{Code::kNodeLost, node + " is gone; attach again once it is back"};
  if (got < 0 && !would_block()) return system_error("reading from " + node, Code::kNodeLost);
  return parse();
}

Result<std::vector<Attachment::Arrived>> Attachment::parse() {
  std::vector<Arrived> arrived;
  std::size_t read = 0;
  for (;;) {
    const std::span<const std::byte> here = std::span(input_).subspan(read);
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
    arrived.push_back({std::move(*reply), Bytes(payload.begin(), payload.end())});
    read += whole;
  }
  input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(read));
  return arrived;
}

void Attachment::hand_out(Arrived arrived) {
  const auto found = pending_.find(arrived.reply.request);
  if (found != pending_.end()) {
    Request& request = *found->second;
    pending_.erase(found);
    finish(request, std::move(arrived.reply.reply), std::move(arrived.payload));
    return;
  }
  // Cancelled or dropped while the answer was on its way: nobody else will give back what it holds.
  const auto cancelled = cancelled_.find(arrived.reply.request);
  if (cancelled == cancelled_.end()) return;
  const auto* fetched = std::get_if<Fetched>(&arrived.reply.reply);
  if (fetched != nullptr && fetched->mapped) {
    orphans_.emplace_back(shared_from_this(), cancelled->second, fetched->incarnation);
  }
  cancelled_.erase(cancelled);
}

void Attachment::finish(Request& request, Reply reply, Bytes payload) {
  request.is_finished_ = true;
  request.is_unwritten_ = std::holds_alternative<Reserved>(reply);
  const auto* fetched = std::get_if<Fetched>(&reply);
  if (fetched != nullptr && fetched->mapped) {
    request.answer_.pin = Pin(shared_from_this(), request.object_, fetched->incarnation);
  }
  request.answer_.reply = std::move(reply);
  request.answer_.payload = std::move(payload);
}

void Attachment::release_orphans() {
  std::vector<Pin> orphans;
  {
    const std::lock_guard guard(mutex_);
    orphans.swap(orphans_);
  }
}

// REQUIRES: mutex_ is held.
void Attachment::die(const Error& why) {
  const Error end = end_.value_or(Error{Code::kNodeLost, why.text});
  end_ = end;
  for (auto& [id, request] : std::exchange(pending_, {})) finish(*request, end, {});
  progress_.notify_all();
}

void Attachment::close() {
  if (is_forked_) return;
  std::vector<RequestId> pending;
  {
    const std::lock_guard guard(mutex_);
    if (end_) return;
    for (const auto& [id, request] : pending_) pending.push_back(id);
  }
  for (const RequestId id : pending) {
    [[maybe_unused]] const auto told = tell(id, CancelCommand{});  // it fails only if the node died
  }
  const std::lock_guard guard(mutex_);
  die({Code::kNodeLost, "the client was closed"});
}

// ---- for Request ----

bool Attachment::is_finished(const Request& request) {
  if (is_forked_) return true;
  const std::lock_guard guard(mutex_);
  return request.is_finished_;
}

Result<Request::Answer> Attachment::take(Request& request) {
  if (is_forked_) return forked_error();
  const std::lock_guard guard(mutex_);
  if (!request.is_finished_) {
    return Error{Code::kInvalidArgument, "the request is not finished; wait for it first"};
  }
  if (!std::holds_alternative<Fetched>(request.answer_.reply)) {
    return Request::Answer{request.answer_.reply, {}, {}};
  }
  if (std::exchange(request.is_taken_, true)) {
    return Error{Code::kInvalidArgument, "this request's view was taken already"};
  }
  return std::move(request.answer_);
}

Result<Extent> Attachment::reservation(const Request& put) {
  if (auto usable = check(); !usable) return usable.error();
  const std::lock_guard guard(mutex_);
  const auto* reserved = std::get_if<Reserved>(&put.answer_.reply);
  if (!put.is_finished_ || !put.is_unwritten_ || reserved == nullptr) {
    return Error{Code::kInvalidArgument, "write() wants a large put that has ended with Reserved"};
  }
  return Extent{reserved->extent.offset, put.size_bytes_};
}

void Attachment::mark_written(Request& put) {
  const std::lock_guard guard(mutex_);
  put.is_unwritten_ = false;
}

void Attachment::cancel(Request& request) {
  if (is_forked_) return;
  bool was_pending = false;
  {
    const std::lock_guard guard(mutex_);
    was_pending = pending_.erase(request.id_) > 0;
    if (was_pending) {
      cancelled_.emplace(request.id_, request.object_);
      finish(request, Error{Code::kCancelled, "the request was cancelled"}, {});
    } else if (!std::exchange(request.is_unwritten_, false)) {
      return;
    }
    progress_.notify_all();
  }
  [[maybe_unused]] const auto told = tell(request.id_, CancelCommand{});  // fails if the node died
}

void Attachment::forget(Request& request) { cancel(request); }

// ---- pins and forks ----

std::uint64_t Attachment::count_pin() {
  ++pins_;
  return fork_count_;
}

void Attachment::release(ObjectId object, Incarnation incarnation, std::uint64_t fork_count) {
  if (is_forked_) return;
  --pins_;
  if (fork_count != fork_count_) return;  // a child may still look at it
  [[maybe_unused]] const auto sent =
      send({ClientId{0}, RequestId{0}, ReleaseCommand{object, incarnation}});  // or the node died
}

void Attachment::before_fork() {
  if (pins_ > 0) ++fork_count_;
}

void Attachment::after_fork_in_child() {
  is_forked_ = true;
  writable_.reset();
  readonly_.reset();
  // Without views in the child the node must notice the parent's death, which needs the last copy
  // of the socket closed. With views their pins must last as long as the child: its end closes the
  // socket.
  if (pins_ == 0) socket_.reset();
}

}  // namespace hoplite
