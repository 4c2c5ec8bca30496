// What all requests, views and the Client of one attachment share: the Unix socket to the node, the
// arena's two descriptors, and the table of pending requests. One mutex guards the table, another
// orders what is sent. Reading is by leader and followers: of the threads that wait, one reads the
// socket without holding the mutex, hands out the answers, and passes the role on when its own is
// there. Lives as long as the last request or view that points to it; the socket closes with it.
// After a fork the child's copy is dead: it never sends and never locks. Pins that were alive at
// the fork are not released one by one any more, but with the last copy of the socket (design §1).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "client/request.h"
#include "io/unique_fd.h"
#include "wire/local_frame.h"

namespace hoplite {

class Attachment : public std::enable_shared_from_this<Attachment> {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Attachment>> open(const std::string& socket_path);
  Attachment(UniqueFd socket, UniqueFd writable, UniqueFd readonly, const Attached& attached);
  ~Attachment();

  [[nodiscard]] const Attached& attached() const { return attached_; }
  [[nodiscard]] int writable_fd() const { return writable_.value(); }
  [[nodiscard]] int readonly_fd() const { return readonly_.value(); }
  [[nodiscard]] bool is_alive();

  // Registers a request for `object`, then sends its command. `size_bytes`: of a put.
  [[nodiscard]] Result<std::shared_ptr<Request>> ask(ObjectId object, CommandBody body,
                                                     std::uint64_t size_bytes = 0);
  // Sends a command that is not answered.
  [[nodiscard]] Result<void> tell(RequestId request, CommandBody body);
  void close();  // pending requests end with kNodeLost; views keep the socket open

  // ---- for Request ----
  [[nodiscard]] bool wait(Request& request, Duration timeout);
  [[nodiscard]] bool is_finished(const Request& request);
  [[nodiscard]] Result<Request::Answer> take(Request& request);
  [[nodiscard]] Result<Extent> reservation(const Request& put);
  void mark_written(Request& put);
  void cancel(Request& request);
  void forget(Request& request);  // its last handle is gone

  // ---- for Pin ----
  [[nodiscard]] std::uint64_t count_pin();  // returns the fork count that release() wants
  void release(ObjectId object, Incarnation incarnation, std::uint64_t fork_count);

  // ---- around fork(2), under the list's mutex ----
  void before_fork();
  void after_fork_in_child();

 private:
  struct Arrived {
    LocalReply reply;
    Bytes payload;
  };
  [[nodiscard]] Result<void> check();  // an error when forked, closed, or when the node is gone
  [[nodiscard]] Result<void> send(const Command& command);
  [[nodiscard]] Result<void> wait_until_writable();
  // Waits for one of `events` (of poll(2)), then takes in whatever frames are whole.
  [[nodiscard]] Result<std::vector<Arrived>> read(short events, Duration timeout);
  [[nodiscard]] Result<std::vector<Arrived>> parse();
  // One turn as the leader. REQUIRES: `guard` holds mutex_, nobody reads.
  void lead(std::unique_lock<std::mutex>& guard, short events, Duration timeout);
  void hand_out(Arrived arrived);
  void finish(Request& request, Reply reply, Bytes payload);
  void die(const Error& why);
  void release_orphans();  // REQUIRES: no mutex is held

  UniqueFd socket_;
  UniqueFd writable_;
  UniqueFd readonly_;
  Attached attached_;
  std::vector<std::byte> input_;  // the leader's

  std::mutex sending_;  // before mutex_, where both are held

  std::mutex mutex_;
  std::condition_variable progress_;
  bool has_leader_ = false;
  std::optional<Error> end_;  // why nothing can be asked any more
  std::uint64_t next_request_ = 1;
  std::map<RequestId, Request*> pending_;
  std::map<RequestId, ObjectId> cancelled_;  // until their answers come
  std::vector<Pin> orphans_;                 // of answers that came too late to be wanted

  std::atomic<bool> is_forked_{false};
  std::atomic<std::uint64_t> pins_{0};
  std::atomic<std::uint64_t> fork_count_{0};
};

}  // namespace hoplite
