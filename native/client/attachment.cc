// SPDX-License-Identifier: Apache-2.0
#include "client/attachment.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <variant>

#include "client/attach.h"
#include "client/fork_guard.h"
#include "io/system_error.h"

namespace hoplite {
namespace {

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Result<std::shared_ptr<Attachment>> Attachment::open(const std::string& socket_path) {
  auto opened = attach_to(socket_path);
  if (!opened) return opened.error();
  auto attachment =
      std::make_shared<Attachment>(std::move(opened->socket), std::move(opened->writable),
                                   std::move(opened->readonly), opened->attached);
  if (!attachment->waiter_.wake.is_open() || !attachment->watcher_.wake.is_open()) {
    return system_error("eventfd");
  }
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

Error Attachment::forked_error() {
  return {Code::kInvalidArgument,
          "this client is unusable after fork: attach again in the child process"};
}

Result<void> Attachment::check() {
  if (is_forked_) return forked_error();
  const std::lock_guard guard(mutex_);
  if (end_) return *end_;
  return {};
}

bool Attachment::is_alive() {
  if (is_forked_) return false;
  {
    std::unique_lock guard(mutex_);
    if (!end_ && !waiter_.is_taken) lead(guard, waiter_, POLLIN, Duration{0});
    if (end_) return false;
  }
  release_orphans();
  return true;
}

Result<std::shared_ptr<Request>> Attachment::ask(ObjectId object, CommandBody body,
                                                 Incarnation incarnation, std::uint64_t size_bytes,
                                                 Pin pin) {
  if (auto usable = check(); !usable) {
    pin.forget();
    return usable.error();
  }
  std::shared_ptr<Request> request;
  {
    const std::lock_guard guard(mutex_);
    request = add(object, incarnation, size_bytes, std::move(pin));
  }
  release_orphans();
  if (auto sent = send({ClientId{0}, request->id(), std::move(body)}); !sent) return sent.error();
  cancel_if_closed({&request, 1});
  return request;
}

Result<std::vector<std::shared_ptr<Request>>> Attachment::ask_gets(
    std::span<const ObjectId> objects, bool exist) {
  if (auto usable = check(); !usable) return usable.error();
  std::vector<std::shared_ptr<Request>> requests;
  requests.reserve(objects.size());
  Bytes commands;
  {
    const std::lock_guard guard(mutex_);
    for (const ObjectId& object : objects) {
      requests.push_back(add(object));
      encode(Command{ClientId{0}, requests.back()->id(), GetCommand{object, exist}}, commands);
    }
  }
  release_orphans();
  if (auto sent = send(commands, {}); !sent) return sent.error();
  cancel_if_closed(requests);
  return requests;
}

// A close() in another thread may have cancelled them before they were sent.
void Attachment::cancel_if_closed(std::span<const std::shared_ptr<Request>> sent) {
  {
    const std::lock_guard guard(mutex_);
    if (!end_) return;
  }
  for (const std::shared_ptr<Request>& request : sent) {
    [[maybe_unused]] const auto told =
        send({ClientId{0}, request->id(), CancelCommand{request->object()}});
  }
}

std::shared_ptr<Request> Attachment::add(ObjectId object, Incarnation incarnation,
                                         std::uint64_t size_bytes, Pin pin) {
  const RequestId id{next_request_++};
  auto request = std::make_shared<Request>(shared_from_this(), id, object, incarnation, size_bytes);
  request->is_seal_ = pin.is_held();
  request->answer_.pin = std::move(pin);
  pending_.emplace(id, request.get());
  return request;
}

Result<void> Attachment::tell(RequestId request, CommandBody body) {
  if (auto usable = check(); !usable) return usable.error();
  return send({ClientId{0}, request, std::move(body)});
}

Result<void> Attachment::send(const Command& command) {
  Bytes head;
  encode(command, head);
  const auto* put = std::get_if<PutCommand>(&command.body);
  if (put == nullptr) return send(head, {});
  return send(head, {const_cast<std::byte*>(put->payload.data()), put->payload.size()});
}

Result<void> Attachment::send(std::span<std::byte> head, std::span<std::byte> payload) {
  std::array<iovec, 2> parts{iovec{head.data(), head.size()},
                             iovec{payload.data(), payload.size()}};
  std::size_t left = head.size() + payload.size();
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

void Attachment::close() {
  if (is_forked_) return;
  std::vector<std::pair<RequestId, ObjectId>> pending;
  {
    const std::lock_guard guard(mutex_);
    if (end_) return;
    for (const auto& [id, request] : pending_) pending.emplace_back(id, request->object());
    die({Code::kNodeLost, "the client was closed"});  // before an answer to a cancel can come in
  }
  for (const auto& [id, object] : pending) {
    [[maybe_unused]] const auto sent = send({ClientId{0}, id, CancelCommand{object}});
  }
  release_orphans();
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
  if (!std::holds_alternative<Fetched>(request.answer_.reply) || request.is_seal_) {
    return Request::Answer{request.answer_.reply, {}, {}};
  }
  if (std::exchange(request.is_taken_, true)) {
    return Error{Code::kInvalidArgument, "this request's view was taken already"};
  }
  return std::move(request.answer_);
}

void Attachment::cancel(Request& request) {
  if (!request.is_seal_) take_back(request);
}

void Attachment::forget(Request& request) { take_back(request); }

void Attachment::take_back(Request& request) {
  if (is_forked_) return;
  {
    const std::lock_guard guard(mutex_);
    using Range = Request::Range;
    if (pending_.erase(request.id_) > 0) {
      cancelled_.emplace(request.id_, request.object_);
      finish(request, Error{Code::kCancelled, "the request was cancelled"}, {});
      wake(waiter_);
    } else if (request.range_ == Range::kReserved) {
      request.range_ = Range::kNone;
    } else {
      if (request.range_ == Range::kTaken) request.range_ = Range::kUnwelcome;
      return;
    }
    progress_.notify_all();
  }
  [[maybe_unused]] const auto told =
      tell(request.id_, CancelCommand{request.object_});  // fails if the node died
}

// ---- for who fills a reserved range ----

Result<Extent> Attachment::take_range(Request& put, std::uint64_t size_bytes) {
  if (auto usable = check(); !usable) return usable.error();
  const std::lock_guard guard(mutex_);
  const auto* reserved = std::get_if<Reserved>(&put.answer_.reply);
  if (put.range_ != Request::Range::kReserved || reserved == nullptr) {
    return Error{Code::kInvalidArgument,
                 "only a large put that has ended with a reservation can be written, and once"};
  }
  if (size_bytes != put.size_bytes_) {
    return Error{Code::kInvalidArgument, "write() of " + std::to_string(size_bytes) +
                                             " bytes into a put of " +
                                             std::to_string(put.size_bytes_)};
  }
  put.range_ = Request::Range::kTaken;
  return Extent{reserved->extent.offset, put.size_bytes_};
}

bool Attachment::is_welcome(const Request& put) {
  if (is_forked_) return false;
  const std::lock_guard guard(mutex_);
  return put.range_ != Request::Range::kUnwelcome;
}

void Attachment::give_back(Request& put) {
  if (is_forked_) return;
  {
    const std::lock_guard guard(mutex_);
    put.range_ = Request::Range::kNone;
  }
  [[maybe_unused]] const auto told =
      tell(put.id_, CancelCommand{put.object_});  // fails if the node died
}

bool Attachment::has_pin(const Request& seal) {
  if (is_forked_) return true;
  const std::lock_guard guard(mutex_);
  return seal.is_finished_ && seal.answer_.pin.is_held();
}

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
  waiter_.wake.reset();
  watcher_.wake.reset();
  writable_.reset();
  readonly_.reset();
  // Without views in the child the node must notice the parent's death, which needs the last copy
  // of the socket closed. With views their pins must last as long as the child: its end closes the
  // socket.
  if (pins_ == 0) socket_.reset();
}

}  // namespace hoplite
