// SPDX-License-Identifier: Apache-2.0
// One pending operation of a client. A handle: it may outlive its Client (it then fails with
// kNodeLost) and may be dropped at any time (a dropped answer releases its pin). Every method may
// be called from any thread.
#pragma once

#include <memory>
#include <variant>

#include "base/clock.h"
#include "client/view.h"

namespace hoplite {

// The outcome of a request: Done (small put, write, delete), Reserved (large put whose range may be
// written), View (get), Reduced (committed reduce), ReduceFailed (too few of its sources are left).
// A request about a channel ends with one of the last four, or with Done (published).
using Outcome = std::variant<Done, Reserved, View, Reduced, ReduceFailed, TermTaken, VersionSeen,
                             VersionRefused, ChannelsListed>;

class Request {
 public:
  Request(std::shared_ptr<Attachment> attachment, RequestId id, ObjectId object,
          Incarnation incarnation, std::uint64_t size_bytes);
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Returns true when the request is finished, either way; false when `timeout` ran out first. The
  // waiting thread may read the socket for all of the client's threads meanwhile.
  [[nodiscard]] bool wait(Duration timeout);
  [[nodiscard]] bool is_finished() const;

  // Returns how it ended; a View can be taken once, a second call then answers kInvalidArgument.
  // Maps the object where it is large. kInvalidArgument while it isn't finished.
  [[nodiscard]] Result<Outcome> take();

  // Releases blocks, waits and a large put's unwritten range. A request that is not finished ends
  // with kCancelled. Doesn't wait for the node. A thread that writes the range stops first. Has no
  // effect on a seal, which can't be withdrawn.
  void cancel();

  [[nodiscard]] RequestId id() const { return id_; }
  [[nodiscard]] const ObjectId& object() const { return object_; }
  [[nodiscard]] Incarnation incarnation() const { return incarnation_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  friend class Attachment;
  enum class Range : std::uint8_t {
    kNone,
    kReserved,  // a large put has its range, and no thread writes it yet
    kTaken,     // write() or an Unsealed fills it
    kUnwanted,  // as kTaken, but the put is cancelled: the writer releases the range
  };
  struct Answer {
    Reply reply;
    Bytes payload;
    Pin pin;  // of a mapped Fetched until take()
  };
  std::shared_ptr<Attachment> attachment_;
  RequestId id_;
  ObjectId object_;
  Incarnation incarnation_;  // of a put, like size_bytes_; written once
  std::uint64_t size_bytes_ = 0;
  bool is_finished_ = false;  // guarded by the attachment, like all below
  bool is_watched_ = false;   // next_finished() returns its id
  bool is_taken_ = false;
  std::uint64_t unsent_ = 0;  // its number in the outbox, if it may be withdrawn from there
  bool is_seal_ = false;      // of a mapped range: its pin is here from the beginning
  Range range_ = Range::kNone;
  Answer answer_;
};

}  // namespace hoplite
