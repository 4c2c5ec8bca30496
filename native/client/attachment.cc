// SPDX-License-Identifier: Apache-2.0
#include "client/attachment.h"

#include <utility>
#include <variant>

#include "client/attach.h"
#include "client/fork_guard.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

// Never refuses a command that ends or releases something. Never refuses a seal either, because its
// range is private by then.
Outbox::Room room_for(const CommandBody& body) {
  const bool is_due = std::holds_alternative<CancelCommand>(body) ||
                      std::holds_alternative<ReleaseCommand>(body) ||
                      std::holds_alternative<WroteCommand>(body);
  return is_due ? Outbox::Room::kAlways : Outbox::Room::kBounded;
}

// Only a get, a put or a watch may be withdrawn: the node must hear of any other command. A
// deletion, for example, takes place though its caller waits no longer.
bool is_withdrawable(const CommandBody& body) {
  return std::holds_alternative<GetCommand>(body) || std::holds_alternative<PutCommand>(body) ||
         std::holds_alternative<WatchCommand>(body) ||
         std::holds_alternative<RebuildCommand>(body) ||
         std::holds_alternative<ExcerptCommand>(body);
}

}  // namespace

Result<std::shared_ptr<Attachment>> Attachment::open(const std::string& socket_path,
                                                     std::uint64_t unread_bytes_max) {
  auto opened = attach_to(socket_path);
  if (!opened) return opened.error();
  auto attachment =
      std::make_shared<Attachment>(std::move(opened->socket), std::move(opened->writable),
                                   std::move(opened->readonly), opened->attached, unread_bytes_max);
  if (!attachment->waiter_.wake.is_open() || !attachment->watcher_.wake.is_open() ||
      !attachment->outbox_.is_open()) {
    return system_error("eventfd");
  }
  return attachment;
}

Attachment::Attachment(UniqueFd socket, UniqueFd writable, UniqueFd readonly,
                       const Attached& attached, std::uint64_t unread_bytes_max)
    : socket_(std::move(socket)),
      writable_(std::move(writable)),
      readonly_(std::move(readonly)),
      attached_(attached),
      outbox_(socket_.value(), unread_bytes_max, [this] { read_for_outbox(); }) {
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
    if (!end_ && !waiter_.is_taken) poll_as_leader(guard, waiter_, Duration{0});
    if (end_) return false;
  }
  release_orphans();
  return true;
}

Result<std::shared_ptr<Request>> Attachment::begin_request(ObjectId object, CommandBody body,
                                                           Incarnation incarnation,
                                                           std::uint64_t size_bytes, Pin pin) {
  if (auto usable = check(); !usable) {
    pin.forget();
    return usable.error();
  }
  std::shared_ptr<Request> request;
  {
    const std::lock_guard guard(mutex_);
    request = add_request(object, incarnation, size_bytes, std::move(pin));
  }
  release_orphans();
  const bool may_be_withdrawn = is_withdrawable(body);
  auto sent = send({ClientId{0}, request->id(), std::move(body)});
  if (!sent) {
    refuse({&request, 1}, sent.error());
    return sent.error();
  }
  record_sent({&request, 1}, may_be_withdrawn ? *sent : 0);
  return request;
}

Result<std::vector<std::shared_ptr<Request>>> Attachment::begin_gets(
    std::span<const ObjectId> objects, bool exist) {
  if (auto usable = check(); !usable) return usable.error();
  std::vector<std::shared_ptr<Request>> requests;
  requests.reserve(objects.size());
  Bytes commands;
  std::vector<std::size_t> ends;
  {
    const std::lock_guard guard(mutex_);
    for (const ObjectId& object : objects) {
      requests.push_back(add_request(object));
      encode(Command{ClientId{0}, requests.back()->id(), GetCommand{object, exist}}, commands);
      ends.push_back(commands.size());
    }
  }
  release_orphans();
  if (objects.empty()) return requests;
  auto sent = send({commands, ends, {}, Outbox::Room::kBounded});
  if (!sent) {
    refuse(requests, sent.error());
    return sent.error();
  }
  record_sent(requests, *sent);
  return requests;
}

void Attachment::record_sent(std::span<const std::shared_ptr<Request>> sent, std::uint64_t number) {
  {
    const std::lock_guard guard(mutex_);
    if (!end_) {
      for (const std::shared_ptr<Request>& request : sent) {
        request->unsent_ = number == 0 ? 0 : number++;
      }
      return;
    }
  }
  // A close() in another thread may have cancelled them before they were sent.
  for (const std::shared_ptr<Request>& request : sent) {
    [[maybe_unused]] const auto cancelled =
        send({ClientId{0}, request->id(), CancelCommand{request->object()}});
  }
}

// Ends requests whose commands were never sent.
void Attachment::refuse(std::span<const std::shared_ptr<Request>> unsent, const Error& why) {
  const std::lock_guard guard(mutex_);
  for (const std::shared_ptr<Request>& request : unsent) {
    if (pending_.erase(request->id_) > 0) finish(*request, why, {});
  }
}

std::shared_ptr<Request> Attachment::add_request(ObjectId object, Incarnation incarnation,
                                                 std::uint64_t size_bytes, Pin pin) {
  const RequestId id{next_request_++};
  auto request = std::make_shared<Request>(shared_from_this(), id, object, incarnation, size_bytes);
  request->is_seal_ = pin.is_held();
  request->answer_.pin = std::move(pin);
  pending_.emplace(id, request.get());
  return request;
}

Result<void> Attachment::send_command(RequestId request, CommandBody body) {
  if (auto usable = check(); !usable) return usable.error();
  if (auto sent = send({ClientId{0}, request, std::move(body)}); !sent) return sent.error();
  return {};
}

Result<std::uint64_t> Attachment::send(const Command& command) {
  Bytes head;
  encode(command, head);
  const std::size_t end = head.size();
  const auto* put = std::get_if<PutCommand>(&command.body);
  const auto payload = put == nullptr ? std::span<const std::byte>{} : std::span(put->payload);
  return send({head, {&end, 1}, payload, room_for(command.body)});
}

Result<std::uint64_t> Attachment::send(const Outbox::Frames& frames) {
  auto sent = outbox_.send(frames);
  if (sent) return sent;
  if (sent.error().code == Code::kStoreFull) {
    return Error{Code::kStoreFull,
                 "node " + std::to_string(attached_.node.value) +
                     " does not read: " + sent.error().text +
                     " of this process wait for it already, because it is stopped or starved; "
                     "wait for what is begun before you begin more, and run `hoplite-ray doctor`"};
  }
  const std::lock_guard guard(mutex_);
  fail(sent.error());
  return sent;
}

void Attachment::close() {
  if (is_forked_) return;
  std::vector<std::pair<RequestId, ObjectId>> pending;
  {
    const std::lock_guard guard(mutex_);
    if (end_) return;
    for (const auto& [id, request] : pending_) {
      if (!outbox_.drop_unsent(request->unsent_)) pending.emplace_back(id, request->object());
    }
    // first, because an answer to a cancel may arrive at once
    fail_pending({Code::kNodeLost, "the client was closed"});
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
  if (!request.is_seal_) withdraw(request);
}

void Attachment::forget(Request& request) { withdraw(request); }

void Attachment::withdraw(Request& request) {
  if (is_forked_) return;
  bool is_asked = true;
  {
    const std::lock_guard guard(mutex_);
    using Range = Request::Range;
    if (pending_.erase(request.id_) > 0) {
      is_asked = !outbox_.drop_unsent(request.unsent_);
      if (is_asked) cancelled_.emplace(request.id_, request.object_);
      finish(request, Error{Code::kCancelled, "the request was cancelled"}, {});
      wake(waiter_);
    } else if (request.range_ == Range::kReserved) {
      request.range_ = Range::kNone;
    } else {
      if (request.range_ == Range::kTaken) request.range_ = Range::kUnwanted;
      return;
    }
    progress_.notify_all();
  }
  if (!is_asked) return;
  [[maybe_unused]] const auto sent =
      send_command(request.id_, CancelCommand{request.object_});  // fails if the node died
}

// ---- for the writer of a reserved range ----

Result<Reserved> Attachment::take_range(Request& put, std::uint64_t size_bytes) {
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
  return Reserved{{reserved->extent.offset, put.size_bytes_}, reserved->block_bytes};
}

bool Attachment::is_wanted(const Request& put) {
  if (is_forked_) return false;
  const std::lock_guard guard(mutex_);
  return put.range_ != Request::Range::kUnwanted;
}

void Attachment::release_range(Request& put) {
  if (is_forked_) return;
  {
    const std::lock_guard guard(mutex_);
    put.range_ = Request::Range::kNone;
  }
  [[maybe_unused]] const auto sent =
      send_command(put.id_, CancelCommand{put.object_});  // fails if the node died
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
  if (fork_count != fork_count_) return;  // a forked child may still read it
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
  outbox_.after_fork_in_child();
  writable_.reset();
  readonly_.reset();
  // A child without views closes the socket, because the node sees the parent's death only when the
  // last copy of the socket closes. A child with views keeps it, because its pins must last as long
  // as the child does.
  if (pins_ == 0) socket_.reset();
}

}  // namespace hoplite
