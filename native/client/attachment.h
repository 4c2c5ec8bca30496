// SPDX-License-Identifier: Apache-2.0
// The state that all requests, views and the Client of one attachment share: the Unix socket to the
// node, the arena's two descriptors, and the table of pending requests. One mutex guards the table.
// An outbox sends, so no call waits for the node. Reading is by leader and followers: one of the
// waiting threads sits in poll(2), reads, hands out the answers, and passes the seat on when its
// own answer is there. next_finished() waits for many requests. It reads only while no thread waits
// for a single one, because that thread would need a second wake-up.
// Lives as long as the last request or view that points to it; the socket closes with it. After a
// fork the child's copy never sends and never locks; pins go with the last copy of the socket.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "client/outbox.h"
#include "client/request.h"
#include "io/sockets/brief_look.h"
#include "io/sockets/unique_fd.h"
#include "wire/local/local_frame.h"

namespace hoplite {

class Attachment : public std::enable_shared_from_this<Attachment> {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Attachment>> open(
      const std::string& socket_path, std::uint64_t unread_bytes_max = kUnreadCommandsBytesMax);
  Attachment(UniqueFd socket, UniqueFd writable, UniqueFd readonly, const Attached& attached,
             std::uint64_t unread_bytes_max);
  ~Attachment();

  [[nodiscard]] const Attached& attached() const { return attached_; }
  [[nodiscard]] int writable_fd() const { return writable_.value(); }
  [[nodiscard]] int readonly_fd() const { return readonly_.value(); }
  [[nodiscard]] bool is_alive();
  [[nodiscard]] Result<void> check();  // an error when forked, closed, or when the node is gone

  // Registers a request for `object`, then sends its command. A put gives incarnation and size, a
  // seal the `pin` that its answer carries.
  [[nodiscard]] Result<std::shared_ptr<Request>> begin_request(ObjectId object, CommandBody body,
                                                               Incarnation incarnation = {},
                                                               std::uint64_t size_bytes = 0,
                                                               Pin pin = {});
  // The same for each of `objects`, whose commands leave together.
  [[nodiscard]] Result<std::vector<std::shared_ptr<Request>>> begin_gets(
      std::span<const ObjectId> objects, bool exist);
  // Sends a command that is not answered.
  [[nodiscard]] Result<void> send_command(RequestId request, CommandBody body);
  void close();  // pending requests end with kNodeLost; views keep the socket open

  [[nodiscard]] Result<void> watch(Request& request);
  [[nodiscard]] Result<std::optional<RequestId>> next_finished(Duration timeout);

  // ---- for Request ----
  [[nodiscard]] bool wait(Request& request, Duration timeout);
  [[nodiscard]] std::optional<std::size_t> wait_all(std::span<const std::shared_ptr<Request>> all,
                                                    Duration timeout);
  [[nodiscard]] bool is_finished(const Request& request);
  [[nodiscard]] Result<Request::Answer> take(Request& request);
  void cancel(Request& request);
  void forget(Request& request);  // its last handle is gone

  // ---- for the writer of a reserved range ----
  // Takes the put's range, once, if `size_bytes` matches. The writer ends it by release_range() or
  // a seal.
  [[nodiscard]] Result<Reserved> take_range(Request& put, std::uint64_t size_bytes);
  [[nodiscard]] bool is_wanted(const Request& put);  // false once it was cancelled
  void release_range(Request& put);                  // REQUIRES: no thread writes into it
  [[nodiscard]] bool has_pin(const Request& seal);

  // ---- for Pin ----
  [[nodiscard]] std::uint64_t count_pin();  // returns the fork count that release() wants
  void release(ObjectId object, Incarnation incarnation, std::uint64_t fork_count);
  void uncount_pin() { --pins_; }

  // ---- around fork(2), under the list's mutex ----
  void before_fork();
  void after_fork_in_child();

 private:
  struct Seat {  // of a thread in poll(2): on the socket, and on what wakes this one
    Seat();
    UniqueFd wake;
    bool is_taken = false;
  };
  [[nodiscard]] static Error forked_error();
  // REQUIRES: mutex_ is held.
  [[nodiscard]] std::shared_ptr<Request> add_request(ObjectId object, Incarnation incarnation = {},
                                                     std::uint64_t size_bytes = 0, Pin pin = {});
  // Waits with others until `is_over` (called under mutex_, after each answer), or for `timeout`.
  template <typename IsOver>
  bool wait_until(const IsOver& is_over, Duration timeout);
  [[nodiscard]] Result<std::uint64_t> send(const Command& command);  // its number in the outbox
  [[nodiscard]] Result<std::uint64_t> send(const Outbox::Frames& frames);
  // Waits on `seat`, then hands out whatever answers have come.
  // REQUIRES: `guard` holds mutex_, which is unlocked during the wait; the seat is free.
  void poll_as_leader(std::unique_lock<std::mutex>& guard, Seat& seat, Duration timeout);
  void read_for_outbox();  // by the outbox's thread
  static void wake(const Seat& seat);
  [[nodiscard]] Result<void> read();
  [[nodiscard]] Result<void> parse();
  // The first has outbox number `number`, unless it is 0: then none may be withdrawn.
  void record_sent(std::span<const std::shared_ptr<Request>> sent, std::uint64_t number);
  void refuse(std::span<const std::shared_ptr<Request>> unsent, const Error& why);
  void withdraw(Request& request);
  void dispatch(LocalReply arrived, Bytes payload);
  void finish(Request& request, Reply reply, Bytes payload);
  void push_finished(const Request& request);
  void fail_pending(const Error& why);  // nothing can be asked any more
  void fail(const Error& why);          // the node is gone
  void release_orphans();               // REQUIRES: no mutex is held

  UniqueFd socket_;
  UniqueFd writable_;
  UniqueFd readonly_;
  Attached attached_;
  std::mutex mutex_;
  std::condition_variable progress_;
  Seat waiter_;           // the thread that waits for a single request
  Seat watcher_;          // the thread in next_finished()
  BriefLook brief_look_;  // of the thread in waiter_
  std::vector<std::byte> input_;
  std::size_t input_bytes_ = 0;
  std::optional<Error> end_;  // why nothing can be asked any more
  std::uint64_t next_request_ = 1;
  std::map<RequestId, Request*> pending_;
  std::map<RequestId, ObjectId> cancelled_;  // until their answers come
  std::deque<RequestId> finished_;           // watched, and not yet asked for
  std::uint64_t failures_ = 0;               // of requests, ever
  // Pinned by answers of cancelled requests: no view will release them.
  std::vector<std::pair<ObjectId, Incarnation>> orphans_;
  std::atomic<bool> is_forked_{false};
  std::atomic<std::uint64_t> pins_{0};
  std::atomic<std::uint64_t> fork_count_{0};
  Outbox outbox_;  // the last: its thread uses all of these
};

}  // namespace hoplite
